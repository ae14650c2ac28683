"""How one tensor is written into a pickle, and how it is made again.

Every function `reduce_*` answers as `object.__reduce__` does: a function of this module and its arguments.
They hold plain values and raw bytes, so any dtype travels, nothing is allocated on a device unless asked for,
and a view ships only its own bytes. None stands for "pickle it as usual".
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.columns.dense import as_plain
from verl_protocol.columns.jagged import build_jagged, jagged_parts
from verl_protocol.columns.objects import ArrayForm, array_form, build_tensordict, payload_of, stack_rows
from verl_protocol.columns.remote import ColumnForm, Piece, RemoteColumn
from verl_protocol.errors import UnknownDtypeError
from verl_protocol.kinds import is_jagged, is_tensordict, is_unbatched
from verl_protocol.wire.buffers import Bytes, Part, Reduction, incoming, outgoing, writable_view
from verl_protocol.wire.guard import GUARD_ATTRIBUTE

# --- The bytes of a tensor, and a tensor over bytes -------------------------------------------------------


_NUMPY_DTYPES: dict[torch.dtype, Any] = {
    getattr(torch, name): np.dtype(name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
} | {torch.complex64: np.dtype("complex64"), torch.complex128: np.dtype("complex128")}
"""Dtypes that numpy knows too; for the others (bf16, fp8, ...) bytes need no name."""


def tensor_bytes(tensor: torch.Tensor) -> Bytes:
    """The bytes of a dense tensor, row by row: a view where the tensor is contiguous and on the CPU."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    if not plain.is_cpu:
        plain = plain.contiguous().cpu()
    if not plain.is_contiguous():
        plain = as_plain(plain).contiguous().view(plain.dtype)
    if plain.dtype not in _NUMPY_DTYPES:
        plain = plain.reshape(-1).view(torch.uint8)
    array: NDArray[Any] = plain.numpy()
    return array.reshape(-1).view(np.uint8)


def as_tensor(data: Bytes, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over these bytes."""
    if not data.flags.writeable:
        data = writable_view(data)
    numpy_dtype = _NUMPY_DTYPES.get(dtype)
    if numpy_dtype is None:
        return torch.from_numpy(data).view(dtype).view(shape)
    # The same views by way of numpy take a third of the time.
    return torch.from_numpy(data.view(numpy_dtype).reshape(shape))


class _Target(threading.local):
    device: torch.device | None = None
    counted: list[torch.Tensor] | None = None


_target = _Target()


def target_device() -> torch.device | None:
    """The device that this thread loads on, None if it asked for none."""
    return _target.device


def unpickled(
    data: Any, buffers: Sequence[Any], device: torch.device | str | None, counts_writes: bool
) -> tuple[Any, list[torch.Tensor] | None]:
    """The value of a pickle, and the dense tensors that were made for it where these count in-place writes.

    Args:
        data: the pickle.
        buffers: its buffers.
        device: where tensors land; None for the CPU.
        counts_writes: whether tensors count in-place writes, as `wire.guard` needs it.
    """
    before = _target.device, _target.counted
    made: list[torch.Tensor] | None = [] if counts_writes else None
    _target.device, _target.counted = None if device is None else torch.device(device), made
    try:
        if counts_writes and torch.is_inference_mode_enabled():
            # Tensors made under inference mode count no writes.
            with torch.inference_mode(False):
                return pickle.loads(data, buffers=buffers), made
        return pickle.loads(data, buffers=buffers), made
    finally:
        _target.device, _target.counted = before


def reduce_tensor(tensor: torch.Tensor, protocol: int, part: Part) -> Reduction | None:
    """The reduction of a tensor that is not plain; None where only torch can take it apart (sparse, ...)."""
    if is_jagged(tensor):
        return _reduce_jagged(tensor, part)
    if is_unbatched(tensor):
        return restore_unbatched, (part(payload_of(tensor)),)
    if is_dense(tensor) and not has_own_storage_rules(tensor):
        return _reduce_decorated(tensor, part)
    return None


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether dtype, shape and bytes say all about the tensor."""
    if type(tensor) is not torch.Tensor or tensor.requires_grad or tensor.__dict__:
        return False
    return is_dense(tensor)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's elements lie in memory by strides, one number each."""
    return tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)


def has_own_storage_rules(tensor: torch.Tensor) -> bool:
    """Whether the tensor's class keeps its data elsewhere than in a storage of its own (DTensor and such)."""
    kind: Any = type(tensor)
    plain: Any = torch.Tensor
    own = kind.__torch_dispatch__ is not plain.__torch_dispatch__
    return own or torch.nn.parameter.is_lazy(tensor)


@cache
def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name, for example `bfloat16`."""
    return str(dtype).removeprefix("torch.")


@cache
def dtype_named(name: str) -> torch.dtype:
    """The dtype of this name.

    Raises:
        UnknownDtypeError: there is none.
    """
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise UnknownDtypeError(
            f"the payload holds a tensor of dtype {name!r}, which torch {torch.__version__} does not know; "
            "load it with the release of torch that wrote it, or convert the column before sending"
        )
    return dtype


def reduce_dense(tensor: torch.Tensor, protocol: int) -> Reduction:
    """The reduction of a plain tensor: dtype, shape and bytes."""
    shape = tuple(tensor.shape)
    if tensor.is_meta:
        return restore_meta, (dtype_name(tensor.dtype), shape)
    return restore_dense, (dtype_name(tensor.dtype), shape, outgoing(tensor_bytes(tensor), protocol))


def restore_dense(dtype: str, shape: Sequence[int], data: Any) -> torch.Tensor:
    """A dense tensor from its bytes, or from None where it has none."""
    if data is None:
        return torch.empty(shape, dtype=dtype_named(dtype), device=_target.device)
    tensor = as_tensor(incoming(data), dtype_named(dtype), shape)
    return _made(tensor if _target.device is None else tensor.to(_target.device))


def _made(tensor: torch.Tensor) -> torch.Tensor:
    if _target.counted is not None:
        _target.counted.append(tensor)
    return tensor


def restore_meta(dtype: str, shape: Sequence[int]) -> torch.Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype_named(dtype), device="meta")


def restore_alias(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor over the same memory: what were two names for it (tied weights) still are."""
    return _made(tensor.detach())


def _reduce_decorated(tensor: torch.Tensor, part: Part) -> Reduction:
    # A file-backed tensor of tensordict is a path on this machine; what travels is its data.
    kind = torch.Tensor if type(tensor).__name__ == "MemoryMappedTensor" else type(tensor)
    attributes = {} if kind is not type(tensor) else dict(tensor.__dict__)
    attributes.pop(GUARD_ATTRIBUTE, None)
    # A gradient graph stays behind, so only leaves ask for gradients again.
    wants_gradient = tensor.requires_grad and tensor.is_leaf
    with torch._C.DisableTorchFunctionSubclass():
        plain = tensor.detach().as_subclass(torch.Tensor)
    made = restore_decorated, (part(plain), kind, wants_gradient)
    # The tensor is there before its attributes are, which may lead back to it.
    return (*made, attributes, None, None, set_attributes) if attributes else made


def restore_decorated(plain: torch.Tensor, kind: type[torch.Tensor], wants_gradient: bool) -> torch.Tensor:
    """A Parameter, a tensor of a subclass, or one with gradients, from its plain data."""
    with torch._C.DisableTorchFunctionSubclass():
        tensor = plain if kind is torch.Tensor else plain.as_subclass(kind)
        tensor.requires_grad_(wants_gradient)
    return tensor


def set_attributes(tensor: torch.Tensor, attributes: dict[str, Any]) -> None:
    """Give a tensor the attributes that it had."""
    vars(tensor).update(attributes)


def _reduce_jagged(tensor: torch.Tensor, part: Part) -> Reduction:
    values, offsets, lengths, dim = jagged_parts(tensor)
    first, last = int(offsets[0]), int(offsets[-1])
    if lengths is None and (first > 0 or last < values.shape[dim - 1]):
        values, offsets = values.narrow(dim - 1, first, last - first), offsets - first
    extremes = (tensor._maybe_min_seqlen, tensor._maybe_max_seqlen)  # type: ignore[attr-defined]
    values = values.detach() if values.requires_grad else values
    parts = (part(values), part(offsets), None if lengths is None else part(lengths))
    return restore_jagged, (*parts, dim, *extremes)


def restore_jagged(
    values: torch.Tensor,
    offsets: torch.Tensor,
    lengths: torch.Tensor | None,
    dim: int,
    min_length: int | None,
    max_length: int | None,
) -> torch.Tensor:
    """A jagged tensor from the parts it consists of."""
    counting = _target.counted is not None
    return build_jagged(values, offsets, dim, lengths, min_length, max_length, counting)


# --- A remote column in a message to who can read the same store: plain values and references -------------


def described(column: RemoteColumn) -> tuple[Any, ...]:
    """What `restored` makes it of again; the pieces that no row lies in stay behind.

    A message has a dozen pieces a rank, and each object of a class costs a pickler as much as all of them.
    """
    used = column.trimmed()
    kind, dtype, row_shape, device = used.form
    pieces = [tuple(piece) for piece in used.pieces]
    rows = used.rows
    row_map = (rows.start, rows.stop, rows.step) if isinstance(rows, range) else rows
    named = dtype if kind == "array" else dtype_name(dtype)
    return kind, named, row_shape, device and str(device), pieces, row_map


def restored(
    kind: str,
    dtype: Any,
    row_shape: tuple[int | None, ...],
    device: str | None,
    pieces: Sequence[tuple[Any, ...]],
    row_map: Any,
) -> RemoteColumn:
    """The column that was `described` like this."""
    named = dtype if kind == "array" else dtype_named(dtype)
    form = ColumnForm(kind, named, row_shape, None if device is None else torch.device(device))
    made = [tuple.__new__(Piece, piece) for piece in pieces]
    return RemoteColumn(form, made, range(*row_map) if isinstance(row_map, tuple) else row_map)


# --- How a `TensorDict` and its non-tensor data are written into a pickle, and how they are made again ----
# tensordict is imported when one is read: whoever dumps one has imported it already.


def reduce_tensordict(value: Any, part: Part) -> Reduction | None:
    """The reduction of a TensorDict or non-tensor stack; None for anything else."""
    if not is_tensordict(value):
        return None
    from tensordict import NonTensorStack, TensorDict

    if type(value) is TensorDict:
        entries = {key: part(entry) for key, entry in value.items()}
        names = value.names if any(name is not None for name in value.names or ()) else None
        return restore_tensordict, (entries, tuple(value.batch_size), names, value.device is not None)
    if type(value) is NonTensorStack and value.ndim == 1 and len(value):
        form = array_form(value)
        return restore_non_tensor_stack, (part(value.tolist()), *(() if form is None else (form,)))
    return None


def restore_tensordict(
    entries: dict[str, Any], batch_size: tuple[int, ...], names: Any, on_device: bool
) -> Any:
    """An unlocked TensorDict; where the sent one had a device, it has that of the loaded tensors."""
    device = (target_device() or "cpu") if on_device else None
    return build_tensordict(entries, batch_size=batch_size, names=names, device=device)


def restore_unbatched(payload: torch.Tensor) -> Any:
    """One tensor for all rows of a TensorDict, which tells it their number when it is put there."""
    import tensordict

    kind: Any = tensordict.UnbatchedTensor
    return kind(payload)


def restore_non_tensor_stack(items: list[Any], form: ArrayForm | None = None) -> Any:
    """Non-tensor data of one entry per row."""
    return stack_rows(items, form)
