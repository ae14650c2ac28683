"""The rows of all ranks of a process group in the batch of each."""

from __future__ import annotations

from typing import Any

import torch

from verl_protocol import wire
from verl_protocol.batch import DataProto
from verl_protocol.state import check_batch

__all__ = ["all_gather_data_proto"]


def all_gather_data_proto(data: DataProto, process_group: Any = None) -> None:
    """Put the rows of all ranks, in rank order, into `data` itself.

    Every rank of the group must call this. Ranks may have different numbers of rows; metrics become flat
    lists in rank order. Tensors land on the device that they were on.

    Args:
        data: this rank's batch; changed in place.
        process_group: a group of torch.distributed, None for the default one; or anything with
            `all_gather_object(value) -> list`, such as what a worker's `process_group()` gives.

    Raises:
        MissingColumnsError, ColumnMismatchError, MetaConflictError: the batches do not fit together; `data`
            is then as it was.
    """
    check_batch(data)
    whole = DataProto.concat(_of_all_ranks(data, process_group))
    device = _device_of(data)
    data._become(whole if device is None else whole.to(device))


def _of_all_ranks(data: DataProto, process_group: Any) -> list[Any]:
    """Every rank's batch, in rank order."""
    if hasattr(process_group, "all_gather_object"):
        return list(process_group.all_gather_object(wire.pack(data)))
    distributed: Any = torch.distributed
    parts: list[Any] = [None] * distributed.get_world_size(process_group)
    distributed.all_gather_object(parts, wire.pack(data), group=process_group)
    return parts


def _device_of(data: DataProto) -> torch.device | None:
    """The device of the tensors, None where all are on the CPU."""
    devices = [tensor.device for tensor in data._columns().values()]
    return next((device for device in devices if device.type != "cpu"), None)
