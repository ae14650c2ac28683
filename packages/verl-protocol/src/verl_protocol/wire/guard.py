"""Notices writes into tensors that were read as views of memory which others read too.

torch has no read-only tensors, but it counts in-place writes. The count is seen by every view of the memory,
so one look after the work is done tells whether something was written. Writes through `.numpy()` or `.data`
are not counted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from verl_protocol.columns.walk import leaves, visited
from verl_protocol.errors import ReadOnlyWriteError
from verl_protocol.kinds import is_tensor

if TYPE_CHECKING:
    import torch


T = TypeVar("T")

GUARD_ATTRIBUTE = "_verl_protocol_guard"
"""Name of the attribute by which read-only tensors are found; it never travels."""


@dataclass(frozen=True, eq=False)
class _Guard:
    """The tensors of one payload, each with its name, its write count when read, and a view of its memory."""

    watched: tuple[tuple[str, int, torch.Tensor], ...]

    def check(self) -> None:
        for name, version, view in self.watched:
            if view._version != version:
                raise ReadOnlyWriteError(name)


_guards: WeakSet[_Guard] = WeakSet()
"""Those of all values that were read such; without any, no value has to be looked through."""


def watch(value: T, made: Sequence[torch.Tensor] | None = None) -> T:
    """`value`, whose tensors `check_unwritten` can tell about from now on.

    Args:
        made: the tensors that share memory with others; None for all.
    """
    if made is not None and not made:
        return value
    # Tensors made under inference mode count no writes.
    tensors = [(name, tensor) for name, tensor in _tensors(value, made) if not tensor.is_inference()]
    guard = _guard_of(tensors)
    _guards.add(guard)
    for _, tensor in tensors:
        setattr(tensor, GUARD_ATTRIBUTE, guard)
    return value


def _guard_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> _Guard:
    return _Guard(tuple([(name, tensor._version, tensor.detach()) for name, tensor in tensors]))


def _tensors(value: object, made: Sequence[torch.Tensor] | None) -> Iterator[tuple[str, torch.Tensor]]:
    sought = None if made is None else set(map(id, made))
    for name, leaf in leaves(value):
        if is_tensor(leaf):
            yield name, leaf
            if sought is not None:
                sought.discard(id(leaf))
                # Behind the last of them may lie thousands of objects without any tensor.
                if not sought:
                    return


@contextmanager
def sharing_reads(shared: bool) -> Iterator[None]:
    """If `shared`, remote columns that are read here may be views of their store, watched for writes.

    What goes on after the block, such as a task that it started, reads copies again.

    Raises:
        ReadOnlyWriteError: one was written to, whatever has become of the batch that it was read of.
    """
    if not shared or "torch" not in sys.modules:
        yield
        return
    from verl_protocol.columns.reading import WATCH

    guards: list[_Guard] = []
    is_open = True

    def watched(columns: Mapping[str, Any]) -> bool:
        tensors = [(name, column) for name, column in columns.items() if is_tensor(column)]
        if True in [tensor.is_nested for _, tensor in tensors]:
            # Of a jagged one also what it consists of: its own count does not tell of a write into that.
            tensors = [(name, found) for name, found in visited(columns) if is_tensor(found)]
        # Tensors made under inference mode count no writes, so nothing could be noticed.
        if not is_open or True in [tensor.is_inference() for _, tensor in tensors]:
            return False
        guards.append(_guard_of(tensors))
        return True

    token = WATCH.set(watched)
    try:
        yield
    finally:
        is_open = False
        WATCH.reset(token)
    for guard in guards:
        guard.check()


def check_unwritten(value: object) -> None:
    """Raises if a tensor that came read-only in the same payload as one in `value` was written to in place.

    Raises:
        ReadOnlyWriteError: it was; the error names the column.
    """
    for _, leaf in leaves(value) if _guards else ():
        guard: _Guard | None = getattr(leaf, GUARD_ATTRIBUTE, None)
        if guard is not None:
            guard.check()
