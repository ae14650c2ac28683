"""Bytes of tensors and arrays on their way into a pickle and out of it.

On the way in, the bytes become a `pickle.PickleBuffer` (protocol 5: whoever pickles may keep it out of the
pickle, so nothing is copied), or a bytes object below protocol 5. On the way out, a buffer is either copied
or used as it is; `ReadyBuffer` marks those for which that has been decided.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.dense import as_plain

Bytes: TypeAlias = NDArray[np.uint8]
"""Raw bytes as a 1-D numpy array."""

Readers: TypeAlias = Literal["one", "many", "read_only"]
"""Who reads a buffer: one reader (who may write into it), many (each takes a copy), many that never write."""

SMALL_BYTES = 256
"""Fewer bytes than this stay inside the pickle: a buffer of its own would cost more than the copy."""

_ALIGNMENT = 16

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


def array_bytes(array: NDArray[Any]) -> Bytes:
    """The bytes of an array without objects: a view where the array is C-contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # A read-only PickleBuffer would come back as an object that no reader may write into.
    return flat if flat.flags.writeable else writable_view(flat)


def outgoing(data: Bytes, protocol: int) -> pickle.PickleBuffer | bytearray | bytes | None:
    """The form in which bytes go into a pickle of this protocol."""
    if not data.size:
        return None
    if protocol < 5:
        return data.tobytes()
    return pickle.PickleBuffer(data.data) if data.size >= SMALL_BYTES else bytearray(data)


class ReadyBuffer(np.ndarray[Any, Any]):
    """Bytes that the reader of a pickle may use as they are, without another copy."""


def incoming(data: Any) -> Bytes:
    """Bytes from a pickle, writable and shared with nobody, unless a `ReadyBuffer` says otherwise."""
    if type(data) is ReadyBuffer:
        return data.view(np.ndarray)
    # Only the unpickler makes bytearrays, and it makes each for one reader.
    view: Bytes = np.frombuffer(data, np.uint8)
    return view if type(data) is bytearray else view.copy()


def ready_buffers(buffers: Iterable[Any], readers: Readers) -> list[ReadyBuffer]:
    """Buffers as they came with a pickle, made ready for readers of this kind."""
    return [_ready(buffer, readers) for buffer in buffers]


def _ready(buffer: Any, readers: Readers) -> ReadyBuffer:
    view: Bytes = np.frombuffer(buffer, np.uint8)
    if readers == "many":
        return (view if type(buffer) is bytearray else view.copy()).view(ReadyBuffer)
    address = _address_of(view)
    if address % _ALIGNMENT:
        view = view.copy()
    elif not view.flags.writeable and readers != "read_only":
        view = writable_view(view, address)
    return view.view(ReadyBuffer)


def _address_of(array: Bytes) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class _WritableMemory:
    """The memory of a read-only array, offered as writable; it keeps the array alive."""

    def __init__(self, array: Bytes, address: int) -> None:
        self._array = array
        self.__array_interface__ = {
            "data": (address, False),
            "shape": array.shape,
            "typestr": "|u1",
            "version": 3,
        }


def writable_view(array: Bytes, address: int | None = None) -> Bytes:
    """The same memory as a writable array: torch knows no read-only tensors and warns about such memory."""
    return np.asarray(_WritableMemory(array, _address_of(array) if address is None else address))


def as_tensor(data: Bytes, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    """A tensor over these bytes."""
    if not data.flags.writeable:
        data = writable_view(data)
    numpy_dtype = _NUMPY_DTYPES.get(dtype)
    if numpy_dtype is None:
        return torch.from_numpy(data).view(dtype).view(shape)
    # The same views by way of numpy take a third of the time.
    return torch.from_numpy(data.view(numpy_dtype).reshape(shape))


def as_array(data: Bytes, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[Any]:
    """An array over these bytes."""
    return data.view(dtype).reshape(shape)
