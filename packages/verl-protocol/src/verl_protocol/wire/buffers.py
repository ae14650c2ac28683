"""Bytes of arrays and tensors on their way into a pickle and out of it.

On the way in, the bytes become a `pickle.PickleBuffer` (protocol 5: whoever pickles may keep it out of the
pickle, so nothing is copied), or a bytes object below protocol 5. On the way out, a buffer is either copied
or used as it is; `ReadyBuffer` marks those for which that has been decided.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import version
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

from verl_protocol.errors import InvalidValueError, WireVersionError, short

Bytes: TypeAlias = NDArray[np.uint8]
"""Raw bytes as a 1-D numpy array."""

Readers: TypeAlias = Literal["one", "many", "read_only"]
"""Who reads a buffer: one reader (who may write into it), many (each takes a copy), many that never write."""
_READERS = get_args(Readers)

Reduction: TypeAlias = tuple[Any, ...]
"""What makes a value again, as `object.__reduce__` gives it: a function, its arguments, and so on."""

Part: TypeAlias = Callable[[Any], Any]
"""Gives the form in which a value inside another one goes into the pickle."""

SMALL_BYTES = 256
"""Fewer bytes than this stay inside the pickle: a buffer of its own would cost more than the copy."""

_ALIGNMENT = 16


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


def checked_readers(readers: Readers) -> Readers:
    """`readers`, if it is one of them.

    Raises:
        InvalidValueError: it is not.
    """
    if readers not in _READERS:
        raise InvalidValueError(f"readers must be 'one', 'many' or 'read_only', got {short(readers)}")
    return readers


def ready_buffers(buffers: Iterable[Any], readers: Readers) -> list[ReadyBuffer]:
    """Buffers as they came with a pickle, made ready for readers of this kind."""
    known = checked_readers(readers)
    return [_ready(buffer, known) for buffer in buffers]


def _ready(buffer: Any, readers: Readers) -> ReadyBuffer:
    view: Bytes = np.frombuffer(buffer, np.uint8)
    if readers == "many":
        return (view if type(buffer) is bytearray else view.copy()).view(ReadyBuffer)
    if view.__array_interface__["data"][0] % _ALIGNMENT:
        view = view.copy()
    elif not view.flags.writeable and readers != "read_only":
        view = writable_view(view)
    return view.view(ReadyBuffer)


class _WritableMemory:
    """The memory of a read-only array, offered as writable; it keeps the array alive."""

    def __init__(self, array: Bytes) -> None:
        self._array = array
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}


def writable_view(array: Bytes) -> Bytes:
    """The same memory as a writable array: torch knows no read-only tensors and warns about such memory."""
    return np.asarray(_WritableMemory(array))


# --- The version that every payload begins with ---------------------------------------------------------


WIRE_VERSION = 5
"""The format that this release writes, and the only one that it reads."""


def checked_version(found: object) -> object:
    """`found`, if this release reads that format.

    Raises:
        WireVersionError: it does not.
    """
    if found != WIRE_VERSION:
        raise WireVersionError(
            f"the payload is in wire format {found!r}, but verl-protocol {version('verl-protocol')} reads "
            f"wire format {WIRE_VERSION}; write and read it with the same release"
        )
    return found


@cache
def checked_head(version: int) -> bytes:
    """How every payload begins: opcodes that call `checked_version` before anything else is read."""
    return b"\x80\x05cverl_protocol.wire.buffers\nchecked_version\nI%d\n\x85R0" % version


class SelfReduced:
    """What has a `__reduce__` of its own and is no tensor, array or batch: our picklers ask no further."""
