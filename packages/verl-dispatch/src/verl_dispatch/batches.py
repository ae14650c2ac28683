"""What dispatch does with a batch, the same for DataProto and TensorDict, which is never imported here."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, TypeGuard

import torch
from verl_protocol import DataProto, DataProtoConfig, DataProtoFuture

__all__ = [
    "concat",
    "has_rows",
    "is_batch",
    "is_splittable",
    "is_tensordict",
    "narrow",
    "num_rows",
    "row_weights",
    "split",
    "take",
    "wants_padding",
]


def is_tensordict(value: object) -> bool:
    """Whether this is a TensorDict, or another of tensordict's collections."""
    module = sys.modules.get("tensordict")
    return module is not None and isinstance(value, module.TensorDictBase)


def is_batch(value: object) -> bool:
    """Whether this is a DataProto or a TensorDict."""
    return isinstance(value, DataProto) or is_tensordict(value)


def is_future(value: object) -> TypeGuard[DataProtoFuture]:
    """Whether this is a batch that another call is still making."""
    return isinstance(value, DataProtoFuture)


def is_splittable(value: object) -> bool:
    """Whether a splitting mode can split this by rows."""
    return isinstance(value, (DataProto, DataProtoFuture)) or is_tensordict(value)


def has_rows(value: object) -> bool:
    """Whether this is a batch with at least one column (which may have no rows)."""
    if isinstance(value, DataProto):
        return bool(value._columns()) or bool(value.non_tensor_batch)
    return is_tensordict(value) and has_rows(_as_proto(value))


def num_rows(batch: Any) -> int:
    """Number of rows of a DataProto or TensorDict."""
    return len(batch) if isinstance(batch, DataProto) else len(_as_proto(batch))


def wants_padding(batch: Any) -> bool:
    """Whether a batch asks for automatic padding."""
    if isinstance(batch, DataProto):
        return bool(batch.is_padding_enabled())
    return is_tensordict(batch) and bool(DataProtoConfig.auto_padding)


def narrow(batch: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop`, as views."""
    if isinstance(batch, DataProto):
        return batch[start:stop]
    return _as_proto(batch)[start:stop].to_tensordict()


def take(batch: Any, index: Sequence[int]) -> Any:
    """The rows of an index list, as copies."""
    if isinstance(batch, DataProto):
        return batch.select_idxs(list(index))
    return _as_proto(batch).select_idxs(list(index)).to_tensordict()


def split(batch: Any, parts: Sequence[range | Sequence[int]]) -> list[Any]:
    """One batch per part; `metrics` stay with the first, so that joining the parts gives them once."""
    if not isinstance(batch, DataProto):
        return [part.to_tensordict() for part in split(_as_proto(batch), parts)]
    pieces = [
        batch[part.start : part.stop] if isinstance(part, range) else batch.select_idxs(list(part))
        for part in parts
    ]
    for piece in pieces[1:]:
        # A piece owns its meta_info, so this touches nothing of the caller's.
        piece.meta_info.pop("metrics", None)
    return pieces


def concat(batches: Sequence[Any]) -> Any:
    """The rows of all batches; entries without rows must agree, `metrics` are joined.

    A TensorDict is joined by the same rules as a DataProto.
    """
    if any(isinstance(batch, DataProto) for batch in batches):
        return DataProto.concat(list(batches))
    return DataProto.concat([_as_proto(batch) for batch in batches]).to_tensordict()


def row_weights(batch: Any, key: str) -> Any:
    """One number per row: its entries of a column summed up; None when the batch lacks the column."""
    proto = batch if isinstance(batch, DataProto) else _as_proto(batch)
    column = proto._columns().get(key)
    if column is None:
        return proto.non_tensor_batch.get(key)
    if column.is_nested:
        return [float(row.sum()) for row in column.unbind()]
    return column.reshape(column.shape[0], -1).to(torch.float64).sum(dim=1)


def _as_proto(batch: Any) -> DataProto:
    return DataProto.from_tensordict(batch)
