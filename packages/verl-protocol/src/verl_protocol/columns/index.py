"""One place where row indices of every kind become one of two forms: a `range` or an int64 tensor."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.errors import InvalidIndexError, RowOutOfRangeError, counted

RowIndex: TypeAlias = range | torch.Tensor
"""What row operations take: a range (a view) or an int64 CPU tensor (a copy), nothing negative."""

IndexLike: TypeAlias = "slice | range | Iterable[Any] | NDArray[Any] | torch.Tensor"
"""What users may write for several rows: slice, range, list, tuple, array, tensor or boolean mask."""


def is_single_row(index: object) -> bool:
    """Whether `index` names one row: an int, a numpy int, or a tensor or array of no dimension."""
    if isinstance(index, (bool, np.bool_)):
        return False
    if isinstance(index, (int, np.integer)):
        return True
    return isinstance(index, (torch.Tensor, np.ndarray)) and index.ndim == 0


def normalise_row(index: Any, num_rows: int) -> int:
    """The place of one row, counted from the start.

    Raises:
        RowOutOfRangeError: `index` is not in `[-num_rows, num_rows)`.
        InvalidIndexError: `index` is no whole number.
    """
    if isinstance(index, (torch.Tensor, np.ndarray)):
        index = index.item()
    if isinstance(index, (bool, np.bool_)):
        raise InvalidIndexError(index, "a single bool is neither a row nor a mask")
    try:
        row = operator.index(index)
    except TypeError:
        raise InvalidIndexError(index, f"{type(index).__name__} is not a whole number") from None
    if not -num_rows <= row < num_rows:
        raise RowOutOfRangeError(row, num_rows)
    return row + num_rows if row < 0 else row


def normalise_index(index: IndexLike, num_rows: int) -> RowIndex:
    """Rows named in any way, as a range (for a slice or range) or as an int64 CPU tensor.

    Raises:
        RowOutOfRangeError: a row is not in `[-num_rows, num_rows)`.
        InvalidIndexError: a boolean mask has not one entry per row.
        InvalidIndexError: the index has the wrong type or more than one dimension.

    >>> normalise_index(slice(1, None), 3)
    range(1, 3)
    >>> normalise_index([-1, 0], 3)
    tensor([2, 0])
    """
    if isinstance(index, slice):
        try:
            return range(*index.indices(num_rows))
        except (TypeError, ValueError):
            reason = "the ends of a slice must be whole numbers, and its step other than 0"
            raise InvalidIndexError(index, reason) from None
    if isinstance(index, range):
        return _normalise_range(index, num_rows)
    rows = _as_vector(index)
    if rows.dtype == torch.bool:
        return _rows_of_mask(rows, num_rows)
    return _checked(rows, num_rows)


def _normalise_range(index: range, num_rows: int) -> RowIndex:
    if len(index) == 0:
        return range(0)
    lowest, highest = min(index[0], index[-1]), max(index[0], index[-1])
    if lowest < -num_rows or highest >= num_rows:
        raise RowOutOfRangeError(lowest if lowest < -num_rows else highest, num_rows)
    if lowest < 0 <= highest:
        return _checked(torch.tensor(index), num_rows)
    shift = num_rows if lowest < 0 else 0
    return range(index.start + shift, index.stop + shift, index.step)


def _as_vector(index: Any) -> torch.Tensor:
    """Rows as they were named, as int64, or a mask."""
    if isinstance(index, torch.Tensor):
        if index.is_floating_point() or index.is_complex():
            raise _no_rows(index, index.dtype)
        array: NDArray[Any] = index.detach().cpu().numpy()
    elif isinstance(index, np.ndarray):
        array = _array_of(index.tolist()) if index.dtype == object else index
    elif isinstance(index, str):
        raise InvalidIndexError(index, "a column is read with .batch[key], .tensor(key) or .column(key)")
    elif isinstance(index, (bytes, AbstractSet, Mapping)) or not isinstance(index, Iterable):
        raise InvalidIndexError(index, "rows are named by a slice, range, sequence, array, tensor or mask")
    else:
        array = _array_of(list(index))
    if array.ndim != 1:
        raise InvalidIndexError(index, f"it has {array.ndim} dimensions, not 1")
    if array.size and array.dtype.kind not in "biu":
        raise _no_rows(index, array.dtype)
    if array.dtype.kind == "u":
        # Beyond the largest int64 a number would become negative, and so a row from the end.
        array = np.minimum(array.astype(np.uint64), np.uint64(_LARGEST))
    # Copied, as torch takes no memory that must not be written to.
    return torch.from_numpy(array.astype(bool if array.dtype == bool else np.int64))


def _no_rows(index: object, dtype: object) -> InvalidIndexError:
    return InvalidIndexError(index, f"{dtype} is neither whole numbers nor bools")


_LARGEST = 2**63 - 1


def _array_of(items: list[Any]) -> NDArray[Any]:
    bools = [isinstance(item, (bool, np.bool_)) or _is_bool_tensor(item) for item in items]
    if any(bools):
        if not all(bools):
            raise InvalidIndexError(items, "bools and numbers are mixed")
        return np.array([bool(item) for item in items], dtype=bool)
    try:
        numbers = [operator.index(item) for item in items]
    except TypeError:
        raise InvalidIndexError(items, "not all entries are whole numbers") from None
    return np.array([min(max(number, -_LARGEST), _LARGEST) for number in numbers], dtype=np.int64)


def _is_bool_tensor(item: object) -> bool:
    return isinstance(item, torch.Tensor) and item.dtype == torch.bool


def _rows_of_mask(mask: torch.Tensor, num_rows: int) -> torch.Tensor:
    if mask.numel() != num_rows:
        entries = "1 entry" if mask.numel() == 1 else f"{mask.numel()} entries"
        reason = f"the mask has {entries} for {counted(num_rows, 'row')}: it needs one per row"
        raise InvalidIndexError(mask, reason)
    return mask.nonzero().flatten()


def _checked(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    if rows.numel() == 0:
        return rows
    lowest, highest = (int(end) for end in rows.aminmax())
    if lowest < -num_rows or highest >= num_rows:
        raise RowOutOfRangeError(lowest if lowest < -num_rows else highest, num_rows)
    return torch.where(rows < 0, rows + num_rows, rows) if lowest < 0 else rows
