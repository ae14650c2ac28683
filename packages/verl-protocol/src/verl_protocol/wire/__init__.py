"""The wire: how batches, and tensors anywhere in a value, are pickled and read back.

`pack` wraps a value so that any pickler ships each of its tensors as one out-of-band buffer; `dumps` and
`loads` do the same without another pickler around. A `DataProto` on its own needs neither: it pickles like
this as it is. A payload says itself how it must be read; nothing in the environment changes that.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from verl_protocol.columns.travel import travelling
from verl_protocol.columns.walk import nbytes_of
from verl_protocol.errors import ReadOnlyWriteError, UnknownDtypeError, WireVersionError
from verl_protocol.wire import buffers as wire_buffers
from verl_protocol.wire.buffers import (
    WIRE_VERSION,
    Readers,
    checked_head,
    checked_readers,
    checked_version,
    ready_buffers,
)
from verl_protocol.wire.guard import check_unwritten, watch
from verl_protocol.wire.pickler import asking_pickler

if TYPE_CHECKING:
    import torch

__all__ = [
    "WIRE_VERSION",
    "Packed",
    "ReadOnlyWriteError",
    "UnknownDtypeError",
    "WireVersionError",
    "check_unwritten",
    "dumps",
    "loads",
    "nbytes_of",
    "pack",
    "unpack",
]


_LARGE_BYTES = 65536


def dumps(
    value: object, *, pickler: type[pickle.Pickler] = pickle.Pickler, in_band_bytes: int = 0
) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """`value` as a pickle (protocol 5) without its tensors and arrays, and their bytes as buffers.

    The buffers are views of the live tensors: nothing has been copied yet.

    Args:
        value: what is pickled.
        pickler: for what is no tensor.
        in_band_bytes: buffers of fewer bytes than this are copied into the pickle.

    >>> import torch
    >>> data, buffers = dumps({"weight": torch.ones(1000)})
    >>> len(buffers), buffers[0].raw().nbytes
    (1, 4000)
    >>> loads(data, buffers)["weight"].sum()
    tensor(1000.)
    """
    stream = io.BytesIO()
    stream.write(checked_head(wire_buffers.WIRE_VERSION))
    buffers: list[pickle.PickleBuffer] = []

    def keep(buffer: pickle.PickleBuffer) -> bool:
        in_band = buffer.raw().nbytes < in_band_bytes
        if not in_band:
            buffers.append(buffer)
        return in_band

    asking: Any = asking_pickler(pickler)  # type: ignore[arg-type]  # mypy takes no class for hashable
    asking(stream, protocol=5, buffer_callback=keep if in_band_bytes else buffers.append).dump(value)
    return stream.getvalue(), buffers


def loads(
    data: Any,
    buffers: Iterable[Any] = (),
    *,
    readers: Readers = "many",
    device: torch.device | str | None = None,
) -> Any:
    """The value of a pickle and its buffers, whether `dumps` made them or any other pickler.

    Args:
        data: the pickle.
        buffers: its out-of-band buffers, in order.
        readers: "many": tensors and arrays are private copies. "one": they are writable views of the buffers.
            "read_only": they are views, of which `check_unwritten` tells whether they were written to.
        device: where tensors land; None for the CPU.

    Raises:
        InvalidValueError: `readers` is none of these.
        WireVersionError: the payload was written in another format.
    """
    ready = ready_buffers(buffers, readers)
    if device is None and readers != "read_only":
        return pickle.loads(data, buffers=ready)
    if device is None and "torch" not in sys.modules:
        value = pickle.loads(data, buffers=ready)
        if "torch" not in sys.modules:
            return value
        # The first tensors that this process meets brought torch; now they are read such as to be watched.
    from verl_protocol.wire.reduce import unpickled

    value, made = unpickled(data, ready, device, readers == "read_only")
    return value if made is None else watch(value, made)


@dataclass(frozen=True, slots=True)
class Packed:
    """A value ready for any pickler; what is read back is the value itself. Made by `pack`."""

    value: Any
    readers: Readers
    pickler: type[pickle.Pickler]
    references: bool = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Pickled here and not before, so that references inside count for the pickle around.
        dump = partial(travelling, dumps) if self.references else dumps
        data, buffers = dump(self.value, pickler=self.pickler)
        if protocol < 5:
            return unpack, ("many", data, [bytes(each.raw()) for each in buffers])
        outer = pickle.PickleBuffer(data) if len(data) > _LARGE_BYTES else data
        return unpack, (self.readers, outer, buffers)


def pack(
    value: object,
    *,
    readers: Readers = "many",
    pickler: type[pickle.Pickler] | None = None,
    references: bool = False,
) -> Packed:
    """`value`, to be pickled with every tensor and array in it as one out-of-band buffer.

    Args:
        value: a batch, TensorDict, state_dict, or anything with tensors and arrays inside.
        readers: how the buffers are read, see `loads`.
        pickler: for what is no tensor; None for `pickle.Pickler`.
        references: whether the reader can read the stores that remote columns lie in: then these stay there.

    Raises:
        InvalidValueError: `readers` is none of those that `loads` knows.

    >>> import torch
    >>> pickle.loads(pickle.dumps(pack({"weight": torch.ones(2)}), protocol=5))
    {'weight': tensor([1., 1.])}
    """
    return Packed(value, checked_readers(readers), pickle.Pickler if pickler is None else pickler, references)


def unpack(readers: Readers, data: Any, buffers: Sequence[Any]) -> Any:
    """The value of a `Packed`; only pickles call this."""
    return loads(data, buffers, readers=readers)


def _open(version: object, value: object) -> object:
    """What payloads of format 4 and before ask for; only pickles call this."""
    return checked_version(version)
