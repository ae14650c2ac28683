"""How a batch is written into a pickle, and how it is made again."""

from __future__ import annotations

from typing import Any

import torch

from verl_protocol import wire_tensor
from verl_protocol.state import BatchState
from verl_protocol.wire_buffer import Part, Reduction
from verl_protocol.wire_version import VersionTag


def reduce_batch(batch: BatchState, part: Part) -> Reduction:
    """The reduction of a batch: its class, columns, meta_info and whatever else it carries."""
    on_device = batch._batch_device() is not None
    columns = {key: part(column) for key, column in batch.non_tensor_batch.items()}
    others = (columns, part(batch.meta_info), part(batch._private()))
    if batch._tensordict is not None and not _is_columns_only(batch):
        return restore_batch, (VersionTag(), type(batch), part(batch._tensordict), 0, on_device, *others)
    tensors = {key: part(tensor) for key, tensor in batch._columns().items()} if batch._has_batch() else None
    return restore_batch, (VersionTag(), type(batch), tensors, batch._row_count(), on_device, *others)


def _is_columns_only(batch: BatchState) -> bool:
    """Whether the batch's TensorDict says no more than its columns, row count and device do."""
    from tensordict import TensorDict

    tensordict: Any = batch._tensordict
    named = any(name is not None for name in tensordict.names or ())
    return type(tensordict) is TensorDict and len(tensordict.batch_size) == batch._row_dims and not named


def restore_batch(
    version: int,
    kind: type[BatchState],
    tensors: Any,
    num_rows: int,
    on_device: bool,
    non_tensors: dict[str, Any],
    meta: dict[str, Any],
    private: dict[str, Any],
) -> Any:
    """A batch from its parts; `tensors` is a dict of columns, a TensorDict or None."""
    batch: BatchState = object.__new__(kind)
    batch.__dict__.update(private, non_tensor_batch=non_tensors, meta_info=meta)
    if tensors is None or isinstance(tensors, dict):
        device = (wire_tensor.target_device() or torch.device("cpu")) if on_device else None
        batch._set_columns(tensors, num_rows, device)
    else:
        batch._write_batch(tensors)
    return batch
