"""An answer whose tensors stay in the worker's memory: how it is taken apart for Ray Direct Transport.

Ray moves the bare tensors that it meets while it pickles an answer, and nothing else. So the answer is
pickled here, every dense tensor on the transport's device is left out of that pickle, and Ray gets the pickle
with a list of flat byte tensors beside it: those can be sent whatever their dtype, shape and strides were.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from verl_protocol.wire.encoder import Encoder
from verl_protocol.wire.reduce import dtype_name, dtype_named, is_plain

from verl_ray.wire.refs import CloudPickler

_DEVICES = {"gloo": "cpu", "nccl": "cuda"}

T = TypeVar("T")


class DirectAnswer:
    """A value on its way; what is read back is the value itself.

    Read in the process that made it, it has the very tensors that were returned: see `private_copy`.

    Args:
        value: the answer.
        transport: how its tensors will move. Those on the transport's device stay where they are; others
            travel through the store.
    """

    def __init__(self, value: object, transport: str) -> None:
        self._value, self._device = value, _device_of(transport)

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled here and not before, so that references inside count for the pickle around.
        return _put_together, _taken_apart(self._value, self._device)


def private_copy(value: T, transport: str) -> T:
    """The value with tensors of its own: for a reader in the process that made it."""
    data, buffers, left = _taken_apart(value, _device_of(transport))
    copy: T = _put_together(data, buffers, [tensor.clone() for tensor in left])
    return copy


def _device_of(transport: str) -> str:
    # nixl moves either kind; what matters is where a worker has its tensors.
    return _DEVICES.get(transport) or ("cuda" if torch.cuda.is_available() else "cpu")


@dataclass(frozen=True, slots=True)
class _Left:
    """Stands in the pickle for the byte tensor of this index beside it."""

    index: int


class _Leaving(CloudPickler):  # type: ignore[misc]
    """Leaves out the tensors on one kind of device, and keeps their bytes in `left`."""

    def __init__(self, stream: io.BytesIO, device: str, buffers: list[pickle.PickleBuffer]) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffers.append)
        self._device, self._encoder = device, Encoder(5, asked=True)
        self._index_of: dict[tuple[Any, ...], int] = {}
        self._seen: list[torch.Tensor] = []  # so that their addresses cannot come to mean others
        self.left: list[torch.Tensor] = []

    def persistent_id(self, obj: Any) -> int | None:
        return obj.index if type(obj) is _Left else None

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, torch.Tensor) and obj.device.type == self._device and is_plain(obj):
            return _restored, (_Left(self._leave(obj)), dtype_name(obj.dtype), tuple(obj.shape))
        reduction = self._encoder.reduce(obj)
        return super().reducer_override(obj) if reduction is None else reduction

    def _leave(self, tensor: torch.Tensor) -> int:
        """The index of the tensor's bytes; what are two names for one tensor (tied weights) still are."""
        view = (tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())
        name = (tensor.data_ptr() or id(tensor), tensor.dtype, *view)
        if name not in self._index_of:
            self._index_of[name] = len(self.left)
            self.left.append(_flat_bytes(tensor))
            self._seen.append(tensor)
        return self._index_of[name]


class _Finding(pickle.Unpickler):
    """Puts the byte tensors back where they were left out."""

    def __init__(self, data: bytes, buffers: Sequence[Any], left: Sequence[torch.Tensor]) -> None:
        super().__init__(io.BytesIO(data), buffers=buffers)
        self._left = left

    def persistent_load(self, pid: int) -> torch.Tensor:
        return self._left[pid]


def _taken_apart(value: object, device: str) -> tuple[bytes, list[pickle.PickleBuffer], list[torch.Tensor]]:
    stream, buffers = io.BytesIO(), []  # type: ignore[var-annotated]
    pickler = _Leaving(stream, device, buffers)
    pickler.dump(value)
    return stream.getvalue(), buffers, pickler.left


def _put_together(data: bytes, buffers: Sequence[Any], left: Sequence[torch.Tensor]) -> Any:
    return _Finding(data, buffers, left).load()


def _flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _restored(flat: torch.Tensor, dtype: str, shape: Sequence[int]) -> torch.Tensor:
    return flat.view(dtype_named(dtype)).view(shape)
