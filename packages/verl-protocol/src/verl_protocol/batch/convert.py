"""Batches made from other things and turned into them: rows, items, TensorDicts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.arguments import mapping
from verl_protocol.batch.metadata import copy_meta
from verl_protocol.columns import jagged, objects
from verl_protocol.columns.checks import (
    TWO_KINDS,
    check_disjoint,
    check_keys,
    column_of,
    column_of_tensors,
    key_list,
    no_column,
)
from verl_protocol.errors import ColumnError, InvalidTypeError, InvalidValueError, KeyConflictError, short
from verl_protocol.kinds import is_jagged

if TYPE_CHECKING:
    from tensordict import TensorDict

    from verl_protocol.batch.state import BatchState


DTYPES_KEY = "_array_dtypes"
"""The entry of a TensorDict that names dtype and row shape of array columns which their rows do not tell."""

Ragged: TypeAlias = Collection[str] | Mapping[str, int]
"""Keys of columns ragged in their last dimension, or the ragged dimension of each (1 is a row's first)."""

RaggedDim: TypeAlias = "int | Literal['last'] | None"

_ABSENT = object()


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One list per key from dicts that have the same keys; an empty dict from no dicts.

    Raises:
        KeyConflictError: dicts with different keys.

    >>> list_of_dict_to_dict_of_list([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    for place, entry in enumerate(list_of_dict):
        mapping(f"number {place}", entry)
    if not list_of_dict:
        return {}
    keys = list(list_of_dict[0])
    for place, entry in enumerate(list_of_dict):
        if set(entry) != set(keys):
            found = f"number 0 has {keys}, number {place} {list(entry)}"
            raise KeyConflictError(f"all dicts need the same keys: {found}")
    return {key: [entry[key] for entry in list_of_dict] for key in keys}


def columns_from_rows(
    rows: Sequence[Mapping[str, Any]], ragged: Ragged, fill: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, NDArray[Any]]]:
    """Tensor and non-tensor columns of a list of dicts; keys are united."""
    dims: Mapping[str, RaggedDim] = ragged if isinstance(ragged, Mapping) else _last_of(ragged)
    keys = dict.fromkeys(key for row in [*rows, fill] for key in row) if rows else {}
    held = {key: [row.get(key, fill.get(key, _ABSENT)) for row in rows] for key in keys}
    is_tensor = {key: any(isinstance(value, torch.Tensor) for value in held[key]) for key in keys}
    if objects := [key for key in dims if key in keys and not is_tensor[key]]:
        raise no_column(objects[0], held[objects[0]][0], "only rows that are tensors can be ragged")
    tensors = {key: _tensor_of(key, held[key], dims.get(key)) for key in keys if is_tensor[key]}
    arrays = {
        key: column_of([None if value is _ABSENT else value for value in held[key]])
        for key in keys
        if not is_tensor[key]
    }
    return tensors, arrays


def row_list(rows: Any) -> list[Mapping[str, Any]]:
    """`rows` as a list, after checking that each is a dict whose keys can name columns.

    Raises:
        InvalidTypeError: it is not.
    """
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise InvalidTypeError(f"rows must be a list of dicts, one per row, got {type(rows).__name__}")
    listed = list(rows)
    for place, row in enumerate(listed):
        check_keys(mapping(f"rows[{place}]", row))
    return listed


def _last_of(keys: Collection[str]) -> dict[str, RaggedDim]:
    return dict.fromkeys(key_list(keys), "last")


def _tensor_of(key: str, values: Sequence[Any], dim: RaggedDim) -> torch.Tensor:
    check_all_tensors(key, [None if value is _ABSENT else value for value in values])
    return column_of_tensors(key, values, dim)


def check_all_tensors(key: str, values: Sequence[Any]) -> None:
    """Check that every row has a tensor for a column of tensors.

    Raises:
        ColumnError: one has none.
    """
    for row, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise ColumnError(
                f"row {row} has no tensor for {key!r} (got {short(value)}); give one for all such rows with "
                f"fill={{{key!r}: tensor}}"
            )


def row_of(column: Any, row: int) -> Any:
    """One row of a column: a view of a tensor, or the object in an array."""
    if is_jagged(column):
        parts = jagged.jagged_parts(jagged.narrow_jagged(column, row, row + 1))
        return parts.values.narrow(parts.dim - 1, 0, int(parts.row_lengths[0]))
    return column[row]


def to_rows(data: BatchState) -> list[dict[str, Any]]:
    """One dict per row."""
    count, columns = data._checked_rows(), {**data._columns(), **data.non_tensor_batch}
    return [{key: row_of(column, row) for key, column in columns.items()} for row in range(count)]


def to_tensordict(data: BatchState) -> TensorDict:
    """Tensors as they are, array columns as one entry per row, meta_info as non-tensor data."""
    from tensordict import NonTensorData, TensorDict

    count, tensors = data._checked_rows(), data._columns()
    arrays, meta = data.non_tensor_batch, copy_meta(data.meta_info)
    check_disjoint(tensors, arrays, TWO_KINDS)
    check_disjoint([*tensors, *arrays, DTYPES_KEY], meta, "a column and a meta_info key")
    made = TensorDict(dict(tensors), batch_size=[count], device=data._batch_device())
    for key, column in arrays.items():
        objects.set_stack(made, key, list(column))
    told = {
        key: (column.dtype, column.shape[1:]) for key, column in arrays.items() if not _tells_dtype(column)
    }
    for key, value in {**meta, **({DTYPES_KEY: told} if told else {})}.items():
        entry: Any = NonTensorData(value, batch_size=[count])
        made.set(key, entry)
    return made


def _tells_dtype(column: NDArray[Any]) -> bool:
    found = column_of(list(column))
    return len(column) > 0 and found.dtype == column.dtype and found.ndim == column.ndim


def parts_of_tensordict(
    tensordict: Any,
) -> tuple[dict[str, torch.Tensor] | None, dict[str, NDArray[Any]], dict[str, Any]]:
    """Tensor columns (None if the TensorDict has no batch dimension), array columns and meta_info."""
    from tensordict import NonTensorData, NonTensorStack

    tensors: dict[str, Any] = {}
    stacks: dict[str, list[Any]] = {}
    meta: dict[str, Any] = {}
    for key, value in tensordict.items():
        if isinstance(value, NonTensorStack):
            stacks[key] = value.tolist()
        elif isinstance(value, NonTensorData):
            meta[key] = value.data
        else:
            tensors[key] = value
    if len(tensordict.batch_size) != 1 and (tensors or stacks or len(tensordict.batch_size)):
        raise batch_dims(f"batch_size {list(tensordict.batch_size)}")
    told = meta.pop(DTYPES_KEY, {})
    arrays = {key: _array_of(items, told.get(key)) for key, items in stacks.items()}
    return (tensors if len(tensordict.batch_size) else None), arrays, meta


def batch_dims(given: str) -> InvalidValueError:
    """The error about a batch whose rows would not be its first dimension."""
    return InvalidValueError(
        f"a DataProto has rows along one batch dimension, got {given}; only num_batch_dims=1 is supported, "
        "use fold_batch_dim and unfold_batch_dim to regroup rows"
    )


def _array_of(items: list[Any], told: tuple[np.dtype[Any], tuple[int, ...]] | None) -> NDArray[Any]:
    return column_of(items, None if told is None else np.empty((0, *told[1]), told[0]))
