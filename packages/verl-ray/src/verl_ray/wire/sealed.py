"""Messages and answers: pickled ahead of Ray, opened by their reader, who knows what it will do with them.

What is read of a future is often only some rows of a part, or is put together from several parts. So a part
arrives as it lies in Ray's store, is cut and joined by views, and what then still lies in the store is copied
at the end: each row that is read once, and none where the reader said that it only reads.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
from verl_protocol import DataProtoFuture
from verl_protocol.columns.walk import leaves
from verl_protocol.futures.any_batch import num_rows_of
from verl_protocol.futures.parts import PartSpan
from verl_protocol.kinds import is_tensor
from verl_protocol.wire import loads
from verl_protocol.wire.buffers import Readers

from verl_ray.wire.refs import dumps_ahead, loads_beside

T = TypeVar("T")
Fields: TypeAlias = tuple[Any, list[Any], list[Any], Readers | None]
_LARGE_BYTES = 65536
"""A pickle of more bytes is a buffer of its own: Ray does not copy those."""

_SMALL_BYTES = 8192
"""A buffer of fewer bytes is copied into the pickle, which costs less than what Ray does for a buffer."""


class Payload:
    """A value that is pickled, for whoever opens it, still in the memory in which it came.

    Args:
        data: the pickle.
        buffers: its buffers.
        refs: the references in it, as only those count that Ray pickles itself.
        readers: how it must be opened; None leaves that to the reader.
    """

    __slots__ = ("_buffers", "_data", "_readers", "_refs")

    def __init__(
        self, data: Any, buffers: Sequence[Any], refs: list[Any], readers: Readers | None = None
    ) -> None:
        self._data, self._buffers, self._refs = data, buffers, refs
        self._readers: Readers | None = readers

    def open(self, readers: Readers) -> Any:
        """The value; see `verl_protocol.wire.loads`."""
        return loads_beside(self._refs, self._data, self._buffers, self._readers or readers)

    def spans(self) -> list[tuple[int, int]]:
        """First and last address of its memory, buffer by buffer."""
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in self._buffers]
        return [(_address(array), _address(array) + array.nbytes) for array in arrays if array.nbytes]

    def result(self, timeout: float | None = None) -> Payload:
        """Itself: as part of a future it is there already."""
        return self

    def fields(self) -> Fields:
        """What it is made of, in a tuple: Ray pickles that in half the time, where both sides know of it."""
        data = pickle.PickleBuffer(self._data) if len(self._data) > _LARGE_BYTES else self._data
        return data, [pickle.PickleBuffer(buffer) for buffer in self._buffers], self._refs, self._readers

    def __reduce__(self) -> tuple[Any, ...]:
        return Payload, self.fields()


def sealed(value: object) -> Payload:
    """The value, pickled: what cannot be pickled shows here."""
    return Payload(*dumps_ahead(value))


def compact(value: object, readers: Readers = "one") -> Payload | bytes:
    """As `sealed`; as bytes, which Ray carries without a pickle of its own, where little is in the value.

    Args:
        value: what is pickled.
        readers: how it must be opened.
    """
    # Whoever only reads may not write into small arrays either, and numpy tells of that in a buffer only.
    in_band_bytes = 0 if readers == "read_only" else _SMALL_BYTES
    data, buffers, refs = dumps_ahead(value, in_band_bytes)
    if buffers or refs or len(data) > _LARGE_BYTES or readers != "one":
        return Payload(data, buffers, refs, readers)
    return data


def opened_compact(value: Any) -> Any:
    """The value itself of what came `compact`; anything else may be bytes that are no pickle."""
    return loads(value) if isinstance(value, bytes) else opened(value, "one")


def opened(value: Any, readers: Readers = "many") -> Any:
    """The value itself, also where it came `sealed`; see `verl_protocol.wire.loads`."""
    return value.open(readers) if isinstance(value, Payload) else value


def opened_batch(value: Any, readers: Readers) -> Any:
    """The batch itself, also where it came sealed.

    Raises:
        InvalidTypeError: it is something else.
    """
    made = opened(value, readers)
    num_rows_of(made)
    return made


class SealedFuture(DataProtoFuture[Any]):
    """A future whose parts may be sealed.

    Attributes:
        read_only: whether what is read may lie in memory that others read too; `read` then remembers it.
        read: what was read of this future, and of all pieces of it, in this process.
    """

    read_only: bool = False
    read: Sequence[Any] = ()

    def _made_of(self, spans: Any, counts: Sequence[int], values: Sequence[Any]) -> tuple[Any, int]:
        if self.tells_rows and is_one_whole_part(spans, counts) and isinstance(values[0], Payload):
            # As layouts often are alike, this is worth a shorter way: nothing is cut, joined or copied later.
            made = values[0].open("read_only" if self.read_only else "many")
            if num_rows_of(made) == spans[0].stop:
                return self._remembered(made), self._rows_before(counts)
        arrived = [value for value in values if isinstance(value, Payload)]
        # A function of the user's that puts parts together may write into them.
        safe = self.tells_rows
        parts = [opened(value, "one" if safe else "many") for value in values]
        made, num_rows = super()._made_of(spans, counts, parts)
        if not (arrived and safe):
            return made, num_rows
        return self._remembered(settled(made, arrived, self.read_only)), num_rows

    def _remembered(self, made: Any) -> Any:
        if isinstance(self.read, list):
            self.read.append(made)
        return made


def is_one_whole_part(spans: Sequence[PartSpan] | None, counts: Sequence[int]) -> bool:
    """Whether these are all rows of one part, of parts with so many rows."""
    return (
        spans is not None
        and len(spans) == 1
        and spans[0].start == 0
        and spans[0].stop == counts[spans[0].part]
    )


def settled(value: T, arrived: Sequence[Payload], read_only: bool) -> T:
    """The value made of views of these; without tensors and arrays in their memory, unless `read_only`."""
    spans = [span for each in arrived for span in each.spans()]
    if not read_only and not any(_lies_in(_place(leaf), spans) for _, leaf in leaves(value)):
        return value
    data, buffers, refs = dumps_ahead(value)
    ready = buffers if read_only else [_own(buffer, spans) for buffer in buffers]
    again: T = loads_beside(refs, data, ready, "read_only" if read_only else "one")
    return again


def _own(buffer: Any, spans: Sequence[tuple[int, int]]) -> Any:
    array = np.frombuffer(buffer, np.uint8)
    return array.copy() if _lies_in(_address(array), spans) else buffer


def _lies_in(address: int, spans: Sequence[tuple[int, int]]) -> bool:
    return any(first <= address < last for first, last in spans)


def _place(leaf: Any) -> int:
    if is_tensor(leaf):
        import torch

        return 0 if leaf.layout is not torch.strided or leaf.is_nested else leaf.data_ptr()
    return _address(leaf)


def _address(array: Any) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
