"""Tensors and TensorDicts as plain values and bytes, for transports that take nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_protocol.arguments import tensordict as checked
from verl_protocol.columns import objects
from verl_protocol.columns.jagged import build_jagged, jagged_parts
from verl_protocol.errors import InvalidTypeError
from verl_protocol.kinds import is_jagged, is_tensordict, is_unbatched
from verl_protocol.wire import reduce
from verl_protocol.wire.buffers import incoming

if TYPE_CHECKING:
    from tensordict import TensorDict


SerializedTensor = tuple[str, tuple[int, ...], memoryview]
"""dtype, shape and data."""


def _not_dense(value: object) -> InvalidTypeError:
    return InvalidTypeError(
        f"only dense tensors can be serialized as dtype, shape and data, got {type(value).__name__}; "
        "use serialize_tensordict for jagged ones, or pickle"
    )


def serialize_single_tensor(t: torch.Tensor) -> SerializedTensor:
    """`(dtype, shape, data)` of a dense tensor of any dtype; the data is a view of a contiguous CPU tensor.

    Raises:
        InvalidTypeError: no dense tensor.

    >>> dtype, shape, data = serialize_single_tensor(torch.zeros(2, 3, dtype=torch.bfloat16))
    >>> dtype, shape, len(data)
    ('bfloat16', (2, 3), 12)
    """
    given: Any = t
    if not isinstance(given, torch.Tensor) or not reduce.is_dense(given) or given.is_meta:
        raise _not_dense(given)
    return reduce.dtype_name(given.dtype), tuple(given.shape), reduce.tensor_bytes(given).data


def deserialize_single_tensor(serialized: tuple[str, Any, Any]) -> torch.Tensor:
    """The tensor of `(dtype, shape, data)`, on the CPU, with memory of its own.

    Raises:
        UnknownDtypeError: this release of torch has no such dtype.
    """
    name, shape, data = serialized
    dtype = reduce.dtype_named(str(name).removeprefix("torch."))
    if not len(data):
        return torch.empty(tuple(shape), dtype=dtype)
    return reduce.as_tensor(np.array(incoming(data)), dtype, tuple(shape))


def serialize_tensordict(td: TensorDict) -> tuple[tuple[int, ...], str | None, dict[str, tuple[str, Any]]]:
    """`(batch_size, device, items)` of a TensorDict; each item is the name of its form and its content."""
    checked("td", td)
    device = None if td.device is None else str(td.device)
    return tuple(td.batch_size), device, {key: _serialize(entry) for key, entry in td.items()}


def _serialize(entry: Any) -> tuple[str, Any]:
    if is_jagged(entry):
        values, offsets, lengths, dim = jagged_parts(entry)
        parts = (values, offsets) if lengths is None else (values, offsets, lengths)
        return "jagged", ([serialize_single_tensor(part) for part in parts], dim)
    if is_unbatched(entry):
        return "unbatched", serialize_single_tensor(objects.payload_of(entry))
    if isinstance(entry, torch.Tensor):
        return "tensor", serialize_single_tensor(entry)
    if objects.is_stack(entry):
        return "stack", objects.rows_of(entry)
    if objects.is_data(entry):
        return "data", entry.data
    if is_tensordict(entry):
        return "tensordict", serialize_tensordict(entry)
    raise _not_dense(entry)


def deserialize_tensordict(serialized: tuple[Any, Any, dict[str, Any]]) -> TensorDict:
    """The TensorDict of `(batch_size, device, items)`; on the CPU, if it was on a device."""
    batch_size, device, items = serialized
    size = tuple(batch_size)
    entries = {
        key: objects.data_for(content, size) if form == "data" else _MADE_OF[form](content)
        for key, (form, content) in items.items()
    }
    made: TensorDict = objects.build_tensordict(
        entries, batch_size=size, device=None if device is None else "cpu"
    )
    return made


def _jagged(content: tuple[Any, int]) -> torch.Tensor:
    parts, dim = content
    values, offsets, *lengths = [deserialize_single_tensor(part) for part in parts]
    return build_jagged(values, offsets, dim, lengths[0] if lengths else None)


_MADE_OF: dict[str, Callable[[Any], Any]] = {
    "jagged": _jagged,
    "unbatched": lambda content: reduce.restore_unbatched(deserialize_single_tensor(content)),
    "tensor": deserialize_single_tensor,
    "stack": objects.stack_rows,
    "tensordict": deserialize_tensordict,
}
