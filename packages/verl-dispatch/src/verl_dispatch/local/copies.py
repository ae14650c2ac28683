"""Private copies of what passes between the driver and the workers of an in-process group.

On a cluster every argument and answer is pickled on the way. Here they are copied instead, so that a worker
never sees an object of the caller's or of another worker, and a program that works here works there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NoReturn, SupportsIndex, TypeVar

import numpy as np
import torch
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.columns.objects import fill_objects
from verl_protocol.columns.reading import InProcessStore, Stored
from verl_protocol.columns.walk import deep_copy
from verl_protocol.futures.any_batch import AsyncFetch, Fetch, Pending
from verl_protocol.futures.parts import Deadline, wait_async, wait_for
from verl_protocol.kinds import is_jagged, is_tensordict, is_unbatched
from verl_protocol.wire import dumps, loads

from verl_dispatch.errors import NotPicklableError
from verl_dispatch.planning.parts import PaddedPart

T = TypeVar("T")
Memo = dict[int, Any]

_SHARED_TYPES = frozenset(
    [
        *(int, float, complex, bool, str, bytes, type(None), type(...), type(NotImplemented), range, slice),
        *(type, FunctionType, BuiltinFunctionType, ModuleType, torch.dtype, torch.device, torch.Size),
    ]
)
"""Types whose objects cannot be changed, or stand for code: they pass as they are."""


class PrivateFuture(Future[Any]):
    """A future whose every reading gives a copy of its own."""

    def result(self, timeout: float | None = None) -> Any:
        """A copy of the value."""
        return private_copy(self.shared_result(timeout))

    def shared_result(self, timeout: float | None = None) -> Any:
        """The value itself, for a look that changes nothing."""
        return super().result(timeout)

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        """Refuses: it is filled in this process.

        Raises:
            NotPicklableError: always.
        """
        raise NotPicklableError("a future of an in-process group", "call result() and send the value")

    def __await__(self) -> Generator[Any, None, Any]:
        return wait_async(self, Deadline(None)).__await__()


def private_copy(value: T) -> T:
    """A copy that shares nothing with `value` that could be written to; what was one object stays one.

    Futures stay the objects they are: each reading of them gives a copy of its own.

    >>> mine = {"weights": [torch.zeros(2)]}
    >>> yours = private_copy(mine)
    >>> _ = yours["weights"][0].add_(1)
    >>> mine["weights"][0].tolist()
    [0.0, 0.0]
    """
    return value if type(value) in _SHARED_TYPES else _copied(value, {})


def private_arguments(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], memo: Memo | None = None
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """One rank's own arguments: copies, and the values of futures among them.

    Args:
        args: positional arguments.
        kwargs: keyword arguments.
        memo: what has been copied before; ranks that pass the same one share the copies.
    """
    if not kwargs and _SHARED_TYPES.issuperset(map(type, args)):
        return args, kwargs
    memo = {} if memo is None else memo
    return (
        tuple([_argument(value, memo) for value in args]),
        {name: _argument(value, memo) for name, value in kwargs.items()},
    )


def _argument(value: Any, memo: Memo) -> Any:
    if isinstance(value, Future):
        found = value.result()
        return found if isinstance(value, PrivateFuture) else private_copy(found)
    return _copied(value, memo)


def _copied(value: Any, memo: Memo) -> Any:
    kind = type(value)
    if kind in _SHARED_TYPES:
        return value
    known = memo.get(id(value))
    if known is not None:
        return known
    made = (_COPIERS.get(kind) or _copier_of_subclass(value))(value, memo)
    memo[id(value)] = made
    # As copy.deepcopy does: the original stays alive, so that an id means one object.
    memo.setdefault(id(memo), []).append(value)
    return made


def _copier_of_subclass(value: Any) -> Callable[[Any, Memo], Any]:
    if is_tensordict(value) or is_unbatched(value):
        return lambda value, memo: loads(*dumps(value))
    if isinstance(value, torch.Tensor):
        return _copy_tensor
    if isinstance(value, DataProto):
        return _copy_batch
    if isinstance(value, DataProtoFuture):
        return _copy_future
    if isinstance(value, (Future, type)):
        return lambda value, memo: value
    return deep_copy


def _copy_list(value: list[Any], memo: Memo) -> list[Any]:
    if _SHARED_TYPES.issuperset(map(type, value)):
        return value.copy()
    made: list[Any] = []
    memo[id(value)] = made  # what a cycle leads back to
    made.extend([_copied(item, memo) for item in value])
    return made


def _copy_tuple(value: tuple[Any, ...], memo: Memo) -> tuple[Any, ...]:
    if _SHARED_TYPES.issuperset(map(type, value)):
        return value
    items = tuple([_copied(item, memo) for item in value])
    # A cycle through this tuple has made the copy already.
    known: tuple[Any, ...] = memo.get(id(value), items)
    return known


def _copy_dict(value: dict[Any, Any], memo: Memo) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    memo[id(value)] = made
    for key, item in value.items():
        made[key if type(key) is str else _copied(key, memo)] = _copied(item, memo)
    return made


def _copy_array(value: Any, memo: Memo) -> Any:
    if value.dtype != object:
        return value.copy()
    made = memo[id(value)] = np.empty(value.shape, dtype=object)
    fill_objects(made, [_copied(item, memo) for item in value.ravel().tolist()])
    return made


def _copy_tensor(value: torch.Tensor, memo: Memo) -> torch.Tensor:
    if type(value) is torch.Tensor and not value.requires_grad:
        return value.clone()
    if isinstance(value, torch.nn.Parameter):
        return torch.nn.Parameter(value.detach().clone(), value.requires_grad)
    if type(value) is not torch.Tensor and not is_jagged(value):
        return deep_copy(value, memo)
    made = value.detach().clone()
    # The history of a computation stays where it was made.
    return made.requires_grad_() if value.requires_grad and value.is_leaf else made


def _copy_batch(value: DataProto, memo: Memo) -> DataProto:
    made = memo[id(value)] = object.__new__(type(value))
    tensors = {key: _copied(column, memo) for key, column in value._held().items()}
    made.__dict__.update(
        {name: _copied(item, memo) for name, item in value._private().items()},
        _tensors=tensors if value._has_batch() else None,
        _num_rows=value._row_count(),
        _device=value._batch_device(),
        non_tensor_batch={key: _copied(column, memo) for key, column in value.non_tensor_batch.items()},
        meta_info=_copied(value.meta_info, memo),
    )
    return made


class SnapshotStore(InProcessStore):
    """Keeps copies, as the store of a cluster does, of columns that their owner may go on to write to."""

    def put(self, columns: Mapping[str, Any]) -> Stored:
        """A reference to the columns as they are now."""
        return super().put(private_copy(dict(columns)))


class _PrivatePart(Pending):
    """A part of a future batch that gives a copy of its own to each reader."""

    def __init__(self, part: Any) -> None:
        self._part = part

    def get(self, timeout: float | None = None, fetch: Fetch | None = None) -> Any:
        return private_copy(wait_for(self._part, Deadline(timeout), fetch))

    async def aget(self, timeout: float | None = None, fetch: AsyncFetch | None = None) -> Any:
        return private_copy(await wait_async(self._part, Deadline(timeout), fetch))


def _copy_future(value: DataProtoFuture[Any], memo: Memo) -> DataProtoFuture[Any]:
    made = copy.copy(value)
    made.futures = [_private_part(part, memo) for part in value.futures]
    return made


def _private_part(part: Any, memo: Memo) -> Any:
    if isinstance(part, DataProtoFuture):
        return _copied(part, memo)
    return part if isinstance(part, (_PrivatePart, PrivateFuture)) else _PrivatePart(part)


_COPIERS: dict[type, Callable[[Any, Memo], Any]] = {
    list: _copy_list,
    tuple: _copy_tuple,
    dict: _copy_dict,
    np.ndarray: _copy_array,
    torch.Tensor: _copy_tensor,
    torch.nn.Parameter: _copy_tensor,
    DataProto: _copy_batch,
    PaddedPart: lambda value, memo: PaddedPart(_copied(value.value, memo), value.trim),
}
