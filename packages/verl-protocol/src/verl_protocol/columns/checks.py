"""What users hand in as columns, checked and brought into the form that a batch holds."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import errors
from verl_protocol.arguments import mapping
from verl_protocol.columns import dense, jagged, objects, ops
from verl_protocol.columns.remote import RemoteColumn, form_of
from verl_protocol.kinds import is_jagged, is_tensordict, is_unbatched


def tensor_columns(tensors: Mapping[str, Any] | None) -> dict[str, torch.Tensor]:
    """`tensors` as a dict of its own.

    Raises:
        ColumnError: a value that has no rows, by its key.
        ColumnError: tensors on several devices.
    """
    checked = {key: _tensor_column(key, value) for key, value in checked_dict("tensors", tensors).items()}
    check_devices(checked)
    return checked


def checked_dict(argument: str, given: Any) -> Mapping[str, Any]:
    """`given`, or an empty dict for None.

    Raises:
        InvalidTypeError: it is no dict whose keys can name columns.
    """
    if given is None:
        return {}
    checked = mapping(argument, given)
    check_keys(checked)
    return checked


def check_keys(keys: Iterable[Any], allowed: tuple[type, ...] = (str,)) -> None:
    """Check that all keys can name columns.

    Raises:
        InvalidTypeError: one cannot.
    """
    for key in keys:
        if not isinstance(key, allowed):
            raise errors.InvalidTypeError(
                f"columns are named by a string or several strings, got {errors.short(key)}"
            )


def check_known(keys: Iterable[str], kind: str, known: Collection[str]) -> None:
    """Check that something of this kind is there under every key.

    Raises:
        UnknownKeyError: one is missing.
    """
    if missing := [key for key in keys if key not in known]:
        raise errors.UnknownKeyError(missing, kind, known)


def check_disjoint(first: Iterable[str], second: Iterable[str], what: str) -> None:
    """Check that no key names two things, which `what` says.

    Raises:
        KeyConflictError: one does.
    """
    if common := sorted(set(first) & set(second)):
        raise errors.KeyConflictError(f"{common} cannot name both {what}")


def check_devices(tensors: Mapping[str, Any]) -> None:
    """Check that all tensors are on one device.

    Raises:
        ColumnError: they are not.
    """
    devices = {key: str(column.device) for key, column in tensors.items() if isinstance(column, torch.Tensor)}
    if len(set(devices.values())) > 1:
        listed = ", ".join(f"{key!r} on {device}" for key, device in devices.items())
        raise errors.ColumnError(f"all columns of a batch must be on one device: {listed}")


def _tensor_column(key: str, value: Any) -> Any:
    check_batched(key, value)
    if is_tensordict(value) or isinstance(value, RemoteColumn):
        return value
    if not isinstance(value, torch.Tensor):
        make = "torch.from_numpy" if isinstance(value, np.ndarray) else "torch.tensor"
        way = f"make it one with {make}(...); rows that are no numbers go to non_tensors"
        raise no_column(key, value, f"a tensor column must be a torch.Tensor; {way}")
    if is_jagged(value):
        return value
    if value.layout is not torch.strided:
        raise no_column(key, value, f"rows of layout {value.layout} cannot be cut; use a dense tensor")
    check_has_rows(key, value)
    return value


def check_batched(key: str, value: object) -> None:
    """Check that an entry has rows of its own, which can be found.

    Raises:
        ColumnError: it is one tensor for all rows.
        ColumnError: a nested tensor of the strided layout.
    """
    if is_unbatched(value):
        raise no_column(key, value, f"one value for all rows is no column, it goes to meta_info[{key!r}]")
    if isinstance(value, torch.Tensor) and value.is_nested and not is_jagged(value):
        raise jagged.not_jagged(f"column {key!r}")


def no_column(key: str, value: object, reason: str) -> errors.ColumnError:
    """The error about a value that cannot be a column."""
    return errors.ColumnError(f"column {key!r}: {reason} (got {type(value).__name__})")


def check_has_rows(key: str, column: Any) -> None:
    """Check that a tensor or array has a dimension for rows.

    Raises:
        ColumnError: it has none.
    """
    if column.ndim == 0:
        raise errors.ColumnError(
            f"column {key!r} has no dimensions, so it has no rows; one value for all goes to meta_info"
        )


def array_column(key: str, value: Any) -> NDArray[Any]:
    """One non-tensor column: an array as it is, a list or other sequence as a 1-D array of objects."""
    if isinstance(value, np.ndarray):
        check_has_rows(key, value)
        return value
    if isinstance(value, (str, bytes)):
        raise no_column(key, value, "a string is not a column; wrap it in a list, one entry per row")
    if isinstance(value, torch.Tensor):
        raise no_column(key, value, "a tensor is no non-tensor column; hand it in under tensors")
    if not isinstance(value, Sequence):
        raise no_column(key, value, "a column is a list or an array with one entry per row")
    return objects.object_column(value)


TWO_KINDS = "a tensor column and a non-tensor column"


def check_columns(
    tensors: Mapping[str, Any], non_tensors: Mapping[str, NDArray[Any]], num_rows: int | None = None
) -> int:
    """The number of rows that all columns share.

    Args:
        num_rows: the number of rows that is known beforehand.

    Raises:
        KeyConflictError: a key names a tensor and a non-tensor column.
        RowCountError: the numbers of rows differ.
    """
    check_disjoint(tensors, non_tensors, TWO_KINDS)
    counts = {key: ops.num_rows(column) for key, column in {**tensors, **non_tensors}.items()}
    found = set(counts.values()) | ({num_rows} if num_rows is not None else set())
    if len(found) > 1:
        raise errors.RowCountError(
            errors.different_row_counts(counts if num_rows is None else {"batch": num_rows, **counts})
        )
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
        return np.array(items, dtype=dtype) if numeric else objects.object_column(items)
    if like.dtype == object and like.ndim == 1:
        return objects.object_column(items)
    column = np.empty((len(items), *like.shape[1:]), dtype=like.dtype)
    for row, item in enumerate(items):
        column[row] = item
    return column


def column_of_tensors(
    key: str, row_tensors: Sequence[Any], ragged_dim: int | Literal["last"] | None
) -> torch.Tensor:
    """A column of these rows: jagged along `ragged_dim` (1 is a row's first dimension), or dense (None).

    Raises:
        NothingToConcatError: no rows.
        ColumnError, SchemaError: rows that are no tensors, or of different dtypes.
        ColumnError: rows do not have that dimension.
        ColumnError: rows differ in another dimension.
    """
    if not row_tensors:
        raise errors.NothingToConcatError
    for row, tensor in enumerate(row_tensors):
        if not isinstance(tensor, torch.Tensor):
            raise errors.ColumnError(
                f"row {row} has no tensor for {key!r} (got {errors.short(tensor)}); give one for all such "
                f"rows, in from_rows with fill={{{key!r}: tensor}}"
            )
        if tensor.dtype != row_tensors[0].dtype:
            found: dict[int | str, object] = {"row 0": row_tensors[0].dtype, f"row {row}": tensor.dtype}
            raise _differing(key, "dtype", found)
    shapes = [tuple(tensor.shape) for tensor in row_tensors]
    num_dims = len(shapes[0])
    dim = num_dims if ragged_dim == "last" else ragged_dim
    if dim is not None and not 1 <= dim <= num_dims:
        raise errors.ColumnError(
            f"the ragged dimension of {key!r} counts from 1 (a row's first) to {num_dims} (its last), "
            f"got {errors.short(dim)}"
        )
    if len(set(map(len, shapes))) > 1 or len({_fixed_sizes(shape, dim) for shape in shapes}) > 1:
        raise errors.ColumnError(
            f"rows of {key!r} have different shapes: {sorted(set(shapes))}; declare ragged={{{key!r}}} for "
            "a jagged column, or pad them"
        )
    return torch.stack(list(row_tensors)) if dim is None else jagged_of(row_tensors, dim)


def _fixed_sizes(shape: tuple[int, ...], ragged_dim: int | None) -> tuple[int, ...]:
    return shape if ragged_dim is None else shape[: ragged_dim - 1] + shape[ragged_dim:]


def jagged_of(row_tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    """A jagged tensor of these rows, which differ along dimension `dim` of the whole (1 is a row's first)."""
    lengths = torch.tensor([row.shape[dim - 1] for row in row_tensors], dtype=torch.int64)
    values = dense.concat_dense(row_tensors, dim - 1)
    return jagged.build_jagged(values, jagged.offsets_of(lengths).to(values.device), dim)


# --- Whether parts fit together: checked over all parts and columns before any of them is touched ---------


PlacedColumns = tuple[int, Mapping[str, Any]]
"""The place of a part in the list that the user gave, and its columns."""


def check_schema(parts: Sequence[PlacedColumns], kind: str, padded: frozenset[str] = frozenset()) -> None:
    """Check that the columns of all parts can be put one after the other.

    Args:
        kind: what the columns are called in messages.
        padded: tensor columns whose widths may differ.

    Raises:
        SchemaError: parts have different columns.
        SchemaError: a column has not the same type, dtype, device or row shape everywhere.
    """
    if len({frozenset(columns) for _, columns in parts}) > 1:
        raise missing_columns(kind, {place: sorted(map(str, columns)) for place, columns in parts})
    for key in parts[0][1]:
        if key in padded or not _plainly_alike([columns[key] for _, columns in parts]):
            _check_column(key, [(place, columns[key]) for place, columns in parts], key in padded)


def missing_columns(kind: str, keys: Mapping[int | str, Sequence[str]]) -> errors.SchemaError:
    """The error about parts (or whatever the words say) that do not have the same columns of one kind."""
    everywhere = set.intersection(*(set(found) for found in keys.values()))
    extra = {where: [key for key in found if key not in everywhere] for where, found in keys.items()}
    nothing = "none of these" if everywhere else f"no {kind}"
    listed = ", ".join(f"{where} has {found or nothing}" for where, found in errors.of_places(extra).items())
    shared = f" besides {sorted(everywhere)}" if everywhere else ""
    return errors.SchemaError(f"parts differ in their {kind}{shared}: {listed}")


def _differing(key: str, what: str, found: Mapping[int | str, object]) -> errors.SchemaError:
    """The error about a column that is of another kind in another part."""
    listed = ", ".join(f"{where} has {value}" for where, value in errors.of_places(found).items())
    dims = {len(shape) for shape in found.values() if isinstance(shape, tuple)}
    widens = what == "row shape" and len(dims) == 1
    way_out = (
        f"; pad it to one width where it is made, make it a jagged column (torch.nested), or join batches of "
        f"your own with concat(..., pad={{{key!r}: 0}})"
        if widens
        else ""
    )
    return errors.SchemaError(f"column {key!r} differs in its {what}: {listed}{way_out}")


def _plainly_alike(column: Sequence[Any]) -> bool:
    """Whether all parts are dense, arrays or remote and of one form, seen fast as there may be thousands."""
    kinds = set(map(type, column))
    if kinds == {RemoteColumn}:
        return len({part.form for part in column}) == 1
    if kinds == {torch.Tensor}:
        forms = {(part.dtype, part.shape[1:], part.device, part.layout) for part in column}
        return len(forms) == 1 and column[0].layout is torch.strided and not column[0].is_nested
    if kinds == {np.ndarray}:
        return len({(part.dtype, part.shape[1:]) for part in column}) == 1
    return False


def _check_column(key: str, column: Sequence[tuple[int, Any]], padded: bool) -> None:
    if isinstance(column[0][1], np.ndarray):
        # An array without rows says nothing about its dtype: numpy makes float64 of an empty list.
        column = [(place, part) for place, part in column if len(part)] or column[:1]
    first_place, first = column[0]
    expected = _facts(first, padded)
    for place, part in column[1:]:
        found = _facts(part, padded)
        differing = {name for name in expected | found if expected.get(name) != found.get(name)}
        if "O" in (expected.get("kind"), found.get("kind")):
            # Objects may be of any kind, so an array of objects takes the rows of any other array.
            differing.discard("kind")
        if differing:
            name = min(differing, key=[*expected, *found].index)
            told = {first_place: expected, place: found}
            raise _differing(key, name, {at: facts.get(name, facts["type"]) for at, facts in told.items()})


def _facts(column: Any, padded: bool = False) -> dict[str, Any]:
    """What must be the same in all parts, the most telling first."""
    if is_tensordict(column):
        keys = sorted(map(str, column.keys()))
        return {"type": "nested TensorDict", "keys": keys, "batch dims": column.batch_size[1:]}
    if not isinstance(column, (np.ndarray, torch.Tensor, RemoteColumn)):
        return {"type": type(column).__name__}
    form = form_of(column)
    shape = tuple("*" if size is None or padded else size for size in form.row_shape)
    if form.kind == "array":
        return {"type": "array", "kind": form.dtype.kind, "row shape": shape}
    ragged = {"ragged dim": form.row_shape.index(None) + 1} if form.kind == "jagged" else {}
    rest = {"row shape": shape, "dtype": form.dtype, "device": form.device}
    return {"type": f"{form.kind} tensor", **ragged, **rest}


def misfit(column: Any, dtype: Any, row_shape: Sequence[int | None] | None) -> str:
    """What is wrong with a column that is to be of this dtype and row shape; "" where nothing is.

    Args:
        column: of any kind.
        dtype: of torch or numpy, whose strings may be of any length; None for any.
        row_shape: the sizes of a row, None for any; None for any shape.
    """
    # An array without rows says nothing: numpy makes float64 of an empty list.
    if (dtype is None and row_shape is None) or (isinstance(column, np.ndarray) and not len(column)):
        return ""
    facts = _facts(column)
    found, shape = getattr(column, "dtype", None), facts.get("row shape", ())
    if dtype is not None and not _is_of(found, dtype):
        return f"is of dtype {found or facts['type']}, not {dtype}"
    if row_shape is not None and not _has_shape(shape, row_shape):
        wanted = ["*" if size is None else size for size in row_shape]
        return f"has rows of shape {list(shape)}, not {wanted}".replace("'", "")
    return ""


def _is_of(found: Any, dtype: Any) -> bool:
    if isinstance(found, np.dtype) and isinstance(dtype, np.dtype) and dtype.kind in "US":
        return found.kind == dtype.kind
    return isinstance(found, np.dtype) == isinstance(dtype, np.dtype) and bool(found == dtype)


def _has_shape(found: Sequence[Any], wanted: Sequence[int | None]) -> bool:
    return len(found) == len(wanted) and all(
        size in (None, has) for has, size in zip(found, wanted, strict=True)
    )


Keys: TypeAlias = "str | Iterable[str] | None"
"""One key, several keys, or None."""


def key_list(keys: Keys) -> list[str]:
    """`keys` as a list without duplicates: a string is one key, None is no key.

    Raises:
        InvalidTypeError: something else than strings.
    """
    if keys is None:
        return []
    if isinstance(keys, str):
        return [keys]
    given: Any = keys
    named: list[Any] = list(given) if isinstance(given, Iterable) else [given]
    check_keys(named, (str, tuple))
    return list(dict.fromkeys(named))
