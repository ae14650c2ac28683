"""Batches that the tests send, and what they look for in the answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from verl_protocol import DataProto, DataProtoFuture

from verl_dispatch.conformance.workers import ids_of

__all__ = ["KINDS", "as_kind", "batch", "ids_of", "ranks_of"]

KINDS = ("DataProto", "TensorDict", "DataProtoFuture")
"""The kinds of batches that every splitting mode takes."""


def batch(num_rows: int, *, first: int = 0, auto_padding: bool = False, **meta: Any) -> DataProto:
    """Rows with an id `i`, a tensor `x` and a string `s`."""
    ids = torch.arange(first, first + num_rows)
    return DataProto.from_dict(
        tensors={"i": ids, "x": ids[:, None] + torch.zeros(1, 2)},
        non_tensors={"s": np.array([f"row {i}" for i in ids.tolist()], dtype=object)},
        meta_info=meta,
        auto_padding=auto_padding,
    )


def as_kind(data: DataProto, kind: str) -> Any:
    """The batch as one of `KINDS`."""
    if kind == "DataProto":
        return data
    if kind == "DataProtoFuture":
        return DataProtoFuture.concat([data])
    from tensordict import TensorDict

    return TensorDict({"i": data.tensor("i").clone(), "x": data.tensor("x").clone()}, batch_size=[len(data)])


def ranks_of(data: Any) -> Sequence[int]:
    """Which rank had each row."""
    ranks = data.tensor("rank") if isinstance(data, DataProto) else data["rank"]
    found: list[int] = ranks.tolist()
    return found
