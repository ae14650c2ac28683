"""What dispatch does with a batch, the same for DataProto and TensorDict.

Neither is imported here before there is a batch: a worker that never gets one does without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import verl_protocol
from verl_protocol import DataProtoFuture
from verl_protocol.futures.any_batch import as_proto, has_columns, is_batch, is_proto, like, num_rows_of

if TYPE_CHECKING:
    from verl_protocol import DataProto

FUTURE_FLAG = "_asks_for_padding"


def is_splittable(value: object) -> bool:
    """Whether a splitting mode can split this by rows: a batch, or the future of one."""
    return is_batch(value) or isinstance(value, DataProtoFuture)


def answered_rows(value: object) -> int | None:
    """How many rows this has; None for what is no batch, or one of meta_info only."""
    if not is_batch(value):
        return None
    num_rows = num_rows_of(value)
    return num_rows if num_rows or has_columns(value) else None


def wants_padding(batch: Any) -> bool:
    """Whether a batch, or the future of one, asks for automatic padding."""
    if is_proto(batch):
        return bool(batch.is_padding_enabled())
    return bool(verl_protocol.DataProtoConfig.auto_padding) or getattr(batch, FUTURE_FLAG, False)


def ask_for_padding(future: object) -> None:
    """Says of a future that its rows, when they come, may be padded as those they were made of."""
    setattr(future, FUTURE_FLAG, True)


PaddedRows: TypeAlias = tuple[range | tuple[int, ...], int]
"""Rows of a batch, and how many rows of padding come after them."""


def padded_parts(batch: Any, parts: Sequence[PaddedRows], *, first: int = 0) -> list[Any]:
    """The rows of each part, then as many copies of the last of them as it has padding.

    Where there are no rows, the copies are of the batch's last row. `pad_mask` marks the copies. `metrics`
    stay with part number 0, so that joining all parts gives them once.

    Args:
        first: the number of the first of these parts.
    """
    proto = as_proto(batch)
    cut = [_padded_part(proto, rows, pad) for rows, pad in parts]
    for part in cut[0 if first else 1 :]:
        # A part owns its meta_info, so this touches nothing of the caller's.
        part.meta_info.pop("metrics", None)
    return [like(batch, part) for part in cut]


def _padded_part(proto: DataProto, rows: range | tuple[int, ...], pad: int) -> DataProto:
    from verl_protocol.batch.padding import pad_rows

    if not pad:
        return proto[rows]
    padded = pad_rows(proto[rows] if len(rows) else proto[len(proto) - 1 :], pad, "last")
    return padded if len(rows) else padded[1:]


def row_weights(batch: Any, key: str) -> Any:
    """One number per row: its entries of a column summed up; None when the batch lacks the column."""
    proto = as_proto(batch)
    column = proto.tensor(key) if key in proto._held() else None
    if column is None:
        found = proto.non_tensor_batch.get(key)
        return None if found is None else [_number(value) for value in found]
    if column.is_nested:
        return [float(row.sum()) for row in column.unbind()]
    numbers = column.double()
    return numbers.flatten(1).sum(dim=1) if numbers.dim() > 1 else numbers


def _number(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError(f"{value!r} is a text")
    return float(value)
