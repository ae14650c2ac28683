"""TensorDicts on the wire."""

from __future__ import annotations

import pickle

import pytest
import torch
from protocol_samples import jagged_wide, out_of_band, round_trip
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl_protocol import tensordict_ops as ops
from verl_protocol import wire


def tensordict() -> TensorDict:
    data = ops.get_tensordict(
        {"a": torch.arange(1000).view(2, 500), "j": jagged_wide([100, 50], 2), "s": ["x", "x"]},
        {"k": {"w": torch.ones(300)}},
    )
    data["n"] = TensorDict({"y": torch.zeros(2, 200)}, [2])
    return data


def test_a_bare_tensordict_travels_by_the_same_wire() -> None:
    data = tensordict()
    payload, buffers = out_of_band(wire.pack({"td": data}))
    assert sorted(map(len, buffers)) == [1200, 1600, 1800, 8000]
    got = pickle.loads(payload, buffers=buffers)["td"]
    ops.assert_tensordict_eq(got, data)
    assert isinstance(got.get("s"), NonTensorStack)
    assert isinstance(got.get("k"), NonTensorData)
    got["new"] = torch.zeros(2)
    got["a"][0] = 7
    assert data["a"][0, 0] == 0


@pytest.mark.parametrize(
    "data",
    [
        TensorDict({}, [3]),
        TensorDict({"a": torch.zeros(2, 3)}, [2, 3], names=["x", "y"]),
        TensorDict({"a": torch.zeros(2)}, [2], device="cpu").lock_(),
        ops.get_tensordict({}, {"k": 1}),
        ops.get_tensordict({"s": [], "a": torch.zeros(0)}),
    ],
    ids=["no columns", "two dims", "locked", "data", "no rows"],
)
def test_tensordicts_of_every_kind_come_back(data: TensorDict) -> None:
    got = round_trip(wire.pack(data))
    assert (got.batch_size, got.names, got.device, got.is_locked) == (
        data.batch_size,
        data.names,
        data.device,
        False,
    )
    assert set(got.keys()) == set(data.keys())


def test_lazy_stacks_take_tensordicts_own_way() -> None:
    from tensordict import LazyStackedTensorDict

    data = LazyStackedTensorDict(
        TensorDict({"a": torch.zeros(2)}), TensorDict({"a": torch.ones(3)}), stack_dim=0
    )
    got = round_trip(wire.pack([data]))[0]
    assert isinstance(got, LazyStackedTensorDict)
    assert got[1]["a"].sum() == 3


def test_memory_mapped_tensors_travel_as_data() -> None:
    from tensordict import MemoryMappedTensor

    got = round_trip(wire.pack(MemoryMappedTensor.from_tensor(torch.arange(500))))
    assert type(got) is torch.Tensor
    assert torch.equal(got, torch.arange(500))
