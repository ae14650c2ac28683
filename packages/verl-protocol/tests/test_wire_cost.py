"""What it costs to send a batch: bytes, copies, imports and memory."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from protocol_samples import full_batch, jagged_wide, out_of_band, round_trip
from verl_protocol import DataProto, wire


def big() -> dict[str, torch.Tensor]:
    names = {"f32": torch.float32, "bf16": torch.bfloat16, "fp8": torch.float8_e4m3fn, "i64": torch.int64}
    return {name: torch.ones(512, 64).to(dtype) for name, dtype in names.items()}


@pytest.mark.parametrize(
    "tensors",
    [
        big(),
        {"j": jagged_wide([64] * 512, 2), **big()},
        {"t": torch.ones(64, 512).t()},
        {"x": torch.ones(512, 1).expand(512, 64)},
    ],
    ids=["dtypes", "jagged", "transposed", "expanded"],
)
def test_tensors_are_outside_the_pickle(tensors: dict[str, torch.Tensor]) -> None:
    data = DataProto.from_dict(tensors)
    payload, buffers = out_of_band(data)
    assert len(payload) < 20_000
    assert sum(map(len, buffers)) == data.nbytes()
    assert len(buffers) == len(tensors) + ("j" in tensors)


def test_a_chunk_ships_its_own_rows() -> None:
    data = DataProto.from_dict({"a": torch.zeros(512, 64), "j": jagged_wide([64] * 512)})
    whole = sum(map(len, out_of_band(data)[1]))
    pieces = [sum(map(len, out_of_band(piece)[1])) for piece in data.chunk(4)]
    assert whole < sum(pieces) < whole + 100


def test_in_band_pickles_hold_every_byte_once() -> None:
    data = DataProto.from_dict({"a": torch.zeros(512, 512), "n": torch.zeros(512)})
    for protocol in (4, 5):
        assert len(pickle.dumps(data, protocol)) < 1.05 * data.nbytes()


def test_buffers_can_be_read_without_a_copy_on_request() -> None:
    payload, buffers = out_of_band(DataProto.from_dict({"a": torch.zeros(5000)}))
    memory = bytearray(buffers[0])
    got = wire.loads(payload, [memoryview(memory)], readers="one")
    got.batch["a"][0] = 1
    assert np.frombuffer(memory, np.float32)[0] == 1


def test_a_write_into_a_read_only_batch_is_noticed() -> None:
    packed = wire.pack(full_batch(500), readers="read_only")
    payload, buffers = out_of_band(packed)
    got = pickle.loads(payload, buffers=buffers)
    assert got.batch["a"].sum() > 0
    wire.check_unwritten(got)
    got.batch["a"] += 1
    with pytest.raises(wire.ReadOnlyWriteError, match="'a'") as caught:
        wire.check_unwritten(got)
    assert caught.value.column == "a"


def test_a_new_column_in_a_read_only_batch_is_no_write() -> None:
    payload, buffers = out_of_band(wire.pack(full_batch(500), readers="read_only"))
    got = pickle.loads(payload, buffers=buffers)
    got.batch["b"] = got.batch["a"] * 2
    got.batch["a"] = torch.zeros(500, 2, dtype=torch.int64)
    got.batch["a"] += 1
    wire.check_unwritten(got)


@pytest.mark.parametrize("send", [pickle.dumps, out_of_band, copy.deepcopy, wire.dumps])
def test_tensors_are_freed_as_soon_as_nobody_needs_them(send: Callable[[Any], Any]) -> None:
    data = full_batch(100)
    data.meta_info["weights"] = [torch.zeros(1000)]
    held = [weakref.ref(data), weakref.ref(data.meta_info["weights"][0])]
    gc.collect()
    gc.disable()
    try:
        send(data)
        del data
        assert [reference() for reference in held] == [None, None]
    finally:
        gc.enable()


def resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("protocol", [4, 5])
def test_memory_does_not_grow_from_call_to_call(protocol: int) -> None:
    data = DataProto.from_dict({key: torch.zeros(1024, 4096) for key in "abcd"})
    sizes = []
    for _ in range(20):
        round_trip(data, protocol)
        sizes.append(resident_bytes())
    assert sizes[19] - sizes[4] < data.nbytes() // 4
