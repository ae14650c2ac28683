"""Batches on the wire, in any pickle."""

from __future__ import annotations

import copy
import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_samples import full_batch, out_of_band, round_trip
from tensordict import NonTensorStack, TensorDict
from verl_protocol import DataProto, wire
from verl_protocol.batch.padding import pad_dataproto_to_divisor


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("num_rows", [1, 3, 500])
def test_every_protocol_gives_the_batch_back(num_rows: int, protocol: int) -> None:
    data = full_batch(num_rows)
    got = round_trip(data, protocol)
    assert got.equals(data)
    got.batch["a"][0] = 7
    got.non_tensor_batch["n"][0] = 7
    assert data.batch["a"][0, 0] == data.non_tensor_batch["n"][0] == 0


@pytest.mark.parametrize(
    "data",
    [
        DataProto(),
        DataProto(meta_info={"k": 1}),
        DataProto(batch=TensorDict({}, [3])),
        DataProto.from_dict(non_tensors={"s": list("abcd")}),
        DataProto.from_dict(tensors={"a": torch.zeros(0, 3)}),
        DataProto.from_dict(tensors={"a": torch.zeros(3, 0)}, non_tensors={"s": [None] * 3}),
    ],
    ids=["nothing", "meta", "no columns", "no tensors", "no rows", "no width"],
)
@pytest.mark.parametrize("protocol", [2, 5])
def test_corner_cases_come_back(data: DataProto, protocol: int) -> None:
    got = round_trip(data, protocol)
    assert got.equals(data)
    assert (len(got), got._has_batch()) == (len(data), data._has_batch())


def test_tensors_inside_objects_and_meta_info_travel_too() -> None:
    image = torch.zeros(100, 100)
    rows = [{"pixels": image, "size": (100, 100)}, {"pixels": image[:50], "more": [np.zeros(1000)]}]
    data = DataProto.from_dict(non_tensors={"image": rows}, meta_info={"weights": {"w": torch.ones(1000)}})
    payload, buffers = out_of_band(data)
    assert sorted(map(len, buffers)) == [4000, 8000, 20_000, 40_000]
    assert len(payload) < 2000
    got = pickle.loads(payload, buffers=buffers)
    assert got.equals(data)
    assert rows[0]["pixels"] is image


class Pair(NamedTuple):
    """A row of a user's own."""

    left: torch.Tensor
    right: int


def test_tensors_inside_other_containers_travel_too() -> None:
    weights = torch.nn.Linear(30, 30).state_dict()
    counts: defaultdict[str, list[Any]] = defaultdict(list, {"x": [torch.zeros(200)]})
    data = DataProto.from_dict(
        non_tensors={"p": [Pair(torch.zeros(300), 1)]}, meta_info={"weights": weights, "counts": counts}
    )
    payload, buffers = out_of_band(data)
    assert sorted(map(len, buffers)) == [800, 1200, 3600]
    got = pickle.loads(payload, buffers=buffers)
    assert [type(got.meta_info[key]) for key in ("weights", "counts")] == [OrderedDict, defaultdict]
    assert got.meta_info["counts"]["new"] == []
    assert (type(got.non_tensor_batch["p"][0]), got.non_tensor_batch["p"][0].right) == (Pair, 1)


def test_rows_that_share_an_object_still_do() -> None:
    row = {"x": [1], "t": torch.zeros(300)}
    data = DataProto.from_dict(tensors={"a": torch.zeros(1)}, non_tensors={"m": [row]}).repeat(3)
    got = round_trip(data)
    assert got.non_tensor_batch["m"][0] is got.non_tensor_batch["m"][2]
    assert got.non_tensor_batch["m"][0] is not row
    assert len(pickle.dumps(data)) < 1.2 * len(pickle.dumps(data[:1])) + 500


def test_rows_that_lead_back_to_themselves_survive() -> None:
    row: dict[str, Any] = {"t": torch.zeros(3)}
    plain: list[Any] = [{}]
    plain[0]["again"] = plain
    data = DataProto.from_dict(non_tensors={"r": [row, {"plain": plain}]})
    got = round_trip(data)
    again = got.non_tensor_batch["r"][1]["plain"]
    assert again[0]["again"] is again


@pytest.mark.parametrize(
    "rows", [[[1, 2], [3, 4]], [[1], [3, 4]], [(1, 2), (3, 4)], [[{"a": 1}], []]], ids=str
)
def test_rows_stay_the_objects_they_are(rows: list[Any]) -> None:
    got = round_trip(DataProto.from_dict(non_tensors={"l": rows}))
    assert got.non_tensor_batch["l"].shape == (2,)
    assert got.non_tensor_batch["l"].tolist() == rows
    assert type(got.non_tensor_batch["l"][0]) is type(rows[0])


def test_loaded_columns_are_writable_however_they_came() -> None:
    data = DataProto.from_dict({"a": torch.zeros(500)}, {"f": np.zeros(500)})
    payload, buffers = out_of_band(data)
    for got in (pickle.loads(payload, buffers=buffers), round_trip(data), round_trip(data, 2)):
        got.batch["a"][0], got.non_tensor_batch["f"][0] = 1, 1
    again = pickle.loads(payload, buffers=buffers)
    assert again.batch["a"].sum() == again.non_tensor_batch["f"].sum() == 0


def test_dumping_does_not_change_the_batch() -> None:
    data = full_batch()
    before = data.batch
    pickle.dumps(data)
    assert data.batch is before
    data.batch["new"] = torch.ones(3)
    assert data.to("cpu").batch["new"].sum() == 3
    assert round_trip(data).batch["new"].sum() == 3
    got = round_trip(data)
    got.batch["b"] = torch.zeros(3)
    assert set(got.union(DataProto.from_dict({"c": torch.zeros(3)})).batch.keys()) >= {"a", "b", "c", "new"}


def test_a_locked_batch_arrives_unlocked() -> None:
    data = DataProto(batch=TensorDict({"a": torch.zeros(2)}, [2]).lock_())
    got = round_trip(data)
    got.batch["b"] = torch.zeros(2)
    assert data.batch.is_locked


def test_a_device_is_declared_as_the_cpu() -> None:
    data = DataProto(batch=TensorDict({"a": torch.zeros(2)}, [2], device="cpu"))
    assert round_trip(data).batch.device == torch.device("cpu")
    assert round_trip(full_batch()).batch.device is None


def test_padding_and_its_mask_survive() -> None:
    data = DataProto.from_dict({"a": torch.arange(3)}, auto_padding=True)
    padded, _ = pad_dataproto_to_divisor(data, 4)
    got = round_trip(padded)
    assert got.is_padding_enabled()
    assert got.pad_mask.tolist() == [False, False, False, True]


def test_items_and_nested_batches_survive() -> None:
    data = full_batch()
    row = round_trip(data[1])
    assert row.batch["a"].tolist() == [2, 3]
    assert row.non_tensor_batch["s"] == "row 1"
    inner = TensorDict({"x": torch.arange(600).view(3, 200), "s": NonTensorStack("a", "b", "b")}, [3])
    got = round_trip(DataProto(batch=TensorDict({"n": inner}, [3])))
    assert got.batch["n"]["x"].tolist() == inner["x"].tolist()
    assert got.batch["n"].get("s").tolist() == ["a", "b", "b"]


class Scored(DataProto):
    """A user's batch with an attribute of its own."""

    scores: torch.Tensor


@dataclass(eq=False)
class Labelled(DataProto):
    """A user's batch as a dataclass."""

    label: str = "none"
    extra: list[int] = field(default_factory=list)


def test_subclasses_keep_class_and_attributes() -> None:
    scored = Scored.from_dict({"a": torch.zeros(3)})
    scored.scores = torch.arange(1000)
    labelled = Labelled(batch=TensorDict({"a": torch.zeros(2)}, [2]), label="x", extra=[1])
    for protocol in (2, 5):
        got = round_trip(scored, protocol)
        assert type(got) is Scored
        assert torch.equal(got.scores, scored.scores)
        again = round_trip(labelled, protocol)
        assert (type(again), again.label, again.extra) == (Labelled, "x", [1])


def test_copies_share_tensors_and_deep_copies_do_not() -> None:
    data = Scored.from_dict({"a": torch.zeros(500)}, {"m": [{"x": row} for row in range(500)]})
    data.scores = torch.zeros(3)
    shallow, deep = copy.copy(data), copy.deepcopy(data)
    data.batch["a"][0] = 1
    assert (shallow.batch["a"][0].item(), deep.batch["a"][0].item()) == (1, 0)
    assert shallow.non_tensor_batch["m"][0] is data.non_tensor_batch["m"][0]
    assert deep.non_tensor_batch["m"][0] is not data.non_tensor_batch["m"][0]
    assert type(shallow) is type(deep) is Scored


@pytest.mark.parametrize(
    "transport", [round_trip, lambda value: round_trip(wire.pack(value))], ids=["alone", "packed"]
)
def test_an_unknown_version_is_named(
    transport: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.wire.buffers.WIRE_VERSION", 99)
        payload = pickle.dumps(full_batch())
    with pytest.raises(wire.WireVersionError, match=rf"format 99, but verl-protocol 0.* {wire.WIRE_VERSION}"):
        pickle.loads(payload)
    assert transport(full_batch()).equals(full_batch())


def test_an_unknown_version_is_seen_before_anything_else(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.wire.buffers.WIRE_VERSION", 99)
        patch.setattr("verl_protocol.wire.reduce.dtype_name", lambda dtype: "not yet invented")
        payload = pickle.dumps(full_batch())
    with pytest.raises(wire.WireVersionError):
        pickle.loads(payload)


def test_a_payload_of_the_format_before_is_named() -> None:
    # As that began where it was not a batch alone.
    with pytest.raises(wire.WireVersionError, match="format 4, but"):
        wire.loads(b"\x80\x05cverl_protocol.wire\n_open\nK\x04N\x86R.")


KEYS = st.text("abc", min_size=1, max_size=2)


META = st.dictionaries(
    KEYS, st.none() | st.integers() | st.text(max_size=3) | st.lists(st.integers(), max_size=2), max_size=3
)


@settings(deadline=None, max_examples=60)
@given(
    num_rows=st.integers(0, 5),
    width=st.integers(0, 100),
    dtype=st.sampled_from([torch.float32, torch.int64, torch.bool, torch.bfloat16, torch.float8_e5m2]),
    meta=META,
    protocol=st.integers(2, 5),
    built=st.booleans(),
)
def test_what_is_sent_arrives(
    num_rows: int, width: int, dtype: torch.dtype, meta: dict[str, Any], protocol: int, built: bool
) -> None:
    objects = [[row] * row for row in range(num_rows)]
    data = DataProto.from_dict({"t": torch.ones(num_rows, width).to(dtype)}, {"o": objects}, meta)
    if built:
        assert data.batch is not None
    assert round_trip(data, protocol).equals(data)
    assert round_trip(wire.pack([data]), protocol)[0].equals(data)
