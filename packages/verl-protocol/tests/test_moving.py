"""Batches move as a whole; tensors inside objects move on request."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from verl_protocol import DataProto
from verl_protocol.columns.checks import jagged_of


def test_all_tensor_columns_move_and_self_is_returned() -> None:
    data = DataProto.from_dict(
        {"a": torch.zeros(2), "j": jagged_of([torch.ones(1), torch.ones(2)], 1)}, {"s": [1, 2]}
    )
    assert data.to("meta") is data
    assert data.batch["a"].device.type == data.batch["j"].device.type == "meta"
    assert data.batch.device == torch.device("meta")
    assert len(data) == 2


def test_batches_without_tensors_move_too() -> None:
    data = DataProto.from_dict(non_tensors={"s": [1, 2]})
    assert data.to("meta").batch is None
    assert len(data) == 2


def test_tensors_in_objects_move_on_request_and_stay_shared() -> None:
    shared = {"pixels": torch.zeros(2), "name": "x", "more": [torch.ones(1), (torch.ones(1),)]}
    column = np.empty(1, dtype=object)
    column[0] = torch.ones(1)
    data = DataProto.from_dict(non_tensors={"m": [shared, shared], "o": [column, 3], "n": np.arange(2)})
    data.to("meta")
    assert data.non_tensor_batch["m"][0] is shared
    data.to("meta", objects=True)
    first, second = data.non_tensor_batch["m"]
    assert first is second
    assert (
        first["pixels"].device.type
        == first["more"][0].device.type
        == first["more"][1][0].device.type
        == "meta"
    )
    assert first["name"] == "x"
    assert data.non_tensor_batch["o"][0][0].device.type == "meta"
    assert shared["pixels"].device.type == "cpu"


def test_an_unknown_device_changes_nothing() -> None:
    data = DataProto.from_dict({"a": torch.zeros(2)})
    with pytest.raises(RuntimeError, match="nowhere"):
        data.to("nowhere")
    assert data.batch["a"].device.type == "cpu"
