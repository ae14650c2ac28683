"""One row of a batch, and the columns that such rows make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from numpy.typing import NDArray

from verl_protocol.batch.convert import list_of_dict_to_dict_of_list, row_of
from verl_protocol.batch.describe import describe_item
from verl_protocol.batch.metadata import METRICS, copy_meta, merge_meta
from verl_protocol.batch.state import BatchField, BatchState
from verl_protocol.columns import jagged
from verl_protocol.columns.checks import column_of, column_of_tensors
from verl_protocol.columns.equality import equal
from verl_protocol.errors import InvalidTypeError, NothingToConcatError
from verl_protocol.kinds import is_jagged


@dataclass(eq=False, repr=False)
class DataProtoItem(BatchState):
    """One row of a batch: a TensorDict without batch dimension, the row's objects, and the meta_info."""

    _row_dims: ClassVar[int] = 0

    batch: BatchField = BatchField()  # noqa: RUF009 - a descriptor, no default that instances share
    non_tensor_batch: dict[str, Any] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return describe_item(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DataProtoItem):
            return NotImplemented
        mine = (self._columns(), self.non_tensor_batch, self.meta_info)
        return equal(mine, (other._columns(), other.non_tensor_batch, other.meta_info))

    __hash__: ClassVar[None] = None  # type: ignore[assignment]


def item_of(data: BatchState, row: int) -> DataProtoItem:
    """Row `row` of `data`: tensors as views, objects as they are."""
    tensors, arrays = data._columns(), data.non_tensor_batch
    item = DataProtoItem(
        None, {key: column[row] for key, column in arrays.items()}, copy_meta(data.meta_info)
    )
    rows = {key: row_of(column, row) for key, column in tensors.items()}
    item._set_columns(rows if data._has_batch() else None, 1, data._batch_device())
    # A row does not tell whether its column was jagged, or an array of numbers, so the item remembers.
    ragged = {key: jagged.ragged_dim(column) for key, column in tensors.items() if is_jagged(column)}
    item.__dict__["_kinds"] = (ragged, {key: column[:0].copy() for key, column in arrays.items()})
    return item


def columns_of_items(
    items: Sequence[DataProtoItem],
) -> tuple[dict[str, torch.Tensor] | None, dict[str, NDArray[Any]], dict[str, Any]]:
    """Tensor columns, array columns and meta_info of a batch whose rows are `items`; see `collate_fn`."""
    if not items:
        raise NothingToConcatError
    given: Sequence[Any] = items
    if odd := [type(item).__name__ for item in given if not isinstance(item, DataProtoItem)]:
        raise InvalidTypeError(f"expected rows of a batch (DataProtoItem), got {odd}; concat joins batches")
    ragged, kinds = items[0].__dict__.get("_kinds", ({}, {}))
    held = list_of_dict_to_dict_of_list([item._columns() for item in items])
    tensors = {key: _column_of(key, rows, ragged.get(key)) for key, rows in held.items()}
    objects = list_of_dict_to_dict_of_list([item.non_tensor_batch for item in items])
    arrays = {key: column_of(rows, kinds.get(key)) for key, rows in objects.items()}
    # Metrics belong to the whole batch that the rows come from, so they count once and not once per row.
    meta = merge_meta([item.meta_info for item in items], {METRICS: "first"})
    return (tensors if any(item._has_batch() for item in items) else None), arrays, meta


def _column_of(key: str, rows: Sequence[Any], ragged_dim: int | None) -> torch.Tensor:
    # Rows of nested TensorDicts and of their non-tensor data know themselves how they are stacked.
    plain = all(isinstance(row, torch.Tensor) for row in rows)
    return column_of_tensors(key, rows, ragged_dim) if plain else torch.stack(list(rows))
