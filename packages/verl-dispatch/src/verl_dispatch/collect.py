"""The public collect functions, for custom modes: `(group, output) -> result`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_protocol import DataProtoFuture

from verl_dispatch import batches
from verl_dispatch.answer_rows import joined_batches
from verl_dispatch.errors import EntryCountError

__all__ = [
    "collect_all_to_all",
    "collect_dp_compute",
    "collect_dp_compute_data_proto",
    "collect_nd_compute",
    "collect_nd_compute_dataproto",
]


def collect_all_to_all(group: Any, output: Any) -> Any:
    """The answers as they are."""
    return output


def collect_dp_compute(group: Any, output: Sequence[Any]) -> Sequence[Any]:
    """The answers as they are, one per worker.

    Raises:
        EntryCountError: another number of answers.
    """
    if len(output) != group.world_size:
        raise EntryCountError("the output", group.world_size, len(output))
    return output


def collect_dp_compute_data_proto(group: Any, output: Sequence[Any]) -> Any:
    """The answers joined to one batch; from futures, one DataProtoFuture.

    Raises:
        AnswerNotBatchError: an answer that is neither a batch nor a future.
    """
    return _concat_data_proto_or_future(collect_dp_compute(group, output))


def collect_nd_compute(collect_mask: Sequence[bool], group: Any, output: Sequence[Any]) -> list[Any]:
    """The answers of those ranks that the mask names, in rank order.

    Raises:
        EntryCountError: the mask or the output has not one entry per worker.
    """
    for label, entries in (("the collect mask", collect_mask), ("the output", output)):
        if len(entries) != group.world_size:
            raise EntryCountError(label, group.world_size, len(entries))
    return [value for value, collects in zip(output, collect_mask, strict=True) if collects]


def collect_nd_compute_dataproto(collect_mask: Sequence[bool], group: Any, output: Sequence[Any]) -> Any:
    """The batches of those ranks that the mask names, joined in rank order."""
    return _concat_data_proto_or_future(collect_nd_compute(collect_mask, group, output))


def _concat_data_proto_or_future(output: Sequence[Any]) -> Any:
    """Batches joined to one batch, futures to one DataProtoFuture."""
    if any(isinstance(value, DataProtoFuture) or _is_pending(value) for value in output):
        return DataProtoFuture.concat(list(output))
    return joined_batches("collect", range(len(output)), None, output)


def _is_pending(value: Any) -> bool:
    return not batches.is_batch(value) and (hasattr(value, "future") or hasattr(value, "result"))
