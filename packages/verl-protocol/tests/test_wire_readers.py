"""How buffers are read: by one, by many, or by many that never write; the device and the version."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from protocol_samples import jagged_wide
from verl_protocol import wire

Transport = Callable[[Any], Any]


def test_many_readers_get_copies_of_their_own() -> None:
    sent = torch.zeros(1000)
    data, buffers = wire.dumps(sent)
    one, two = wire.loads(data, buffers), wire.loads(data, buffers)
    one[0] = 1
    assert [sent[0].item(), two[0].item()] == [0, 0]


def test_one_reader_gets_writable_views() -> None:
    buffers: list[pickle.PickleBuffer] = []
    packed = wire.pack({"x": torch.zeros(1000), "n": np.zeros(1000)}, readers="one")
    data = pickle.dumps(packed, 5, buffer_callback=buffers.append)
    memory = [bytearray(buffer.raw()) for buffer in buffers]
    got = pickle.loads(data, buffers=[memoryview(piece).toreadonly() for piece in memory])
    got["x"][0], got["n"][0] = 1, 1
    assert np.frombuffer(memory[0], np.float32)[0] == np.frombuffer(memory[1], np.float64)[0] == 1


def test_views_of_misaligned_memory_are_copies_instead() -> None:
    data, buffers = wire.dumps(torch.arange(1000))
    shifted = memoryview(b"x" + bytes(buffers[0].raw()))[1:]
    assert torch.equal(wire.loads(data, [shifted], readers="one"), torch.arange(1000))


@pytest.mark.parametrize("readers", ["both", None, 1])
def test_readers_of_no_kind_are_refused_by_name(readers: Any) -> None:
    data, buffers = wire.dumps(torch.zeros(1000))
    for use in (lambda: wire.loads(data, buffers, readers=readers), lambda: wire.pack(1, readers=readers)):
        with pytest.raises(
            ValueError, match=f"^readers must be 'one', 'many' or 'read_only', got {readers!r}"
        ):
            use()


def read_only(value: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(wire.pack(value, readers="read_only"), 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


def test_reading_only_is_no_write() -> None:
    got = read_only({"x": torch.ones(1000), "y": [torch.ones(3)]})
    assert (got["x"].view(10, 100).sum() + got["y"][0].clone().add_(1).sum()).item() == 1006
    wire.check_unwritten(got)


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("key", ["x", "y[0]", "small", "ids[values]"])
def test_a_write_into_read_only_memory_is_named(grad_mode: Callable[[], Any], key: str) -> None:
    value = {
        "x": torch.ones(1000),
        "y": [torch.ones(500)],
        "small": torch.ones(2),
        "ids": jagged_wide([300, 100]),
    }
    with grad_mode():
        got = read_only(value)
        target = {
            "x": got["x"],
            "y[0]": got["y"][0],
            "small": got["small"],
            "ids[values]": got["ids"].values(),
        }[key]
        target.reshape(-1)[3 % target.numel() :].add_(1)
    with pytest.raises(wire.ReadOnlyWriteError, match=f"^'{key}' was written".replace("[", r"\[")) as caught:
        wire.check_unwritten(got)
    assert caught.value.column == key


def test_a_written_column_is_found_after_it_was_taken_out() -> None:
    got = read_only({"x": torch.ones(1000), "y": torch.ones(1000)})
    got.pop("x").add_(1)
    with pytest.raises(wire.ReadOnlyWriteError, match="'x'"):
        wire.check_unwritten(got)


@pytest.mark.parametrize("place", ["object", "alias", "parameter"])
def test_a_write_is_noticed_wherever_the_tensor_is(place: str) -> None:
    rows, first = np.empty(2, dtype=object), torch.ones(1000)
    rows[1] = {"deep": torch.ones(300)}
    got = read_only({"x": first, "names": rows, "again": first[:], "p": torch.nn.Parameter(torch.ones(300))})
    target = {"object": got["names"][1]["deep"], "alias": got["again"], "parameter": got["p"]}[place]
    wire.check_unwritten(got)
    target.detach().add_(1)
    with pytest.raises(wire.ReadOnlyWriteError):
        wire.check_unwritten(got)


def test_arrays_in_read_only_memory_refuse_writes() -> None:
    got = read_only({"n": np.zeros(1000)})
    with pytest.raises(ValueError, match="read-only"):
        got["n"][0] = 1


def test_what_was_read_only_can_be_sent_on() -> None:
    got = wire.loads(*wire.dumps(read_only({"x": torch.ones(1000)})))
    got["x"].add_(1)
    wire.check_unwritten(got)


def test_loading_on_a_device_is_asked_for() -> None:
    data, buffers = wire.dumps({"x": torch.ones(1000), "small": torch.ones(2), "none": torch.ones(0)})
    got = wire.loads(data, buffers, device="meta")
    assert {tensor.device.type for tensor in got.values()} == {"meta"}
    assert {tensor.device.type for tensor in wire.loads(data, buffers).values()} == {"cpu"}


def test_an_unknown_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.wire.buffers.WIRE_VERSION", 99)
        payloads = [wire.dumps([1])[0], pickle.dumps(wire.pack([1]), 5)]
    for payload in payloads:
        with pytest.raises(
            wire.WireVersionError,
            match=rf"wire format 99, but verl-protocol .* reads wire format {wire.WIRE_VERSION}",
        ):
            pickle.loads(payload)


def test_an_unknown_dtype_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.wire.reduce.dtype_name", lambda dtype: "float2_new")
        data, buffers = wire.dumps(torch.ones(3))
    with pytest.raises(wire.UnknownDtypeError, match="'float2_new'"):
        wire.loads(data, buffers)


READER = """
import pickle, sys
from verl_protocol import wire

arrays, tensors = pickle.loads(bytes.fromhex(sys.argv[1]))
assert not wire.loads(*arrays, readers="read_only")["x"].flags.writeable
assert "torch" not in sys.modules
got = wire.loads(*tensors, readers="read_only")
wire.check_unwritten(got)
got["j"].values().add_(1)
try:
    wire.check_unwritten(got)
except wire.ReadOnlyWriteError as error:
    sys.exit(error.column)
"""


def test_the_first_tensors_that_a_process_meets_are_watched_too() -> None:
    sent = []
    for value in ({"x": np.zeros(1000)}, {"x": torch.ones(1000), "j": jagged_wide([200, 300])}):
        data, buffers = wire.dumps(value)
        sent.append((data, [bytes(buffer.raw()) for buffer in buffers]))
    command = [sys.executable, "-c", READER, pickle.dumps(sent).hex()]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1:] == ["j[values]"], done.stderr
