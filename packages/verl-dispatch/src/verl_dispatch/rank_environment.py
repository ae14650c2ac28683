"""torchrun's variables for ranks that take turns in one process: set while a rank runs, then as before."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, MutableMapping, Sequence
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
        self._keys = [key for key, _ in _encoded(per_rank[0])]

    def enter(self) -> Variables:
        """Set what all ranks share; `show(rank)` sets the rest, `leave` puts all back as it was before."""
        saved = _enter(self._keys)
        _write(self._common)
        return saved

    def leave(self, saved: Variables) -> None:
        """Undo `enter` and every `show` since."""
        _leave(saved)

    def show(self, rank: int) -> None:
        """Set the variables in which this rank differs from the others."""
        _write(self._own[rank])


def _enter(keys: Sequence[Any]) -> Variables:
    global _depth, _before_all
    with _lock:
        saved: Variables = list(zip(keys, map(_stored.get, keys), strict=True))
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


# os.environ takes several times as long as the rest of a small call, so its two halves are written directly
# where they can be reached: the table that Python reads, and the process's own.
_table: dict[bytes, bytes] | None = getattr(os.environ, "_data", None) if os.name == "posix" else None

if _table is None:
    _stored: MutableMapping[Any, Any] = os.environ

    def _encoded(variables: Mapping[str, str]) -> Variables:
        return list(variables.items())

    def _write(variables: Variables) -> None:
        for key, value in variables:
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value

else:
    _stored = _table

    def _encoded(variables: Mapping[str, str]) -> Variables:
        return [(os.fsencode(key), os.fsencode(value)) for key, value in variables.items()]

    def _write(variables: Variables) -> None:
        putenv, unsetenv, table = os.putenv, os.unsetenv, _stored
        for key, value in variables:
            if value is not None:
                putenv(key, value)
                table[key] = value
            elif table.pop(key, None) is not None:
                unsetenv(key)
