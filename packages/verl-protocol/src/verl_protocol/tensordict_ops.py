"""The operations of a batch on a plain `TensorDict`, and what it takes to have non-tensor data in one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_protocol import errors
from verl_protocol.arguments import tensordict as checked
from verl_protocol.batch import convert
from verl_protocol.batch.column_ops import without
from verl_protocol.batch.metadata import METRICS, copy_meta, flatten_metrics
from verl_protocol.batch.padding import pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol.batch.proto import DataProto
from verl_protocol.columns import checks, jagged, objects, ops
from verl_protocol.columns.equality import difference, equal
from verl_protocol.columns.index import IndexLike
from verl_protocol.kinds import is_jagged, is_tensordict, is_unbatched

if TYPE_CHECKING:
    from tensordict import TensorDict

__all__ = [
    "assert_tensordict_eq",
    "assign_non_tensor",
    "assign_non_tensor_data",
    "assign_non_tensor_stack",
    "chunk_tensordict",
    "concat_nested_tensors",
    "concat_tensordict",
    "concat_tensordict_with_none_bsz",
    "contiguous",
    "get",
    "get_keys",
    "get_non_tensor_data",
    "get_tensordict",
    "index_select_tensor_dict",
    "list_of_dict_to_tensordict",
    "make_iterator",
    "maybe_fix_3d_position_ids",
    "nested_tensor_from_tensor_list",
    "pad_to_divisor",
    "pop",
    "pop_keys",
    "union_tensor_dict",
    "unpad",
    "unwrap_non_tensor_data",
]


# --- Entries of a TensorDict: set, read and taken out, whatever form non-tensor data has in it ------------


def get_tensordict(
    tensor_dict: Mapping[str, Any], non_tensor_dict: Mapping[str, Any] | None = None
) -> TensorDict:
    """A TensorDict of columns and of data without rows; neither dict is changed.

    Args:
        tensor_dict: columns: tensors (dense or jagged), or lists and arrays with one entry per row.
        non_tensor_dict: data that belongs to the whole.

    Raises:
        RowCountError: columns with different numbers of rows.
        ColumnError: a value that has no rows.
        KeyConflictError: a key in both dicts.
        InvalidTypeError: no dict whose keys can name columns.

    >>> data = get_tensordict({"a": torch.zeros(2, 3), "s": ["x", "y"]}, {"step": 1})
    >>> get(data, "s"), get(data, "step")
    (['x', 'y'], 1)
    """
    from tensordict import TensorDict

    columns = {
        key: _column(key, value) for key, value in checks.checked_dict("tensor_dict", tensor_dict).items()
    }
    others = copy_meta(non_tensor_dict)
    checks.check_disjoint(columns, others, "a column and data without rows")
    count = checks.check_columns(columns, {})
    made = TensorDict({}, batch_size=[count] if columns else [])
    for key, column in columns.items():
        _set_column(made, key, column)
    for key, value in others.items():
        objects.set_data(made, key, value)
    return made


def _column(key: str, value: Any) -> Any:
    if is_unbatched(value):
        raise checks.no_column(key, value, "one value for all rows goes to non_tensor_dict")
    is_data = objects.is_stack(value) or objects.is_data(value)
    if is_data or isinstance(value, torch.Tensor) or is_tensordict(value):
        checks.check_has_rows(key, value)
        return objects.object_column(objects.rows_of(value)) if is_data else value
    column = checks.array_column(key, value)
    return objects.object_column(column.tolist()) if column.ndim == 1 else column


def _set_column(tensordict: TensorDict, key: str, column: Any) -> None:
    if isinstance(column, np.ndarray):
        convert.set_column(tensordict, key, column)
    else:
        tensordict.set(key, column)


def assign_non_tensor(tensor_dict: TensorDict, **kwargs: Any) -> TensorDict:
    """Set data in `tensor_dict` itself and return it: lists have one entry per row, others none."""
    for key, value in kwargs.items():
        if isinstance(value, list):
            assign_non_tensor_stack(tensor_dict, key, value)
        else:
            assign_non_tensor_data(tensor_dict, key, value)
    return tensor_dict


def assign_non_tensor_data(tensor_dict: TensorDict, key: str, val: Any) -> None:
    """Set data that belongs to the whole of `tensor_dict`, in place."""
    if objects.is_data(val) or objects.is_stack(val):
        tensor_dict.set(key, val)
    else:
        objects.set_data(tensor_dict, key, val)


def assign_non_tensor_stack(tensor_dict: TensorDict, key: str, val: Sequence[Any]) -> None:
    """Set data with one entry per row in `tensor_dict`, in place.

    Raises:
        RowCountError: not one entry per row.
        ColumnError: not a list.
    """
    if objects.is_stack(val):
        val = objects.rows_of(val)
    if isinstance(val, (str, bytes)) or not isinstance(val, (Sequence, np.ndarray)):
        raise checks.no_column(key, val, "data with one entry per row is a list")
    count = tensor_dict.batch_size[0] if len(tensor_dict.batch_size) else None
    if count != len(val):
        raise errors.RowCountError(errors.different_row_counts({"tensor_dict": count or 0, key: len(val)}))
    objects.set_stack(tensor_dict, key, list(val))


def unwrap_non_tensor_data(data: Any) -> Any:
    """The value of non-tensor data, a list for one entry per row; anything else as it is."""
    if isinstance(data, torch.Tensor):
        return data
    if objects.is_stack(data):
        return data.tolist()
    return data.data if objects.is_data(data) else data


def get(tensordict: TensorDict, key: str, default: Any = None) -> Any:
    """The entry under `key`, or `default`; non-tensor data as its value, a list for one entry per row."""
    return unwrap_non_tensor_data(tensordict.get(key)) if _holds(tensordict, key) else default


def get_non_tensor_data(data: TensorDict, key: str, default: Any) -> Any:
    """As `get`: the value of non-tensor data, or `default`."""
    return get(data, key, default)


def pop(tensordict: TensorDict, key: str, default: Any = None) -> Any:
    """As `get`, and the entry is taken out."""
    if not _holds(tensordict, key):
        return default
    value = get(tensordict, key)
    tensordict.del_(key)
    return value


def get_keys(tensordict: TensorDict, keys: Iterable[str]) -> TensorDict:
    """A TensorDict of these entries, each as it is.

    Raises:
        UnknownKeyError: a key that is not there.
    """
    wanted = checks.key_list(keys)
    known: Any = tensordict.keys(include_nested=True)
    checks.check_known(wanted, "entry", known)
    return _like(tensordict, {key: tensordict.get(key) for key in wanted})


def pop_keys(tensordict: TensorDict, keys: Iterable[str]) -> TensorDict:
    """A TensorDict of these entries, which are taken out.

    Raises:
        UnknownKeyError: a key that is not there; nothing was taken out then.
    """
    taken = get_keys(tensordict, keys)
    for key in list(taken.keys()):
        tensordict.del_(key)
    return taken


def _like(tensordict: TensorDict, entries: Mapping[str, Any]) -> TensorDict:
    made: TensorDict = objects.build_tensordict(
        entries, batch_size=tensordict.batch_size, device=tensordict.device
    )
    return made


def _holds(tensordict: TensorDict, key: Any) -> bool:
    return key in tensordict.keys(include_nested=True)


# --- Row operations on a plain TensorDict: those of a batch, with the same answers ------------------------


_as_batch = DataProto._of_tensordict


def checked_parts(data: Any) -> list[TensorDict]:
    """A list of TensorDicts, at least one.

    Raises:
        NothingToConcatError: an empty list.
        InvalidTypeError: no list of them.
    """
    if is_tensordict(data) or not isinstance(data, Iterable):
        found = "one TensorDict; put it in a list" if is_tensordict(data) else type(data).__name__
        raise errors.InvalidTypeError(f"data must be a list of TensorDicts, got {found}")
    parts = [checked(f"data[{place}]", part) for place, part in enumerate(data)]
    if not parts:
        raise errors.NothingToConcatError
    return parts


def concat_tensordict(data: Sequence[TensorDict]) -> TensorDict:
    """The rows of all parts; entries without rows are those of the first part.

    Raises:
        NothingToConcatError: no parts.
        SchemaError: parts whose columns do not fit together.
    """
    parts = checked_parts(data)
    if not any(map(convert.has_rows, parts)):
        return concat_tensordict_with_none_bsz(parts)
    stacked = convert.stacked_keys(parts)
    batches = [_as_batch(part, stacked) for part in parts]
    first_meta = batches[0].meta_info
    for batch in batches:
        batch.meta_info = {}
    whole = DataProto.concat(batches)
    whole.meta_info = first_meta
    return convert.tensordict_of(whole, next(filter(convert.has_rows, parts)))


def concat_tensordict_with_none_bsz(data: Sequence[TensorDict]) -> TensorDict:
    """Parts without rows as one: the entries of the first part, with the metrics of all as flat lists.

    Raises:
        NothingToConcatError: no parts.
    """
    parts = checked_parts(data)
    batches = [_as_batch(part) for part in parts]
    whole = batches[0]
    metrics = [batch.meta_info[METRICS] for batch in batches if METRICS in batch.meta_info]
    if len(metrics) > 1:
        whole.meta_info[METRICS] = flatten_metrics(metrics)
    return convert.tensordict_of(whole, parts[0])


def chunk_tensordict(td: TensorDict, chunks: int, uneven: bool = False) -> list[TensorDict]:
    """`chunks` consecutive pieces as views, of equal size unless `uneven`; metrics stay with the first.

    Raises:
        UnevenRowsError: the rows do not divide by `chunks`.
        InvalidValueError: `chunks` is less than 1.
    """
    batch = _as_batch(checked("td", td))
    return [convert.tensordict_of(piece, td) for piece in batch.chunk(chunks, uneven=uneven)]


def index_select_tensor_dict(batch: TensorDict, indices: IndexLike) -> TensorDict:
    """The rows of an index or mask, in its order; entries without rows are kept.

    Raises:
        RowOutOfRangeError, InvalidIndexError: an index that does not fit.
    """
    return convert.tensordict_of(_as_batch(checked("batch", batch)).select_idxs(indices), batch)


def union_tensor_dict(tensor_dict1: TensorDict, tensor_dict2: TensorDict) -> TensorDict:
    """Add the entries of the second to the first, which has the same rows, and return the first.

    A locked TensorDict stays as it is, and an unlocked one is returned.

    Raises:
        RowCountError: different numbers of rows.
        SchemaError, MetaConflictError: a key in both has different values; nothing was added then.
    """
    first, second = checked("tensor_dict1", tensor_dict1), checked("tensor_dict2", tensor_dict2)
    stacked = convert.stacked_keys([first, second])
    whole = _as_batch(first, stacked).union(_as_batch(second, stacked))
    target = first.clone(recurse=False) if first.is_locked else first
    held = dict(first.items())
    for key, column in without({**whole._columns(), **whole.non_tensor_batch}, held).items():
        _set_column(target, key, column)
    for key, value in without(whole.meta_info, held).items():
        convert.set_fact(target, key, value)
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
    batch = _as_batch(checked("tensordict", tensordict))
    pieces = batch.make_iterator(mini_batch_size, epochs, seed, dataloader_kwargs, drop_last=drop_last)
    return (convert.tensordict_of(piece, tensordict) for piece in pieces)


def pad_to_divisor(data: TensorDict, size_divisor: int) -> tuple[TensorDict, int]:
    """Rows from the start again until their number is a multiple of `size_divisor`, and how many were added.

    Raises:
        InvalidValueError: `size_divisor` is less than 1.
    """
    padded, pad_size = pad_dataproto_to_divisor(_as_batch(checked("data", data)), size_divisor)
    return convert.tensordict_of(padded, data), pad_size


def unpad(data: TensorDict, pad_size: int) -> TensorDict:
    """The rows without the last `pad_size`.

    Raises:
        InvalidValueError: there are not so many.
    """
    return convert.tensordict_of(unpad_dataproto(_as_batch(checked("data", data)), pad_size), data)


def contiguous(data: TensorDict) -> TensorDict:
    """The same entries, with every tensor contiguous in memory."""
    return _like(data, {key: _contiguous(entry) for key, entry in checked("data", data).items()})


def _contiguous(entry: Any) -> Any:
    if is_jagged(entry):
        parts = jagged.jagged_parts(entry)
        return jagged.build_jagged(parts.values.contiguous(), parts.offsets, parts.dim, parts.lengths)
    if is_tensordict(entry) and not (objects.is_stack(entry) or objects.is_data(entry)):
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
        KeyConflictError: dicts with different keys.
        ColumnError: a column of tensors in which one is missing.
        ColumnError: rows of different shapes in a dense column.

    >>> data = list_of_dict_to_tensordict([{"x": torch.arange(3)}, {"x": torch.arange(3)}])
    >>> data["x"].is_nested
    True
    """
    if not list_of_dicts:
        raise errors.NothingToConcatError
    lists = convert.list_of_dict_to_dict_of_list(list_of_dicts)
    return get_tensordict({key: _column_of(key, values, ragged) for key, values in lists.items()})


def _column_of(key: str, values: list[Any], ragged: Collection[str] | None) -> Any:
    if not any(isinstance(value, torch.Tensor) for value in values):
        return checks.column_of(values)
    first = values[0]
    is_ragged = key in ragged if ragged is not None else isinstance(first, torch.Tensor) and first.ndim > 0
    return checks.column_of_tensors(key, values, "last" if is_ragged else None)


def assert_tensordict_eq(td1: TensorDict, td2: TensorDict) -> None:
    """Check that two TensorDicts hold the same entries, for use in tests.

    Raises:
        AssertionError: they do not; the message names the entry and the first row that differs.
        InvalidTypeError: one of them is something else.
    """
    checked("td1", td1)
    checked("td2", td2)
    if td1.batch_size != td2.batch_size:
        raise AssertionError(f"batch sizes differ: {tuple(td1.batch_size)} and {tuple(td2.batch_size)}")
    stacked = convert.stacked_keys([td1, td2])
    one, two = _as_batch(td1, stacked), _as_batch(td2, stacked)
    columns = [{**batch._columns(), **batch.non_tensor_batch} for batch in (one, two)]
    _check_same_keys("columns", *columns)
    _check_same_keys("entries without rows", one.meta_info, two.meta_info)
    for key, column in columns[0].items():
        if (where := difference(column, columns[1][key])) is not None:
            raise AssertionError(f"column {key!r} differs{where}")
    for key, value in one.meta_info.items():
        if not equal(value, two.meta_info[key]):
            raise AssertionError(f"entry {key!r} differs: {value!r} and {two.meta_info[key]!r}")


def _check_same_keys(kind: str, one: Mapping[str, Any], two: Mapping[str, Any]) -> None:
    if differing := sorted(set(one) ^ set(two)):
        raise AssertionError(f"{kind} that only one of them has: {differing}")


# --- Jagged tensors made from rows, put together, and repaired --------------------------------------------


def nested_tensor_from_tensor_list(
    tensors: Sequence[torch.Tensor], ragged_idx: int | None = None
) -> torch.Tensor:
    """A jagged tensor of these rows; which dimension is ragged never depends on their sizes.

    Args:
        tensors: the rows, each of one dimension or more.
        ragged_idx: the dimension of the result along which rows may differ: 1 is the first of a row; None is
            the last.

    Raises:
        ColumnError: rows do not have that dimension.
        ColumnError, SchemaError: rows differ in another dimension, or in their dtype.
        NothingToConcatError: no rows.

    >>> rows = [torch.zeros(4, 3), torch.zeros(4, 3)]
    >>> nested_tensor_from_tensor_list(rows).offsets()
    tensor([0, 3, 6])
    """
    return checks.column_of_tensors("tensors", tensors, "last" if ragged_idx is None else ragged_idx)


def concat_nested_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The rows of all jagged tensors, one after the other.

    Raises:
        NothingToConcatError: no tensors.
        SchemaError: they differ in ragged dimension, row shape, dtype or device.
    """
    if not tensors:
        raise errors.NothingToConcatError
    checks.check_schema(
        [(place, {"tensors": tensor}) for place, tensor in enumerate(tensors)], "jagged tensors"
    )
    joined: torch.Tensor = ops.concat(tensors)
    return joined


def maybe_fix_3d_position_ids(data: TensorDict) -> None:
    """Make the last dimension of jagged `position_ids` (rows, components, length) the ragged one, in place.

    Rows of equal shape do not tell which of their dimensions is ragged, and some tools take the first, or
    forget. Position ids of other forms stay as they are.
    """
    value: Any = checked("data", data).get("position_ids", None)
    if is_jagged(value) and value.ndim == 3 and jagged.ragged_dim(value) == 1:
        fixed = _ragged_in_last(jagged.jagged_parts(value))
        if fixed is not None:
            data.set("position_ids", fixed)


def _ragged_in_last(parts: jagged.JaggedParts) -> torch.Tensor | None:
    """The rows with the last dimension ragged; None if they are of different sizes in the first."""
    total = int(parts.offsets[-1])
    if parts.values.shape[0] != total:
        # The offsets never were about the first dimension: only its number had been forgotten.
        forgotten = parts.values.shape[1] == total
        return jagged.build_jagged(parts.values, parts.offsets, 2, parts.lengths) if forgotten else None
    lengths = set(parts.row_lengths.tolist())
    if len(lengths) != 1:
        return None
    components, width = lengths.pop(), parts.values.shape[1]
    num_rows = parts.offsets.numel() - 1
    compact = jagged.jagged_parts(ops.concat([jagged.build_jagged(*parts[:2], 1, parts.lengths)])).values
    values = compact.view(num_rows, components, width).transpose(0, 1).reshape(components, num_rows * width)
    return jagged.build_jagged(values, torch.arange(num_rows + 1, device=values.device) * width, 2)
