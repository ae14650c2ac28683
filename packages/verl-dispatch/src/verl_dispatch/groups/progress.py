"""How many ranks of a call have answered, shown on standard error: a bar of rich, or plain lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Sequence
from typing import Any

_MOST_LINES = 16
_MOST_NAMED = 4


class Progress:
    """The ranks that have answered a call, shown from when this is made until `stop`.

    A bar where rich is installed and there is a terminal or a notebook, else a few lines.

    Args:
        method: name of the method.
        ranks: who is called.
        came: who has answered; it grows.
    """

    def __init__(self, method: str, ranks: Sequence[Any], came: Collection[Any]) -> None:
        self._method, self._ranks, self._came = method, ranks, came
        self._begin = time.perf_counter()
        self._said = 0
        self._bar = _bar(method, len(ranks))

    def update(self) -> None:
        """Shows who has answered by now."""
        num_ranks = len(self._ranks)
        num_came = sum(rank in self._came for rank in self._ranks)
        if self._bar is not None:
            self._bar.update(0, completed=num_came, description=self._method + self._missing())
        elif (step := num_came * min(num_ranks, _MOST_LINES) // num_ranks) > self._said:
            self._said = step
            spent = time.perf_counter() - self._begin
            told = f"{num_came} of {num_ranks} ranks have answered after {spent:.1f} s"
            sys.stderr.write(f"{self._method}: {told}{self._missing()}\n")
        if num_came >= num_ranks:
            self.stop()

    def stop(self) -> None:
        """Leaves what is shown as it is."""
        if getattr(self, "_bar", None) is not None:
            self._bar.stop()

    def __del__(self) -> None:
        self.stop()

    def _missing(self) -> str:
        missing = [str(rank) for rank in self._ranks if rank not in self._came]
        return f", waiting for rank {', '.join(missing)}" if 0 < len(missing) <= _MOST_NAMED else ""


def _bar(method: str, num_ranks: int) -> Any:
    """A bar that is shown; None where lines must do."""
    try:
        from rich import progress
        from rich.console import Console
        from rich.errors import LiveError
    except ImportError:
        return None
    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        return None
    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
    words = progress.TextColumn("{task.description}", markup=False)
    bar = progress.Progress(*columns, words, console=console)
    bar.add_task(method, total=num_ranks)
    try:
        bar.start()
    except LiveError:  # an older rich shows one at a time
        return None
    return bar
