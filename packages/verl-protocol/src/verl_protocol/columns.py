"""What users hand in as columns, checked and brought into the form that a batch holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import jagged, nested, rows
from verl_protocol.errors import (
    ColumnTypeError,
    DeviceMixError,
    KeyCollisionError,
    RowCountError,
    ScalarColumnError,
    StridedNestedError,
)
from verl_protocol.jagged import is_jagged


def tensor_columns(tensors: Mapping[str, Any] | None) -> dict[str, torch.Tensor]:
    """`tensors` as a dict of its own.

    Raises:
        ColumnTypeError, ScalarColumnError, StridedNestedError: a value that has no rows, by its key.
        DeviceMixError: tensors on several devices.
    """
    checked = {key: _tensor_column(key, value) for key, value in (tensors or {}).items()}
    devices = {key: str(column.device) for key, column in checked.items() if isinstance(column, torch.Tensor)}
    if len(set(devices.values())) > 1:
        raise DeviceMixError(devices)
    return checked


def _tensor_column(key: str, value: Any) -> Any:
    if nested.is_tensordict(value):
        return value
    if not isinstance(value, torch.Tensor):
        raise ColumnTypeError(
            key, value, "a tensor column must be a torch.Tensor; other rows go to non_tensors"
        )
    if value.is_nested and not is_jagged(value):
        raise StridedNestedError(key)
    if value.ndim == 0:
        raise ScalarColumnError(key)
    return value


def array_columns(non_tensors: Mapping[str, Any] | None) -> dict[str, NDArray[Any]]:
    """`non_tensors` as arrays in a dict of its own; a list becomes a 1-D column of the very objects in it.

    Raises:
        ColumnTypeError, ScalarColumnError: a value that has no rows, by its key.
    """
    return {key: array_column(key, value) for key, value in (non_tensors or {}).items()}


def array_column(key: str, value: Any) -> NDArray[Any]:
    """One non-tensor column: an array as it is, a list or other sequence as a 1-D array of objects."""
    if isinstance(value, np.ndarray):
        if value.ndim == 0:
            raise ScalarColumnError(key)
        return value
    if isinstance(value, (str, bytes)):
        raise ColumnTypeError(key, value, "a string is not a column; wrap it in a list, one entry per row")
    if isinstance(value, torch.Tensor):
        raise ColumnTypeError(key, value, "a tensor is no non-tensor column; hand it in under tensors")
    if not isinstance(value, Sequence):
        raise ColumnTypeError(key, value, "a column is a list or an array with one entry per row")
    return nested.object_column(value)


def check_columns(
    tensors: Mapping[str, Any], non_tensors: Mapping[str, NDArray[Any]], num_rows: int | None = None
) -> int:
    """The number of rows that all columns share.

    Args:
        num_rows: the number of rows that is known beforehand.

    Raises:
        KeyCollisionError: a key names a tensor and a non-tensor column.
        RowCountError: the numbers of rows differ.
    """
    if common := sorted(set(tensors) & set(non_tensors)):
        raise KeyCollisionError(common, "a tensor column and a non-tensor column")
    counts = {
        key: rows.num_rows(column) for columns in (tensors, non_tensors) for key, column in columns.items()
    }
    found = set(counts.values()) | ({num_rows} if num_rows is not None else set())
    if len(found) > 1:
        raise RowCountError(counts if num_rows is None else {"batch": num_rows, **counts})
    return found.pop() if found else 0


def column_of(items: Sequence[Any], like: NDArray[Any] | None = None) -> NDArray[Any]:
    """The column whose rows are `items`.

    Its dtype is that of `like`, else the one that all items share as numpy scalars, else object.
    """
    if like is None:
        dtypes = {item.dtype if isinstance(item, np.generic) else None for item in items}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        # The dtype of one string is as wide as that string, so that strings do not share one.
        numeric = dtype is not None and dtype.kind not in "USV"
        return np.array(items, dtype=dtype) if numeric else nested.object_column(items)
    if like.dtype == object and like.ndim == 1:
        return nested.object_column(items)
    column = np.empty((len(items), *like.shape[1:]), dtype=like.dtype)
    for row, item in enumerate(items):
        column[row] = item
    return column


def jagged_of(row_tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """A jagged tensor of these rows, which differ along dimension `dim` of the whole (1 is a row's first)."""
    lengths = torch.tensor([row.shape[dim - 1] for row in row_tensors], dtype=torch.int64)
    values = jagged.concat_dense(row_tensors, dim - 1)
    return jagged.build_jagged(values, jagged.offsets_of(lengths).to(values.device), dim)
