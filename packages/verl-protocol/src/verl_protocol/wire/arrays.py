"""How one numpy array is written into a pickle and made again, as `reduce` does for tensors."""

from __future__ import annotations

from functools import cache
from operator import countOf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_protocol.columns.objects import fill_objects, object_column
from verl_protocol.wire.buffers import Part, Reduction, array_bytes, incoming, outgoing

_SEPARATOR = "\0"
"""Stands between the strings of a column that travels as one; no column that holds it travels so."""

_SHORT = 64
"""Up to this mean length strings travel as one. Rows may share one longer object, which is then sent once."""


def reduce_array(array: NDArray[Any], protocol: int, part: Part) -> Reduction | None:
    """The reduction of a plain numpy array; None for those whose bytes do not say it all."""
    if array.dtype == object:
        return _reduce_objects(array, part)
    if array.dtype.hasobject or array.dtype.kind == "T":
        return None
    return restore_array, (_dtype_form(array.dtype), array.shape, outgoing(array_bytes(array), protocol))


@cache
def _dtype_form(dtype: np.dtype[Any]) -> Any:
    """The dtype's short name where that says it all, else (records, dtypes of other packages) the dtype."""
    return dtype.str if dtype.kind in "biufcmMSU" and np.dtype(dtype.str) == dtype else dtype


def restore_array(dtype: Any, shape: tuple[int, ...], data: Any) -> NDArray[Any]:
    """An array from its bytes, or from None where it has none."""
    known = np.dtype(dtype)
    return np.empty(shape, known) if data is None else incoming(data).view(known).reshape(shape)


def _reduce_objects(array: NDArray[Any], part: Part) -> Reduction:
    items = array.ravel().tolist()
    text = _joined(items)
    if text is not None:
        return restore_strings, (text, array.shape)
    # The array is there before what it holds is, which may be the array itself.
    return np.empty, (array.shape, object), part(items), None, None, fill_objects


def _joined(items: list[Any]) -> str | None:
    """Items that all are short strings as one string, which pickles in half the time; None for all others."""
    # A subclass of str must arrive as what it is, so joining is no test.
    if not items or type(items[0]) is not str or countOf(map(type, items), str) < len(items):
        return None
    text = _SEPARATOR.join(items)
    if len(text) > _SHORT * len(items):
        return None
    # numpy counts in a quarter of the time that str.count takes; UTF-8 has this byte for nothing else.
    data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    return text if np.count_nonzero(data == 0) == len(items) - 1 else None


def restore_strings(text: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of strings that were joined to one."""
    return restore_objects(text.split(_SEPARATOR), shape)


def restore_objects(items: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of these very objects, whatever their own shapes."""
    return object_column(items).reshape(shape)
