"""One equality for everything a batch may hold: it always answers, and never raises.

NaN equals NaN; tensors and arrays are equal when dtype, shape and values are; jagged tensors when their rows
and ragged dimension are; containers when their entries are. Devices are not compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.columns import dense, jagged
from verl_protocol.errors import short
from verl_protocol.kinds import PLAIN, is_jagged, is_tensordict


def equal(first: Any, second: Any) -> bool:
    """Whether two values are the same, whatever they are.

    >>> equal({"a": float("nan")}, {"a": float("nan")})
    True
    >>> equal([torch.ones(2)], [torch.ones(3)])
    False
    """
    return _all_equal([(first, second)])


def columns_equal(first: Any, second: Any) -> bool:
    """Whether two columns hold the same rows; arrays of objects and of numbers or strings may be compared."""
    both = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    if both and (first.dtype == object) != (second.dtype == object):
        return first.shape == second.shape and _all_equal(
            zip(first.ravel().tolist(), second.ravel().tolist(), strict=True)
        )
    return _all_equal([(first, second)])


def difference(first: Any, second: Any) -> str | None:
    """Where two columns of equally many rows differ, for a message; None where they are the same."""
    if columns_equal(first, second):
        return None
    for row, (one, other) in enumerate(zip(_rows(first), _rows(second), strict=True)):
        if not equal(one, other):
            return f" first in row {row}: {short(one)} and {short(other)}"
    return " in type, dtype or shape"


def _rows(column: Any) -> Sequence[Any]:
    if isinstance(column, torch.Tensor):
        return column.unbind()
    return column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else list(column)


_Pairs: TypeAlias = Iterable[tuple[Any, Any]]


def _all_equal(pairs: _Pairs) -> bool:
    """Whether both values of every pair are equal, and so on inside them."""
    # A pair that was met before is equal as far as all others are: values may hold themselves. What was met
    # is kept, so that its id cannot come to mean another object.
    met: dict[tuple[int, int], tuple[Any, Any]] = {}
    open_ones = [iter(pairs)]
    while open_ones:
        for pair in open_ones[-1]:
            first, second = pair
            if first is second:
                continue
            inside = _pairs_inside(first, second)
            if inside is False:
                return False
            if inside and (id(first), id(second)) not in met:
                met[id(first), id(second)] = pair
                open_ones.append(iter(inside))
                break
        else:
            open_ones.pop()
    return True


def _pairs_inside(first: Any, second: Any) -> _Pairs | Literal[False]:
    """The pairs that must be equal for two values to be so; none where they are, False where they are not."""
    if type(first) in PLAIN and type(second) in PLAIN:
        return _scalars(first, second) and ()
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return _tensors(first, second) and ()
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        return _arrays(first, second)
    if is_tensordict(first) and is_tensordict(second):
        return first.batch_size == second.batch_size and _mappings(dict(first.items()), dict(second.items()))
    for kind in (list, tuple):
        if isinstance(first, kind) and isinstance(second, kind):
            return _sequences(first, second)
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return _mappings(first, second)
    names = getattr(first, "__dataclass_fields__", None)
    if type(first) is type(second) and names is not None:
        return [(getattr(first, name), getattr(second, name)) for name in names]
    return _scalars(first, second) and ()


def _sequences(first: Sequence[Any], second: Sequence[Any]) -> _Pairs | Literal[False]:
    if len(first) != len(second):
        return False
    return () if _are_plain(first, second) and first == second else zip(first, second, strict=True)


def _mappings(first: Mapping[Any, Any], second: Mapping[Any, Any]) -> _Pairs | Literal[False]:
    if first.keys() != second.keys():
        return False
    if _are_plain(first.values(), second.values()) and first == second:
        return ()
    return [(value, second[key]) for key, value in first.items()]


def _are_plain(first: Iterable[Any], second: Iterable[Any]) -> bool:
    return PLAIN.issuperset(map(type, first)) and PLAIN.issuperset(map(type, second))


def _arrays(first: Any, second: Any) -> _Pairs | Literal[False]:
    if not (isinstance(first, np.ndarray) and isinstance(second, np.ndarray)):
        return False
    if first.shape != second.shape or first.dtype.kind != second.dtype.kind:
        return False
    if first.dtype == object:
        return _sequences(first.ravel().tolist(), second.ravel().tolist())
    return _same_values(first, second) and ()


def _tensors(first: Any, second: Any) -> bool:
    if not (isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor)):
        return False
    if first.dtype != second.dtype or first.is_nested != second.is_nested or first.layout != second.layout:
        return False
    try:
        return _jagged(first, second) if is_jagged(first) else _dense(first, second)
    except (RuntimeError, NotImplementedError, ValueError):
        # A layout or device (meta, quantized, sparse) for which torch cannot compare values.
        return False


def _dense(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.is_nested:
        pairs = zip(first.unbind(), second.unbind(), strict=True)
        return first.size(0) == second.size(0) and all(_dense(one, other) for one, other in pairs)
    if first.shape != second.shape:
        return False
    if first.is_meta or second.is_meta:
        return first.is_meta and second.is_meta
    if first.layout is not torch.strided:
        return _dense(first.to_dense(), second.to_dense())
    if first.data_ptr() == second.data_ptr() and first.stride() == second.stride():
        # The same memory, seen twice: a slice of all rows costs nothing to compare.
        return (first.is_conj(), first.is_neg()) == (second.is_conj(), second.is_neg())
    first, second = _on_one_device(first.detach(), second.detach())
    if torch.equal(dense.as_plain(first), dense.as_plain(second)):
        return True
    return (first.is_floating_point() or first.is_complex()) and _equal_with_nan(first, second)


def _on_one_device(first: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (first, second) if first.device == second.device else (first.cpu(), second.cpu())


def _equal_with_nan(first: torch.Tensor, second: torch.Tensor) -> bool:
    if first.element_size() == 1:
        first, second = first.float(), second.float()
    return bool(((first == second) | (first.isnan() & second.isnan())).all())


def _jagged(first: torch.Tensor, second: torch.Tensor) -> bool:
    one, other = jagged.compact_parts(first), jagged.compact_parts(second)
    if one.dim != other.dim or one.offsets.numel() != other.offsets.numel():
        return False
    lengths = _on_one_device(one.row_lengths.to(torch.int64), other.row_lengths.to(torch.int64))
    return torch.equal(*lengths) and _dense(one.values, other.values)


def _same_values(first: NDArray[Any], second: NDArray[Any]) -> bool:
    if first.dtype != second.dtype and first.dtype.kind not in "US":
        return False
    return np.array_equal(first, second, equal_nan=first.dtype.kind in "fcmM")


def _scalars(first: Any, second: Any) -> bool:
    try:
        if bool(first == second):
            return True
        return bool(first != first) and bool(second != second)
    except Exception:
        # Foreign objects may raise anything when compared, or answer with something that has no truth value.
        return False
