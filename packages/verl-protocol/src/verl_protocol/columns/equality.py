"""One equality for everything a batch may hold: it always answers, and never raises.

NaN equals NaN; tensors and arrays are equal when dtype, shape and values are; jagged tensors when their rows
and ragged dimension are; containers when their entries are. Devices are not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.columns import dense, jagged
from verl_protocol.kinds import is_jagged, is_tensordict

_Pairs = set[tuple[int, int]]


def equal(first: Any, second: Any) -> bool:
    """Whether two values are the same, whatever they are.

    >>> equal({"a": float("nan")}, {"a": float("nan")})
    True
    >>> equal([torch.ones(2)], [torch.ones(3)])
    False
    """
    return _equal(first, second, set())


def columns_equal(first: Any, second: Any) -> bool:
    """Whether two columns hold the same rows; arrays of objects and of numbers or strings may be compared."""
    both = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
    if both and (first.dtype == object) != (second.dtype == object):
        return first.shape == second.shape and _equal(first.tolist(), second.tolist(), set())
    return _equal(first, second, set())


def first_difference(first: Any, second: Any) -> int | None:
    """The first row in which two columns of equally many rows differ; None where none does."""
    rows = zip(_rows(first), _rows(second), strict=True)
    return next((at for at, (one, other) in enumerate(rows) if not equal(one, other)), None)


def _rows(column: Any) -> Sequence[Any]:
    if isinstance(column, torch.Tensor):
        return column.unbind()
    return column.tolist() if isinstance(column, np.ndarray) and column.ndim == 1 else list(column)


def _equal(first: Any, second: Any, open_pairs: _Pairs) -> bool:
    if first is second:
        return True
    if isinstance(first, torch.Tensor) or isinstance(second, torch.Tensor):
        return (
            isinstance(first, torch.Tensor) and isinstance(second, torch.Tensor) and _tensors(first, second)
        )
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        both = isinstance(first, np.ndarray) and isinstance(second, np.ndarray)
        return both and _arrays(first, second, open_pairs)
    compare = _container_rule(first, second)
    if compare is None:
        return _scalars(first, second)
    pair = (id(first), id(second))
    # A pair that is being compared further up holds itself: it is equal as far as the rest is.
    return pair in open_pairs or compare(first, second, open_pairs | {pair})


def _container_rule(first: Any, second: Any) -> Callable[[Any, Any, _Pairs], bool] | None:
    if is_tensordict(first) and is_tensordict(second):
        return _tensordicts
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return _mappings
    for kind in (list, tuple):
        if isinstance(first, kind) and isinstance(second, kind):
            return _sequences
    same_class = type(first) is type(second) and hasattr(first, "__dataclass_fields__")
    return _dataclasses if same_class else None


def _tensors(first: torch.Tensor, second: torch.Tensor) -> bool:
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


def _arrays(first: NDArray[Any], second: NDArray[Any], open_pairs: _Pairs) -> bool:
    if first.shape != second.shape or first.dtype.kind != second.dtype.kind:
        return False
    if first.dtype == object:
        return _sequences(first.ravel().tolist(), second.ravel().tolist(), open_pairs)
    if first.dtype != second.dtype and first.dtype.kind not in "US":
        return False
    same = first == second
    if first.dtype.kind in "fcmM":
        same = same | (
            np.isnat(first) & np.isnat(second) if first.dtype.kind in "mM" else _nan_pairs(first, second)
        )
    return bool(np.all(same))


def _nan_pairs(first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.isnan(first) & np.isnan(second))


def _tensordicts(first: Any, second: Any, open_pairs: _Pairs) -> bool:
    if first.batch_size != second.batch_size:
        return False
    return _mappings(dict(first.items()), dict(second.items()), open_pairs)


def _mappings(first: Mapping[Any, Any], second: Mapping[Any, Any], open_pairs: _Pairs) -> bool:
    if len(first) != len(second):
        return False
    return all(key in second and _equal(value, second[key], open_pairs) for key, value in first.items())


def _sequences(first: Sequence[Any], second: Sequence[Any], open_pairs: _Pairs) -> bool:
    if len(first) != len(second):
        return False
    return all(_equal(one, other, open_pairs) for one, other in zip(first, second, strict=True))


def _dataclasses(first: Any, second: Any, open_pairs: _Pairs) -> bool:
    names = first.__dataclass_fields__
    return all(_equal(getattr(first, name), getattr(second, name), open_pairs) for name in names)


def _scalars(first: Any, second: Any) -> bool:
    try:
        if bool(first == second):
            return True
        return bool(first != first) and bool(second != second)
    except Exception:
        # Foreign objects may raise anything when compared, or answer with something that has no truth value.
        return False
