"""Batches and tensors that several test files use, and the shortest ways through a pickle."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from verl_protocol import DataProto
from verl_protocol.batch.apart import bound, set_apart
from verl_protocol.columns.reading import InProcessStore

if TYPE_CHECKING:
    from tensordict import TensorDict


def round_trip(value: Any, protocol: int = 5) -> Any:
    """`value` after a pickle with everything in it."""
    return pickle.loads(pickle.dumps(value, protocol))


def out_of_band(value: object) -> tuple[bytes, list[bytes]]:
    """A pickle of `value`, and copies of its out-of-band buffers."""
    buffers: list[pickle.PickleBuffer] = []
    payload = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    return payload, [bytes(buffer.raw()) for buffer in buffers]


def jagged(lengths: list[int], start: float = 0.0) -> torch.Tensor:
    """Rows of one dimension and these lengths, whose entries count up from `start`."""
    values = torch.arange(start, start + sum(lengths))
    return torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, *lengths]).cumsum(0))


def jagged_wide(lengths: list[int], dim: int = 1) -> torch.Tensor:
    """Rows of shape (length, 3) for dim 1, (3, length) for dim 2."""
    shape = (sum(lengths), 3) if dim == 1 else (3, sum(lengths))
    values = torch.arange(float(sum(lengths) * 3)).view(shape)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim)


def rows_of(tensor: torch.Tensor) -> list[Any]:
    """The rows of a jagged tensor as lists."""
    return [row.tolist() for row in tensor.unbind()]


def full_batch(num_rows: int = 3) -> DataProto:
    """A batch with a column of each kind, meta_info and metrics."""
    tensors = {"a": torch.arange(num_rows * 2).view(num_rows, 2), "j": jagged_wide([2] * num_rows, 2)}
    arrays: dict[str, Any] = {"s": [f"row {row}" for row in range(num_rows)], "n": np.arange(num_rows)}
    return DataProto.from_dict(tensors, arrays, {"step": 3, "metrics": {"loss": [0.5]}})


def full_tensordict(num_rows: int, **meta: Any) -> TensorDict:
    """A TensorDict with an entry of each kind, and `meta` as data without rows."""
    from verl_protocol import tensordict_ops as ops

    columns = {
        "a": torch.arange(num_rows),
        "s": [f"s{row}" for row in range(num_rows)],
        "o": [[1, 2]] * num_rows,
    }
    return ops.get_tensordict({**columns, "j": jagged([2] * num_rows)} if num_rows else columns, meta)


def remote(data: DataProto, num_pieces: int = 2) -> DataProto:
    """The same batch, whose tensor columns lie in a store of this process, in so many pieces."""
    store, parts = InProcessStore(), []
    for part in data.chunk(num_pieces, uneven=True):
        rest, objects = set_apart(part, large_bytes=0)
        parts.append(bound(rest, store, [store.put(columns) for columns in objects]))
    return DataProto.concat(parts)
