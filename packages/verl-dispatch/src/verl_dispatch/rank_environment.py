"""torchrun's variables for ranks that take turns in one process: set while a rank runs, then as before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any

from verl_dispatch.rank_info import RankInfo

__all__ = ["RankEnvironment"]

Variables = list[tuple[Any, Any]]

_lock = threading.Lock()
_depth = 0
_before_all: Variables = []


class RankEnvironment:
    """The variables of all ranks of one group, ready to be shown one rank after the other."""

    def __init__(self, infos: Sequence[RankInfo]) -> None:
        per_rank = [info.environment() for info in infos]
        common = {
            key: value for key, value in per_rank[0].items() if all(v.get(key) == value for v in per_rank)
        }
        self._common = _encoded(common)
        self._own = [
            _encoded({key: value for key, value in variables.items() if key not in common})
            for variables in per_rank
        ]
        self._keys = [_encode(key) for key in per_rank[0]]

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Set what all ranks share; `show(rank)` sets the rest. On leaving all is as it was before."""
        saved = _enter(self._keys)
        try:
            _write(self._common)
            yield
        finally:
            _leave(saved)

    def show(self, rank: int) -> None:
        """Set the variables in which this rank differs from the others."""
        _write(self._own[rank])


def _enter(keys: Iterable[Any]) -> Variables:
    global _depth, _before_all
    with _lock:
        saved = [(key, _stored.get(key)) for key in keys]
        if _depth == 0:
            _before_all = saved
        _depth += 1
    return saved


def _leave(saved: Variables) -> None:
    """Restore what was there before; the last of several threads, what was there before all of them."""
    global _depth
    with _lock:
        _depth -= 1
        _write(_before_all if _depth == 0 else saved)


def _write(variables: Variables) -> None:
    for key, value in variables:
        if value is None:
            _unset(key)
        else:
            _set(key, value)


# os.environ takes several times as long as the rest of a small call, so its two halves are written directly
# where they can be reached: the table that Python reads, and the process's own.
_table: MutableMapping[Any, Any] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None

if _table is None:
    _stored: MutableMapping[Any, Any] = os.environ

    def _encode(text: str) -> Any:
        return text

    def _set(key: Any, value: Any) -> None:
        os.environ[key] = value

    def _unset(key: Any) -> None:
        os.environ.pop(key, None)

else:
    _stored = _table

    def _encode(text: str) -> Any:
        return os.fsencode(text)

    def _set(key: Any, value: Any) -> None:
        os.putenv(key, value)
        _stored[key] = value

    def _unset(key: Any) -> None:
        if _stored.pop(key, None) is not None:
            os.unsetenv(key)


def _encoded(variables: dict[str, str]) -> Variables:
    return [(_encode(key), _encode(value)) for key, value in variables.items()]
