"""A TensorDict taken apart into what a batch consists of, and put together again.

Rows of tensors and of non-tensor stacks are columns; entries without rows are meta_info. Operations on
TensorDicts go through a batch, so that both give the same answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_protocol.arguments import check_tensordict
from verl_protocol.batch.metadata import copy_meta
from verl_protocol.batch.proto import DataProto
from verl_protocol.columns.objects import object_column, rows_of, set_stack
from verl_protocol.errors import InvalidTypeError, NothingToConcatError
from verl_protocol.kinds import is_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDict


def checked_tensordict(argument: str, value: Any) -> TensorDict:
    """`value`, if it is a TensorDict.

    Raises:
        InvalidTypeError: it is something else.
    """
    check_tensordict(argument, value)
    tensordict: TensorDict = value
    return tensordict


def checked_parts(data: Any) -> list[TensorDict]:
    """A list of TensorDicts, at least one.

    Raises:
        NothingToConcatError: an empty list.
        InvalidTypeError: no list of them.
    """
    if is_tensordict(data):
        raise InvalidTypeError("data must be a list of TensorDicts, got one TensorDict; put it in a list")
    if not isinstance(data, Iterable):
        check_tensordict("each part", data)
    parts = [checked_tensordict(f"data[{place}]", part) for place, part in enumerate(data)]
    if not parts:
        raise NothingToConcatError
    return parts


def has_rows(tensordict: TensorDict) -> bool:
    """Whether the TensorDict has a batch dimension."""
    return len(tensordict.batch_size) > 0


def as_batch(tensordict: TensorDict, stacked: frozenset[str] = frozenset()) -> DataProto:
    """The batch that a TensorDict is; `stacked` are keys of data that is a column in other parts."""
    tensors: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    meta: dict[str, Any] = {}
    for key, entry in tensordict.items():
        if is_stack(entry) or (key in stacked and is_data(entry) and has_rows(tensordict)):
            arrays[key] = object_column(rows_of(entry))
        elif is_data(entry):
            meta[key] = entry.data
        else:
            (tensors if has_rows(tensordict) else meta)[key] = entry
    return _batch_of(tensordict, tensors, arrays, meta)


def _batch_of(
    tensordict: TensorDict, tensors: dict[str, Any], arrays: dict[str, Any], meta: dict[str, Any]
) -> DataProto:
    batch = DataProto(non_tensor_batch=arrays, meta_info=copy_meta(meta))
    if has_rows(tensordict):
        batch._set_columns(tensors, int(tensordict.batch_size[0]), tensordict.device)
    return batch


def as_tensordict(batch: DataProto, like: TensorDict) -> TensorDict:
    """The TensorDict that a batch is, with the device, the order and the further batch dims of `like`."""
    from tensordict import TensorDict

    size = [len(batch), *like.batch_size[1:]] if has_rows(like) else []
    made = TensorDict({}, batch_size=size, device=like.device)
    entries = {**batch._columns(), **batch.non_tensor_batch, **copy_meta(batch.meta_info)}
    order = [*like.keys(), *entries]
    for key in dict.fromkeys(key for key in order if key in entries):
        set_entry(made, key, entries[key], is_meta=key in batch.meta_info)
    return made


def set_entry(tensordict: TensorDict, key: str, value: Any, is_meta: bool = False) -> None:
    """Set a tensor, a column of objects (an array), or, with `is_meta`, data without rows."""
    if is_meta and not (isinstance(value, torch.Tensor) and not has_rows(tensordict)):
        set_data(tensordict, key, value)
    elif isinstance(value, np.ndarray):
        set_stack(tensordict, key, value.tolist() if value.ndim == 1 else list(value))
    else:
        tensordict.set(key, value)


def set_data(tensordict: TensorDict, key: str, value: Any) -> None:
    """Set data that belongs to the whole TensorDict."""
    from tensordict import NonTensorData

    data: Any = NonTensorData(value, batch_size=tensordict.batch_size)
    tensordict.set(key, data)


def is_stack(value: object) -> bool:
    """Whether `value` is non-tensor data with one entry per row."""
    from tensordict import NonTensorStack

    return isinstance(value, NonTensorStack)


def is_data(value: object) -> bool:
    """Whether `value` is one piece of non-tensor data."""
    from tensordict import NonTensorData

    return isinstance(value, NonTensorData)


def stacked_keys(parts: Sequence[TensorDict]) -> frozenset[str]:
    """Keys whose data has one entry per row in at least one part."""
    return frozenset(key for part in parts for key, entry in part.items() if is_stack(entry))


def split_tensordict(tensordict: TensorDict, chunks: int, uneven: bool) -> list[TensorDict]:
    """`chunks` parts of the rows, in order; of equal size unless `uneven`.

    Raises:
        UnevenRowsError: the rows do not divide by `chunks`.
    """
    pieces = as_batch(tensordict).chunk(chunks, uneven=uneven)
    return [as_tensordict(piece, tensordict) for piece in pieces]


def join_tensordicts(parts: Sequence[TensorDict]) -> TensorDict:
    """The rows of all parts, in order."""
    stacked = stacked_keys(parts)
    whole = DataProto.concat([as_batch(part, stacked) for part in parts])
    return as_tensordict(whole, next((part for part in parts if has_rows(part)), parts[0]))
