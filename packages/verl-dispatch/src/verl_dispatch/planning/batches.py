"""What dispatch does with a batch, the same for DataProto and TensorDict.

Neither is imported here before there is a batch: a worker that never gets one does without torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

import verl_protocol
from verl_protocol import DataProtoFuture
from verl_protocol.futures.any_batch import BatchData, is_batch, is_proto, num_rows_of

if TYPE_CHECKING:
    from verl_protocol import DataProto

__all__ = [
    "answered_rows",
    "concat",
    "is_batch",
    "is_future",
    "is_splittable",
    "num_rows",
    "padded_part",
    "row_weights",
    "split_even",
    "take",
    "wants_padding",
    "without_last",
]


FUTURE_FLAG = "_asks_for_padding"


def is_splittable(value: object) -> bool:
    """Whether a splitting mode can split this by rows: a batch, or the future of one."""
    return is_batch(value) or isinstance(value, DataProtoFuture)


def is_future(value: object) -> TypeGuard[DataProtoFuture[Any]]:
    """Whether this is a batch that another call is still making."""
    return isinstance(value, DataProtoFuture)


def answered_rows(value: object) -> int | None:
    """How many rows this has; None for what is no batch, or one of meta_info only."""
    if not is_batch(value):
        return None
    num_rows = num_rows_of(value)
    if num_rows:
        return num_rows
    proto = _as_proto(value)
    return 0 if proto._held() or proto.non_tensor_batch else None


def num_rows(batch: Any) -> int:
    """Number of rows of a DataProto or TensorDict."""
    return num_rows_of(batch)


def wants_padding(batch: Any) -> bool:
    """Whether a batch, or the future of one, asks for automatic padding."""
    if is_proto(batch):
        return bool(batch.is_padding_enabled())
    return bool(verl_protocol.DataProtoConfig.auto_padding) or getattr(batch, FUTURE_FLAG, False)


def ask_for_padding(future: object) -> None:
    """Says of a future that its rows, when they come, may be padded as those they were made of."""
    setattr(future, FUTURE_FLAG, True)


def split_even(batch: Any, num_parts: int) -> list[Any]:
    """Consecutive parts as views that differ by at most one row; `metrics` stay with the first."""
    return BatchData(batch).chunk(num_parts, uneven=True)


def take(batch: Any, index: Sequence[int]) -> Any:
    """The rows of an index list, as copies."""
    return _like(batch, _as_proto(batch).select_idxs(list(index)))


def padded_part(batch: Any, rows: range | Sequence[int], pad: int, *, is_first: bool) -> Any:
    """These rows, then `pad` copies of the last of them (of the batch's last row if there are none).

    `pad_mask` marks the copies. `metrics` stay with the first part, so that joining all parts gives them
    once.
    """
    from verl_protocol.batch.padding import pad_rows

    proto = _as_proto(batch)
    part = proto[rows] if len(rows) or not pad else proto[len(proto) - 1 :]
    if pad:
        part = pad_rows(part, pad, "last")
        part = part if len(rows) else part[1:]
    if not is_first:
        # A part owns its meta_info, so this touches nothing of the caller's.
        part.meta_info.pop("metrics", None)
    return _like(batch, part)


def without_last(batch: Any, count: int) -> Any:
    """The batch without its last rows, as views."""
    return _like(batch, verl_protocol.unpad_dataproto(_as_proto(batch), count))


def concat(batches: Sequence[Any]) -> Any:
    """The rows of all batches; entries without rows must agree, `metrics` are joined.

    A TensorDict is joined by the same rules as a DataProto.
    """
    return BatchData(list(batches)).concat()


def row_weights(batch: Any, key: str) -> Any:
    """One number per row: its entries of a column summed up; None when the batch lacks the column."""
    proto = _as_proto(batch)
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


def _as_proto(batch: Any) -> DataProto:
    return batch if is_proto(batch) else verl_protocol.DataProto.from_tensordict(batch)


def _like(original: Any, proto: DataProto) -> Any:
    return proto if is_proto(original) else proto.to_tensordict()
