"""Row operations on a plain TensorDict: those of a batch, with the same answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from verl_protocol import jagged
from verl_protocol.batch import DataProto
from verl_protocol.columns import column_of, column_of_tensors
from verl_protocol.conversion import list_of_dict_to_dict_of_list
from verl_protocol.equality import columns_equal, equal, first_difference
from verl_protocol.errors import MissingValueError, NothingToConcatError
from verl_protocol.indexing import IndexLike
from verl_protocol.kinds import is_jagged, is_tensordict
from verl_protocol.metadata import METRICS, flatten_metrics
from verl_protocol.nested import set_stack
from verl_protocol.padding import pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol.tensordict_batch import (
    as_batch,
    as_tensordict,
    checked_parts,
    checked_tensordict,
    has_rows,
    is_stack,
    set_entry,
    stacked_keys,
)
from verl_protocol.tensordict_entries import get_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDict


def concat_tensordict(data: Sequence[TensorDict]) -> TensorDict:
    """The rows of all parts; entries without rows are those of the first part.

    Raises:
        NothingToConcatError: no parts.
        MissingColumnsError, ColumnMismatchError: parts whose columns do not fit together.
    """
    parts = checked_parts(data)
    if not any(map(has_rows, parts)):
        return concat_tensordict_with_none_bsz(parts)
    stacked = stacked_keys(parts)
    batches = [as_batch(part, stacked) for part in parts]
    first_meta = batches[0].meta_info
    for batch in batches:
        batch.meta_info = {}
    whole = DataProto.concat(batches)
    whole.meta_info = first_meta
    return as_tensordict(whole, next(part for part in parts if has_rows(part)))


def concat_tensordict_with_none_bsz(data: Sequence[TensorDict]) -> TensorDict:
    """Parts without rows as one: the entries of the first part, with the metrics of all as flat lists.

    Raises:
        NothingToConcatError: no parts.
    """
    parts = checked_parts(data)
    batches = [as_batch(part) for part in parts]
    whole = batches[0]
    metrics = [batch.meta_info[METRICS] for batch in batches if METRICS in batch.meta_info]
    if len(metrics) > 1:
        whole.meta_info[METRICS] = flatten_metrics(metrics)
    return as_tensordict(whole, parts[0])


def chunk_tensordict(td: TensorDict, chunks: int, uneven: bool = False) -> list[TensorDict]:
    """`chunks` consecutive pieces as views, of equal size unless `uneven`; metrics stay with the first.

    Raises:
        UnevenChunksError: the rows do not divide by `chunks`.
        InvalidCountError: `chunks` is less than 1.
    """
    batch = as_batch(checked_tensordict("td", td))
    return [as_tensordict(piece, td) for piece in batch.chunk(chunks, uneven=uneven)]


def index_select_tensor_dict(batch: TensorDict, indices: IndexLike) -> TensorDict:
    """The rows of an index or mask, in its order; entries without rows are kept.

    Raises:
        RowOutOfRangeError, MaskLengthError, InvalidIndexError: an index that does not fit.
    """
    return as_tensordict(as_batch(checked_tensordict("batch", batch)).select_idxs(indices), batch)


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """Add the entries of the second to the first, which has the same rows, and return the first.

    A locked TensorDict stays as it is, and an unlocked one is returned.

    Raises:
        UnionRowsError: different numbers of rows.
        UnionValueError, MetaConflictError: a key in both has different values; nothing was added then.
    """
    first, second = (
        checked_tensordict("tensor_dict1", tensor_dict1),
        checked_tensordict("tensor_dict2", tensor_dict2),
    )
    stacked = stacked_keys([first, second])
    whole = as_batch(first, stacked).union(as_batch(second, stacked))
    target = first.clone(recurse=False) if first.is_locked else first
    held = set(first.keys())
    for key, entry in {**whole._columns(), **whole.non_tensor_batch, **whole.meta_info}.items():
        if key not in held:
            set_entry(target, key, entry, is_meta=key in whole.meta_info)
    return target


def make_iterator(
    tensordict: TensorDict,
    mini_batch_size: int,
    epochs: int,
    seed: int | None = None,
    dataloader_kwargs: Mapping[str, Any] | None = None,
    *,
    drop_last: bool | None = None,
) -> Iterator[TensorDict]:
    """Mini-batches, every row once per epoch; see `DataProto.make_iterator`."""
    batch = as_batch(checked_tensordict("tensordict", tensordict))
    pieces = batch.make_iterator(mini_batch_size, epochs, seed, dataloader_kwargs, drop_last=drop_last)
    return (as_tensordict(piece, tensordict) for piece in pieces)


def pad_to_divisor(data: TensorDict, size_divisor: int) -> tuple[TensorDict, int]:
    """Rows from the start again until their number is a multiple of `size_divisor`, and how many were added.

    Raises:
        InvalidCountError: `size_divisor` is less than 1.
    """
    padded, pad_size = pad_dataproto_to_divisor(as_batch(checked_tensordict("data", data)), size_divisor)
    return as_tensordict(padded, data), pad_size


def unpad(data: TensorDict, pad_size: int) -> TensorDict:
    """The rows without the last `pad_size`.

    Raises:
        UnpadError: there are not so many.
    """
    return as_tensordict(unpad_dataproto(as_batch(checked_tensordict("data", data)), pad_size), data)


def contiguous(data: TensorDict) -> TensorDict:
    """The same entries, with every tensor contiguous in memory."""
    from tensordict import TensorDict

    checked_tensordict("data", data)
    made = TensorDict({}, batch_size=data.batch_size, device=data.device)
    for key, entry in data.items():
        if is_stack(entry):
            set_stack(made, key, entry.tolist())
        else:
            made.set(key, _contiguous(entry))
    return made


def _contiguous(entry: Any) -> Any:
    if is_jagged(entry):
        parts = jagged.jagged_parts(entry)
        return jagged.build_jagged(parts.values.contiguous(), parts.offsets, parts.dim, parts.lengths)
    if is_tensordict(entry):
        return contiguous(entry)
    return entry.contiguous() if isinstance(entry, torch.Tensor) else entry


def list_of_dict_to_tensordict(
    list_of_dicts: Sequence[Mapping[str, Any]], ragged: Collection[str] | None = None
) -> TensorDict:
    """One row per dict: tensors become tensor columns, everything else one entry per row.

    Whether a column is dense or jagged does not depend on the sizes of the rows at hand.

    Args:
        list_of_dicts: dicts with the same keys.
        ragged: the columns that are jagged, along the last dimension. None: those of tensors that have a
            dimension, while scalars become a dense column.

    Raises:
        NothingToConcatError: no dicts.
        UnlikeDictsError: dicts with different keys.
        MissingValueError: a column of tensors in which one is missing.
        RaggedRowsError: rows of different shapes in a dense column.

    >>> data = list_of_dict_to_tensordict([{"x": torch.arange(3)}, {"x": torch.arange(3)}])
    >>> data["x"].is_nested
    True
    """
    if not list_of_dicts:
        raise NothingToConcatError
    lists = list_of_dict_to_dict_of_list(list_of_dicts)
    return get_tensordict({key: _column_of(key, values, ragged) for key, values in lists.items()})


def _column_of(key: str, values: list[Any], ragged: Collection[str] | None) -> Any:
    if not any(isinstance(value, torch.Tensor) for value in values):
        return column_of(values)
    for row, value in enumerate(values):
        if not isinstance(value, torch.Tensor):
            raise MissingValueError(key, row, value)
    is_ragged = key in ragged if ragged is not None else values[0].ndim > 0
    return column_of_tensors(key, values, "last" if is_ragged else None)


def assert_tensordict_eq(td1: TensorDict, td2: TensorDict) -> None:
    """Check that two TensorDicts hold the same entries, for use in tests.

    Raises:
        AssertionError: they do not; the message names the entry and the first row that differs.
        NotATensorDictError: one of them is something else.
    """
    checked_tensordict("td1", td1), checked_tensordict("td2", td2)
    if td1.batch_size != td2.batch_size:
        raise AssertionError(f"batch sizes differ: {tuple(td1.batch_size)} and {tuple(td2.batch_size)}")
    stacked = stacked_keys([td1, td2])
    one, two = as_batch(td1, stacked), as_batch(td2, stacked)
    columns = [{**batch._columns(), **batch.non_tensor_batch} for batch in (one, two)]
    _check_same_keys("columns", *columns)
    _check_same_keys("entries without rows", one.meta_info, two.meta_info)
    for key, column in columns[0].items():
        if not columns_equal(column, columns[1][key]):
            raise AssertionError(f"column {key!r} differs{_where(column, columns[1][key])}")
    for key, value in one.meta_info.items():
        if not equal(value, two.meta_info[key]):
            raise AssertionError(f"entry {key!r} differs: {value!r} and {two.meta_info[key]!r}")


def _check_same_keys(kind: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    if differing := sorted(set(one) ^ set(two)):
        raise AssertionError(f"{kind} that only one of them has: {differing}")


def _where(one: Any, two: Any) -> str:
    row = first_difference(one, two)
    return " in type, dtype or shape" if row is None else f" in row {row}: {one[row]!r} and {two[row]!r}"
