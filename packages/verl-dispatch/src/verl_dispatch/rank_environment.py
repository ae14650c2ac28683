"""torchrun's variables for ranks that take turns in one process: set while a rank runs, then as before."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from verl_dispatch.rank_info import RankInfo

__all__ = ["RankEnvironment"]

Variables = dict[Any, Any]

_lock = threading.Lock()
_depth = 0
_before_all: Variables = {}


class RankEnvironment:
    """The variables of all ranks of one group, ready to be shown one rank after the other."""

    def __init__(self, infos: Sequence[RankInfo]) -> None:
        per_rank = [_encoded(info.environment()) for info in infos]
        first = per_rank[0]
        self._names = tuple(first)
        self._common = {
            name: value for name, value in first.items() if all(each.get(name) == value for each in per_rank)
        }
        self._own = [
            {name: value for name, value in variables.items() if name not in self._common}
            for variables in per_rank
        ]

    def enter(self) -> Variables:
        """Remember what is there; `show(rank)` sets a rank's variables, `leave` puts back what was before."""
        global _depth, _before_all
        with _lock:
            saved = {} if _stored.keys().isdisjoint(self._names) else _present(self._names)
            if _depth == 0:
                _before_all = saved
            _depth += 1
        return saved

    def show(self, rank: int) -> None:
        """Set a rank's variables; what all ranks share only where it is not there already."""
        if not self._common.items() <= _stored.items():
            _set(self._common)
        if self._own[rank]:
            _set(self._own[rank])

    def leave(self, saved: Variables) -> None:
        """Undo `enter` and every `show` since: the last of several threads, those of all threads."""
        global _depth
        with _lock:
            _depth -= 1
            before = _before_all if _depth == 0 else saved
            _unset(self._names)
            if before:
                _set({name: before[name] for name in self._names if name in before})


def _present(names: Iterable[Any]) -> Variables:
    return {name: _stored[name] for name in names if name in _stored}


# os.environ takes several times as long as the rest of a small call, so its two halves are written directly
# where they can be reached: the table that Python reads, and the process's own.
_table: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None

if _table is None:
    _stored: MutableMapping[Any, Any] = os.environ

    def _encoded(variables: Mapping[str, str]) -> Variables:
        return dict(variables)

    def _set(variables: Variables) -> None:
        os.environ.update(variables)

    def _unset(names: Sequence[Any]) -> None:
        for name in names:
            os.environ.pop(name, None)

else:
    _stored = _table

    def _encoded(variables: Mapping[str, str]) -> Variables:
        return {os.fsencode(name): os.fsencode(value) for name, value in variables.items()}

    def _set(variables: Variables) -> None:
        putenv = os.putenv
        for name, value in variables.items():
            putenv(name, value)
        _stored.update(variables)

    def _unset(names: Sequence[Any]) -> None:
        unsetenv, drop = os.unsetenv, _stored.pop
        for name in names:
            unsetenv(name)
            drop(name, None)
