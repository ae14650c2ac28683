"""Jagged tensors made from rows, put together, and repaired."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from verl_protocol import jagged, rows
from verl_protocol.columns import column_of_tensors
from verl_protocol.errors import NothingToConcatError
from verl_protocol.kinds import is_jagged
from verl_protocol.schema import check_schema
from verl_protocol.tensordict_batch import checked_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDict


def nested_tensor_from_tensor_list(
    tensors: Sequence[torch.Tensor], ragged_idx: int | None = None
) -> torch.Tensor:
    """A jagged tensor of these rows; which dimension is ragged never depends on their sizes.

    Args:
        tensors: the rows, each of one dimension or more.
        ragged_idx: the dimension of the result along which rows may differ: 1 is the first of a row; None is
            the last.

    Raises:
        RaggedDimError: rows do not have that dimension.
        RaggedRowsError, ColumnMismatchError: rows differ in another dimension, or in their dtype.
        NothingToConcatError: no rows.

    >>> rows = [torch.zeros(4, 3), torch.zeros(4, 3)]
    >>> nested_tensor_from_tensor_list(rows).offsets()
    tensor([0, 3, 6])
    """
    return column_of_tensors("tensors", tensors, "last" if ragged_idx is None else ragged_idx)


def concat_nested_tensors(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The rows of all jagged tensors, one after the other.

    Raises:
        NothingToConcatError: no tensors.
        ColumnMismatchError: they differ in ragged dimension, row shape, dtype or device.
    """
    if not tensors:
        raise NothingToConcatError
    check_schema([(place, {"tensors": tensor}) for place, tensor in enumerate(tensors)], "jagged tensors")
    return rows.concat(tensors)


def maybe_fix_3d_position_ids(data: TensorDict) -> None:
    """Make the last dimension of jagged `position_ids` (rows, components, length) the ragged one, in place.

    Rows of equal shape do not tell which of their dimensions is ragged, and some tools take the first, or
    forget. Position ids of other forms stay as they are.
    """
    value: Any = checked_tensordict("data", data).get("position_ids", None)
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
    compact = jagged.jagged_parts(rows.concat([jagged.build_jagged(*parts[:2], 1, parts.lengths)])).values
    values = compact.view(num_rows, components, width).transpose(0, 1).reshape(components, num_rows * width)
    return jagged.build_jagged(values, torch.arange(num_rows + 1, device=values.device) * width, 2)
