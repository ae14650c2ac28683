"""Batches moved to a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import nested, rows
from verl_protocol.arguments import flag
from verl_protocol.errors import DeviceNameError
from verl_protocol.kinds import is_tensordict

if TYPE_CHECKING:
    from verl_protocol.state import BatchState

S = TypeVar("S", bound="BatchState")


def to_device(data: S, device: torch.device | str | int, objects: bool) -> S:
    """Move the columns of `data` itself; with `objects` the tensors inside object columns as well.

    Copies are finished when this returns: nothing is copied in the background.
    """
    objects = flag("objects", objects)
    target = torch.empty(0, device=_known_device(device)).device
    columns = data._columns()
    tensors = rows.keep_shared(
        rows.sharing(columns), {key: column.to(target) for key, column in columns.items()}
    )
    arrays = data.non_tensor_batch
    memo: dict[int, Any] = {}
    if objects:
        arrays = {key: _moved_column(column, target, memo) for key, column in arrays.items()}
    count, has_batch = data._row_count(), data._has_batch()
    data._set_columns(tensors if has_batch else None, count, target if has_batch else None)
    data.non_tensor_batch = dict(arrays)
    return data


def _known_device(device: Any) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise DeviceNameError(device, str(error).split(":")[0]) from None


def _moved_column(column: NDArray[Any], device: torch.device, memo: dict[int, Any]) -> NDArray[Any]:
    if column.dtype != object:
        return column
    moved = nested.object_column([_moved(item, device, memo) for item in column.ravel().tolist()])
    return moved.reshape(column.shape)


def _moved(value: Any, device: torch.device, memo: dict[int, Any]) -> Any:
    """`value` with all tensors in it on `device`; what several rows share they still share."""
    if id(value) not in memo:
        # The value itself is kept beside its copy, so that its id is not given to another object meanwhile.
        memo[id(value)] = (value, _moved_parts(value, device, memo))
    return memo[id(value)][1]


def _moved_parts(value: Any, device: torch.device, memo: dict[int, Any]) -> Any:
    if isinstance(value, torch.Tensor) or is_tensordict(value):
        return value.to(device)
    if type(value) is dict:
        return {key: _moved(item, device, memo) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_moved(item, device, memo) for item in value)
    if isinstance(value, np.ndarray) and value.dtype == object:
        return _moved_column(value, device, memo)
    return value
