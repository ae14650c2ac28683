"""Batches put together: `concat` adds rows, `union` adds columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import errors
from verl_protocol.batch.column_ops import BatchColumns, without
from verl_protocol.batch.metadata import MergeRule, merge_meta
from verl_protocol.batch.state import BatchState, not_batches
from verl_protocol.columns import checks, ops
from verl_protocol.columns.equality import difference, equal
from verl_protocol.columns.reading import read, read_all
from verl_protocol.columns.remote import RemoteColumn

D = TypeVar("D", bound="BatchJoining")

Side = Literal["left", "right"]


class BatchJoining(BatchColumns):
    """How a `DataProto` is put together with others."""

    @staticmethod
    def concat(
        data: Sequence[D],
        *,
        merge: Mapping[str, MergeRule] | None = None,
        pad: Mapping[str, float] | None = None,
        pad_side: Side = "right",
    ) -> D:
        """The rows of all parts, one part after the other; the same columns in each.

        `metrics` become flat lists in part order. Other meta_info keys must be equal where several parts hold
        them, unless `merge` names a rule. Parts without rows and columns add their meta_info only.

        Args:
            merge: how to join a meta_info key: first, list, mean, sum, min, max or a callable on the list.
            pad: tensor columns that may differ in width, and the value to widen them with.

        Raises:
            NothingToConcatError: no parts.
            InvalidTypeError: parts that are no DataProto.
            SchemaError: columns that do not fit, by key and part.
            MetaConflictError: parts that disagree about a meta_info key.

        >>> import torch
        >>> from verl_protocol import DataProto
        >>> parts = DataProto.from_dict(tensors={"a": torch.arange(4)}).chunk(2)
        >>> DataProto.concat(parts).batch["a"].tolist()
        [0, 1, 2, 3]
        """
        parts: list[D] = _batches(data)
        if not parts:
            raise errors.NothingToConcatError
        counts = [part._checked_rows() for part in parts]
        held = [part._held() for part in parts]
        full = [at for at, part in enumerate(parts) if counts[at] or held[at] or part.non_tensor_batch] or [0]
        tensors = _concat_tensors([(place, held[place]) for place in full], pad or {}, pad_side)
        arrays: list[checks.PlacedColumns] = [(place, parts[place].non_tensor_batch) for place in full]
        checks.check_schema(arrays, "non-tensor columns")
        meta = merge_meta([part.meta_info for part in parts], merge)
        non_tensors = ops.concat_all([columns for _, columns in arrays])
        made = parts[full[0]]._with(tensors, sum(counts), non_tensors, {})
        made.meta_info = meta
        if [part for part in parts if part._auto_padding]:
            made._auto_padding = True
        if [part for part in parts if part._pad_mask is not None]:
            made._pad_mask = torch.cat([part.pad_mask for part in parts])
        return made

    def union(self, other: BatchJoining) -> Self:
        """Add columns and meta_info of a batch of the same rows to this one, and return this one.

        A key that both have must have equal values. After an error nothing has changed. A TensorDict that
        `.batch` has built gets the columns too; one that was handed in, or is locked, stays as it is.

        Raises:
            RowCountError: the numbers of rows differ.
            ColumnError: the columns would be on several devices.
            SchemaError, MetaConflictError, KeyConflictError: what both hold differs.
        """
        if not isinstance(other, BatchJoining):
            raise not_batches([type(other).__name__])
        count = _common_rows(self, other)
        tensors, added = self._held(), other._held()
        arrays, others = self.non_tensor_batch, other.non_tensor_batch
        checks.check_disjoint(tensors, others, checks.TWO_KINDS)
        checks.check_disjoint(arrays, added, checks.TWO_KINDS)
        checks.check_devices({**added, **tensors})
        _check_same(tensors, added)
        _check_same(arrays, others)
        meta = union_meta(self.meta_info, other.meta_info)
        if not self._has_batch() and other._has_batch():
            self._set_columns({}, count, other._batch_device())
        joined = {**tensors, **without(added, tensors)}
        self._replace(joined, {**arrays, **without(others, arrays)}, meta, count)
        self._auto_padding = self._auto_padding or other._auto_padding
        self._pad_mask = other._pad_mask if self._pad_mask is None else self._pad_mask
        return self


def _batches(data: Any) -> list[Any]:
    if isinstance(data, BatchJoining):
        raise not_batches("one DataProto; put it in a list")
    if not isinstance(data, Iterable):
        raise not_batches([type(data).__name__])
    parts = list(data)
    for part in parts:
        if not isinstance(part, BatchJoining):
            raise not_batches([type(each).__name__ for each in parts])
    return parts


def _concat_tensors(
    parts: list[checks.PlacedColumns], pad: Mapping[str, float], side: Side
) -> dict[str, torch.Tensor]:
    if pad:
        # Those to be widened must be here.
        parts = [
            (place, {**columns, **read_all({key: columns[key] for key in pad if key in columns})})
            for place, columns in parts
        ]
    checks.check_schema(parts, "tensor columns", frozenset(pad))
    wider = [dict(columns) for _, columns in parts]
    if missing := [key for key in pad if key not in wider[0]]:
        raise checks.missing_columns("tensor columns", {"pad": missing, 0: sorted(wider[0])})
    for key, value in pad.items():
        _check_pad(key, [tensors[key] for tensors in wider], value, side)
    for key, value in pad.items():
        shapes = [tensors[key].shape[1:] for tensors in wider]
        width = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
        for tensors in wider:
            tensors[key] = _widen(tensors[key], width, value, side)
    return ops.concat_all(wider)


def _check_pad(key: str, column: Sequence[Any], value: Any, side: Any) -> None:
    """Check that a column can be widened, and that its dtype can hold the value that it is widened with."""
    if any(not isinstance(part, torch.Tensor) or part.is_nested for part in column):
        problem = "only dense tensor columns have a width; jagged ones need no padding"
    elif not isinstance(value, (int, float)):
        problem = f"the value must be a number, got {value!r}"
    elif not _holds(column[0].dtype, value):
        problem = f"{str(column[0].dtype).removeprefix('torch.')} cannot hold {value!r}"
    elif side not in ("left", "right"):
        problem = f"pad_side must be 'left' or 'right', got {side!r}"
    else:
        return
    raise errors.ColumnError(f"pad={{{key!r}: ...}} cannot be honoured: {problem}")


def _holds(dtype: torch.dtype, value: float) -> bool:
    """Whether a tensor of this dtype can hold the number, rounded at most."""
    try:
        held = torch.full((), value, dtype=dtype).item()
    except (RuntimeError, TypeError, ValueError, OverflowError):
        return False
    return dtype.is_floating_point or dtype.is_complex or held == value


def _widen(column: torch.Tensor, width: tuple[int, ...], value: float, side: Side) -> torch.Tensor:
    if tuple(column.shape[1:]) == width:
        return column
    missing = [total - size for size, total in zip(column.shape[1:], width, strict=True)]
    # The last dimension first, each with what goes before and what goes after.
    pads = [amount for each in reversed(missing) for amount in ((each, 0) if side == "left" else (0, each))]
    # `torch.nn.functional.pad` would make a float of the value, which holds no large whole number.
    return torch.constant_pad_nd(column, pads, value)


def _common_rows(data: BatchState, other: BatchState) -> int:
    """The number of rows that both have; those of one where the other has no columns."""
    first, second = data._checked_rows(), other._checked_rows()
    has_rows = [batch._has_batch() or batch.non_tensor_batch for batch in (data, other)]
    if all(has_rows) and first != second:
        fewer, more = sorted((first, second))
        hint = f"; did you mean repeat({more // fewer})?" if fewer and more % fewer == 0 else ""
        raise errors.RowCountError(
            f"union adds columns to the same rows, but the batches have {errors.counted(first, 'row')} "
            f"and {second}{hint}"
        )
    return max(first, second)


def _check_same(held: Mapping[str, Any], added: Mapping[str, Any]) -> None:
    for key in held:
        if key not in added or (isinstance(held[key], RemoteColumn) and held[key].names_same(added[key])):
            continue
        where = difference(read(held[key], key), read(added[key], key))
        if where is not None:
            raise errors.SchemaError(
                f"column {key!r} is in both batches and differs{where}; drop it from one, or rename it"
            )


def union_meta(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of both, not copied; a key in both must have equal values.

    Raises:
        MetaConflictError: a key has different values.
    """
    for key, value in second.items():
        if key in first and not equal(first[key], value):
            raise errors.MetaConflictError(key, {"this batch": first[key], "the other": value})
    return {**first, **without(second, first)}


def union_numpy_dict(
    tensor_dict1: dict[str, NDArray[Any]], tensor_dict2: Mapping[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Add the arrays of the second dict to the first and return the first; keys in both must be equal.

    Raises:
        SchemaError: a key has different rows; the first dict is then as it was.
    """
    for key, value in tensor_dict2.items():
        if not isinstance(value, np.ndarray):
            raise errors.InvalidTypeError(f"{key!r} must be an array, got {type(value).__name__}")
    _check_same(tensor_dict1, tensor_dict2)
    tensor_dict1.update(without(tensor_dict2, tensor_dict1))
    return tensor_dict1
