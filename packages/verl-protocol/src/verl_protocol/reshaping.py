"""Rows multiplied, regrouped or cut further: repeats, folding, column chunks, groups."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import nested, rows
from verl_protocol.arguments import flag, whole_number
from verl_protocol.errors import FoldError, KeyTypeError, RepeatCountsError, UnknownKeyError
from verl_protocol.metadata import without_metrics
from verl_protocol.selecting import Keys, key_list
from verl_protocol.state import check_batch

if TYPE_CHECKING:
    from verl_protocol.batch_rows import BatchRows

B = TypeVar("B", bound="BatchRows")


def repeat(data: B, times: SupportsIndex, interleave: bool, copy_objects: bool) -> B:
    """Every row `times` times."""
    times = whole_number("repeat_times", times, 0)
    interleave, copy_objects = flag("interleave", interleave), flag("copy_objects", copy_objects)
    count = data._row_count() * times
    repeated = data._map_rows(lambda columns: rows.repeat_all(columns, times, interleave), count)
    if copy_objects:
        for column in repeated.non_tensor_batch.values():
            _copy_objects(column)
    return repeated


def _copy_objects(column: NDArray[Any]) -> None:
    if column.dtype == object:
        flat = column.reshape(-1)
        for at, item in enumerate(flat):
            flat[at] = copy.deepcopy(item)


def sample_level_repeat(data: B, repeat_times: Any) -> B:
    """Row i `repeat_times[i]` times."""
    given = repeat_times.tolist() if isinstance(repeat_times, (torch.Tensor, np.ndarray)) else repeat_times
    given = given if isinstance(given, Iterable) else [given]
    counts = [whole_number("repeat_times", times, 0) for times in given]
    if len(counts) != data._row_count():
        raise RepeatCountsError(data._row_count(), len(counts))
    index = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts, dtype=torch.int64))
    return data._map_rows(lambda columns: rows.take_all(columns, index), len(index))


def unfold_column_chunks(data: B, n_split: SupportsIndex, split_keys: Keys) -> B:
    """Cut the columns `split_keys` into `n_split` pieces along dim 1, one row each; repeat the others."""
    n_split, count = whole_number("n_split", n_split, 1), data._row_count()
    split = key_list(split_keys)
    known = [*data._columns(), *data.non_tensor_batch]
    if missing := [key for key in split if key not in known]:
        raise UnknownKeyError(missing, "column", known)

    def unfold(columns: Mapping[str, Any]) -> dict[str, Any]:
        kept = {key: column for key, column in columns.items() if key not in split}
        cut = {key: _cut(key, columns[key], n_split) for key in columns if key in split}
        repeated = rows.repeat_all(kept, n_split)
        return {key: cut[key] if key in cut else repeated[key] for key in columns}

    return data._map_rows(unfold, count * n_split)


def _cut(key: str, column: Any, n_split: int) -> Any:
    column = _stacked(key, column)
    width = column.shape[1] if column.ndim > 1 else None
    if width is None or (isinstance(column, torch.Tensor) and column.is_nested):
        raise FoldError(key, f"it has no width that could be cut into {n_split} pieces")
    if width % n_split:
        raise FoldError(key, f"its width {width} does not divide into {n_split} pieces")
    return column.reshape(column.shape[0] * n_split, width // n_split, *column.shape[2:])


def _stacked(key: str, column: Any) -> Any:
    """A 1-D column of equal-length lists as a 2-D array of their entries."""
    if not isinstance(column, np.ndarray) or column.ndim > 1:
        return column
    lists = column.tolist()
    if not all(isinstance(row, (list, tuple, np.ndarray)) for row in lists):
        raise FoldError(key, "its rows are no lists, so they cannot be cut")
    lengths = {len(row) for row in lists}
    if len(lengths) > 1:
        raise FoldError(key, f"its rows have different lengths ({sorted(lengths)}), so they cannot be cut")
    stacked = np.empty((len(lists), lengths.pop() if lengths else 0), dtype=object)
    for at, row in enumerate(lists):
        stacked[at] = nested.object_column(row)
    return stacked


def fold_batch_dim(data: B, new_batch_size: SupportsIndex) -> B:
    """Group the rows of `data` into `new_batch_size` rows: shape (n, ...) becomes (new, n // new, ...).

    Raises:
        FoldError: the rows do not divide, or a column is jagged.

    >>> import torch
    >>> from verl_protocol import DataProto
    >>> data = DataProto.from_dict(tensors={"a": torch.arange(4)})
    >>> fold_batch_dim(data, 2).batch["a"].tolist()
    [[0, 1], [2, 3]]
    """
    check_batch(data)
    new, count = whole_number("new_batch_size", new_batch_size, 1), len(data)
    if count % new:
        raise FoldError(
            None, f"{count} rows do not divide into {new} groups; pad them to a multiple of {new}"
        )
    return _reshape_rows(data, new, lambda key, column: (new, count // new, *column.shape[1:]))


def unfold_batch_dim(data: B, batch_dims: SupportsIndex = 2) -> B:
    """Make one dimension of rows out of the first `batch_dims`: shape (n, k, ...) becomes (n * k, ...).

    Raises:
        FoldError: a column has fewer dimensions, or columns differ in them.
    """
    check_batch(data)
    dims = whole_number("batch_dims", batch_dims, 1)
    if dims == 1:
        return data.slice()
    shapes = {key: tuple(column.shape[:dims]) for key, column in _all_columns(data).items()}
    for key, shape in shapes.items():
        if len(shape) < dims or shape != next(iter(shapes.values())):
            raise FoldError(
                key, f"its first {dims} dimensions are {shape}, others have {list(shapes.values())}"
            )
    count = math.prod(next(iter(shapes.values()), (len(data),)))
    return _reshape_rows(data, count, lambda key, column: (count, *column.shape[dims:]))


def _all_columns(data: BatchRows) -> dict[str, Any]:
    return {**data._columns(), **data.non_tensor_batch}


def _reshape_rows(data: B, num_rows: int, shape: Callable[[str, Any], tuple[int, ...]]) -> B:
    for key, column in _all_columns(data).items():
        if not isinstance(column, np.ndarray) and (not isinstance(column, torch.Tensor) or column.is_nested):
            raise FoldError(key, "only dense tensors and arrays can be regrouped")
    tensors = {key: column.reshape(shape(key, column)) for key, column in data._columns().items()}
    arrays = {key: column.reshape(shape(key, column)) for key, column in data.non_tensor_batch.items()}
    folded = data._with(tensors if data._has_batch() else None, num_rows, arrays)
    folded._pad_mask = None
    return folded


def group_by(data: B, key: str) -> dict[Any, B]:
    """The rows of each value of the column `key`, in order of first appearance."""
    places: dict[Hashable, list[int]] = {}
    for row, value in enumerate(_group_values(data, key)):
        places.setdefault(value, []).append(row)
    groups = {value: data[found] for value, found in places.items()}
    for group in list(groups.values())[1:]:
        group.meta_info = without_metrics(group.meta_info)
    return groups


def _group_values(data: BatchRows, key: str) -> Sequence[Hashable]:
    if not isinstance(key, str):
        raise KeyTypeError(key)
    columns = _all_columns(data)
    if key not in columns:
        raise UnknownKeyError([key], "column", columns)
    column = columns[key]
    if column.ndim != 1 or getattr(column, "is_nested", False):
        raise FoldError(key, "rows can be grouped by a column of scalars or hashable objects only")
    # All NaNs are one group: NaN differs from itself, so a dict would keep each apart.
    nan = float("nan")
    values = [nan if isinstance(value, float) and value != value else value for value in column.tolist()]
    for value in values:
        try:
            hash(value)
        except TypeError as error:
            raise FoldError(key, f"cannot group by {type(value).__name__} values: {error}") from None
    return values
