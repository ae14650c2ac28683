"""What a batch is made of and turned into: rows, and TensorDicts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.arguments import mapping
from verl_protocol.batch.metadata import copy_meta
from verl_protocol.columns import checks, jagged, objects
from verl_protocol.columns.equality import equal
from verl_protocol.errors import InvalidTypeError, InvalidValueError, KeyConflictError
from verl_protocol.kinds import is_jagged, is_unbatched

if TYPE_CHECKING:
    from tensordict import TensorDict

    from verl_protocol.batch.state import BatchState


Ragged: TypeAlias = Collection[str] | Mapping[str, int]
"""Keys of columns ragged in their last dimension, or the ragged dimension of each (1 is a row's first)."""


def list_of_dict_to_dict_of_list(list_of_dict: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """One list per key from dicts that have the same keys; an empty dict from no dicts.

    Raises:
        KeyConflictError: dicts with different keys.

    >>> list_of_dict_to_dict_of_list([{"a": 1}, {"a": 2}])
    {'a': [1, 2]}
    """
    first = list_of_dict[0] if list_of_dict else {}
    for place, entry in enumerate(list_of_dict):
        if mapping(f"number {place}", entry).keys() != first.keys():
            found = f"number 0 has {list(first)}, number {place} {list(entry)}"
            raise KeyConflictError(f"all dicts need the same keys: {found}")
    return {key: [entry[key] for entry in list_of_dict] for key in first}


def columns_from_rows(
    rows: Sequence[Mapping[str, Any]], ragged: Ragged, fill: Mapping[str, Any]
) -> tuple[dict[str, torch.Tensor], dict[str, NDArray[Any]]]:
    """Tensor and non-tensor columns of a list of dicts; keys are united."""
    dims: dict[str, int | Literal["last"] | None] = {}
    dims |= ragged if isinstance(ragged, Mapping) else dict.fromkeys(checks.key_list(ragged), "last")
    keys = dict.fromkeys(key for row in [*rows, fill] for key in row) if rows else {}
    held = {key: [row.get(key, fill.get(key)) for row in rows] for key in keys}
    is_tensor = {key: any(isinstance(value, torch.Tensor) for value in held[key]) for key in keys}
    if objects := [key for key in dims if key in keys and not is_tensor[key]]:
        raise checks.no_column(objects[0], held[objects[0]][0], "only rows that are tensors can be ragged")
    tensors = {key: checks.column_of_tensors(key, held[key], dims.get(key)) for key in keys if is_tensor[key]}
    return tensors, {key: checks.column_of(held[key]) for key in keys if not is_tensor[key]}


def row_list(rows: Any) -> list[Mapping[str, Any]]:
    """`rows` as a list, after checking that each is a dict whose keys can name columns.

    Raises:
        InvalidTypeError: it is not.
    """
    if isinstance(rows, Mapping) or not isinstance(rows, Iterable):
        raise InvalidTypeError(f"rows must be a list of dicts, one per row, got {type(rows).__name__}")
    listed = list(rows)
    for place, row in enumerate(listed):
        checks.check_keys(mapping(f"rows[{place}]", row))
    return listed


def row_of(column: Any, row: int) -> Any:
    """One row of a column: a view of a tensor, or the object in an array."""
    if is_jagged(column):
        parts = jagged.jagged_parts(jagged.split_jagged(column, [(row, row + 1)])[0])
        return parts.values.narrow(parts.dim - 1, 0, int(parts.row_lengths[0]))
    return column[row]


# --- A TensorDict taken apart into what a batch consists of, and put together again -----------------------
# Rows of tensors and of non-tensor stacks are columns; entries for all rows are meta_info. Operations on
# TensorDicts go through a batch, so that both give the same answers.


class Parts(NamedTuple):
    """What a batch is made of."""

    tensors: dict[str, Any] | None
    num_rows: int
    arrays: dict[str, NDArray[Any]]
    meta: dict[str, Any]
    device: torch.device | None


def parts_of(
    tensordict: TensorDict,
    stacked: Collection[str] = (),
    column: Callable[[Sequence[Any]], NDArray[Any]] = objects.object_column,
) -> Parts:
    """The parts of a batch that a TensorDict is.

    Args:
        stacked: keys of data without rows that is a column in other TensorDicts.
        column: makes a column of rows of which nothing more is known.
    """
    rows = has_rows(tensordict)
    tensors: dict[str, Any] = {}
    arrays: dict[str, NDArray[Any]] = {}
    meta: dict[str, Any] = {}
    for key, entry in tensordict.items():
        if objects.is_stack(entry):
            arrays[key] = _column_of_stack(entry, column)
        elif objects.is_data(entry) and rows and key in stacked:
            arrays[key] = column(objects.rows_of(entry))
        elif objects.is_data(entry):
            meta[key] = entry.data
        else:
            (tensors if rows and not is_unbatched(entry) else meta)[key] = entry
    count = int(tensordict.batch_size[0]) if rows else 0
    return Parts(tensors if rows else None, count, arrays, copy_meta(meta), tensordict.device)


def tensordict_of(batch: BatchState, like: TensorDict | None = None) -> TensorDict:
    """The TensorDict that a batch is.

    Args:
        like: where device, order of the entries and further batch dims are taken from; None for a TensorDict
            that tells of each array column what it was.

    Raises:
        KeyConflictError: a key in two places.
    """
    from tensordict import TensorDict

    tensors, arrays, meta = batch._columns(), batch.non_tensor_batch, copy_meta(batch.meta_info)
    checks.check_disjoint(tensors, arrays, checks.TWO_KINDS)
    checks.check_disjoint([*tensors, *arrays], meta, "a column and a meta_info key")
    count, device = batch._checked_rows(), batch._batch_device()
    if like is None:
        size: list[int] = [count]
    else:
        size, device = [count, *like.batch_size[1:]] if has_rows(like) else [], like.device
    made = TensorDict({}, batch_size=size, device=device)
    entries = {**tensors, **arrays, **meta}
    for key in dict.fromkeys([*(() if like is None else like.keys()), *entries]):
        if key in arrays:
            set_column(made, key, arrays[key])
        elif key in meta:
            set_fact(made, key, meta[key])
        elif key in tensors:
            made.set(key, tensors[key])
    return made


def has_rows(tensordict: TensorDict) -> bool:
    """Whether the TensorDict has a batch dimension."""
    return len(tensordict.batch_size) > 0


def set_column(tensordict: TensorDict, key: str, column: NDArray[Any]) -> None:
    """Set an array as non-tensor data with one entry per row, which tells what the array was."""
    items = list(column)
    found = checks.column_of(items)
    told = (found.dtype, found.ndim) == (column.dtype, column.ndim)
    objects.set_stack(tensordict, key, items, None if told else (column.dtype, column.shape[1:]))


def _column_of_stack(stack: Any, make: Callable[[Sequence[Any]], NDArray[Any]]) -> NDArray[Any]:
    items, form = objects.rows_of(stack), objects.array_form(stack)
    if form is not None:
        # Somebody may have put another value into the stack since.
        with suppress(ValueError, TypeError):
            column = checks.column_of(items, np.empty((0, *form[1]), form[0]))
            if equal(list(column), items):
                return column
    return make(items)


def set_fact(tensordict: TensorDict, key: str, value: Any) -> None:
    """Set what belongs to the whole: data, or in a TensorDict without rows a tensor."""
    if isinstance(value, torch.Tensor) and not has_rows(tensordict):
        tensordict.set(key, value)
    else:
        objects.set_data(tensordict, key, value)


def stacked_keys(parts: Sequence[TensorDict]) -> frozenset[str]:
    """Keys whose data has one entry per row in at least one part."""
    return frozenset(key for part in parts for key, entry in part.items() if objects.is_stack(entry))


def batch_dims(given: str) -> InvalidValueError:
    """The error about a batch whose rows would not be its first dimension."""
    return InvalidValueError(
        f"a DataProto has rows along one batch dimension, got {given}; only num_batch_dims=1 is supported, "
        "use fold_batch_dim and unfold_batch_dim to regroup rows"
    )
