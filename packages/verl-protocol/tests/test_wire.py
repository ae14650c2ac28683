"""Tensors and arrays anywhere in a value, through `dumps`/`loads` and through `pack` in another pickler."""

from __future__ import annotations

import copy
import pickle
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from verl_protocol import wire

Transport = Callable[[Any], Any]


def through_dumps(value: Any) -> Any:
    data, buffers = wire.dumps(value)
    return wire.loads(data, [bytes(buffer.raw()) for buffer in buffers])


def through_pack(value: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(wire.pack(value), 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


def in_band(value: Any) -> Any:
    return pickle.loads(pickle.dumps(wire.pack(value), 5))


def old_protocol(value: Any) -> Any:
    return pickle.loads(pickle.dumps(wire.pack(value, readers="one"), 2))


TRANSPORTS = [through_dumps, through_pack, in_band, old_protocol]


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.__name__)
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen


def all_dtypes() -> list[torch.dtype]:
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted((dtype for dtype in found if _has_tensors(dtype)), key=str)


def _has_tensors(dtype: torch.dtype) -> bool:
    """Whether torch can view bytes as this dtype (quantized and sub-byte ones it cannot)."""
    if str(dtype).startswith("torch.q"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.zeros(16, dtype=torch.uint8).view(dtype)
        except RuntimeError:
            return False
    return True


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", all_dtypes(), ids=str)
@pytest.mark.parametrize("num_bytes", [32, 3200])
def test_every_dtype_is_byte_exact(dtype: torch.dtype, num_bytes: int, transport: Transport) -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 255, num_bytes, np.uint8))
    if dtype is torch.bool:
        noise = noise % 2
    sent = noise.view(dtype).view(2, -1)
    got = transport({"x": sent})["x"]
    assert (got.dtype, got.shape) == (dtype, sent.shape)
    assert raw(got) == raw(sent)


def test_fp8_and_unsigned_dtypes_are_among_those_tested() -> None:
    assert {torch.float8_e4m3fn, torch.bfloat16, torch.uint16, torch.uint64, torch.complex64} <= set(
        all_dtypes()
    )


BASE = torch.arange(24_000.0).view(400, 60)
COMPLEX = torch.complex(BASE, BASE + 1)
VIEWS = {
    "transposed": BASE.t(),
    "expanded": torch.arange(400.0).unsqueeze(1).expand(400, 60),
    "strided": BASE[::3, 1::2],
    "one row": BASE[7:8],
    "permuted": BASE.view(20, 20, 60).permute(2, 0, 1),
    "conj": COMPLEX.conj(),
    "neg": COMPLEX.conj().imag,
    "real": COMPLEX.real,
    "scalar": torch.tensor(3.5),
    "no rows": torch.zeros(0, 3),
    "no width": torch.zeros(5, 0, dtype=torch.int16),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_arrive_with_their_values(name: str, transport: Transport) -> None:
    sent = VIEWS[name]
    before = raw(sent)
    got = transport([sent])[0]
    assert (got.dtype, got.shape, got.is_contiguous()) == (sent.dtype, sent.shape, True)
    assert raw(got) == before == raw(sent)
    got.fill_(1)
    assert raw(sent) == before


def test_a_view_ships_only_its_own_bytes() -> None:
    data, buffers = wire.dumps({"row": BASE[7:9], "column": BASE[:, 3]})
    assert [len(buffer.raw()) for buffer in buffers] == [2 * 60 * 4, 400 * 4]
    assert len(data) < 1000


def test_contiguous_tensors_are_not_copied_by_dumping() -> None:
    sent = BASE.clone()
    _, buffers = wire.dumps(sent)
    sent[0, 0] = 77
    assert np.frombuffer(buffers[0].raw(), np.float32)[0] == 77


def test_small_tensors_stay_inside_the_pickle() -> None:
    data, buffers = wire.dumps([torch.arange(4), torch.arange(1000)])
    assert len(buffers) == 1
    assert wire.loads(data, buffers)[0].tolist() == [0, 1, 2, 3]


def jagged(lengths: list[int], dim: int = 1, extra: int = 3) -> torch.Tensor:
    total = sum(lengths)
    shape = (total, extra) if dim == 1 else (extra, total)
    values = torch.arange(total * extra, dtype=torch.float32).view(shape)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    return torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=dim)


def offsets_of(tensor: torch.Tensor) -> torch.Tensor:
    offsets: torch.Tensor = tensor.offsets()  # type: ignore[attr-defined]
    return offsets


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("lengths", [[3, 5, 2], [3, 3], [3], [0, 2], [0], [200, 100]])
def test_jagged_keeps_rows_offsets_and_ragged_dimension(
    dim: int, lengths: list[int], transport: Transport
) -> None:
    sent = jagged(lengths, dim)
    got = transport((sent,))[0]
    assert got.is_nested
    assert got.layout is torch.jagged
    assert got._ragged_idx == dim
    assert torch.equal(got.offsets(), offsets_of(sent))
    assert [row.tolist() for row in got.unbind()] == [row.tolist() for row in sent.unbind()]


def test_jagged_with_gaps_keeps_its_lengths(transport: Transport) -> None:
    values, offsets, lengths = torch.arange(10.0), torch.tensor([0, 4, 10]), torch.tensor([2, 3])
    got = transport([torch.nested.nested_tensor_from_jagged(values, offsets, lengths)])[0]
    assert got.lengths().tolist() == [2, 3]
    assert [row.tolist() for row in got.unbind()] == [[0.0, 1.0], [4.0, 5.0, 6.0]]


def test_jagged_over_a_part_of_its_values_ships_that_part() -> None:
    values = torch.arange(100_000.0)
    sent = torch.nested.nested_tensor_from_jagged(values, torch.tensor([50, 150, 250]))
    data, buffers = wire.dumps(sent)
    assert [len(buffer.raw()) for buffer in buffers] == [800]
    got = wire.loads(data, buffers)
    assert torch.equal(got.unbind()[1], values[150:250])


def test_jagged_tensors_over_the_same_offsets_still_add_up(transport: Transport) -> None:
    first = jagged([3, 5])
    second = torch.nested.nested_tensor_from_jagged(first.values() * 10, offsets_of(first))
    got = transport({"a": first, "b": second})
    assert torch.equal((got["a"] + got["b"]).values(), first.values() * 11)


def test_jagged_keeps_known_extremes(transport: Transport) -> None:
    offsets = torch.tensor([0, 2, 5])
    sent = torch.nested.nested_tensor_from_jagged(torch.zeros(5), offsets, min_seqlen=2, max_seqlen=3)
    got = transport(sent)
    assert (got._maybe_min_seqlen, got._maybe_max_seqlen) == (2, 3)


def test_strided_nested_keeps_its_rows(transport: Transport) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sent = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
        got = transport(sent)
    assert got.layout is torch.strided
    assert [row.tolist() for row in got.unbind()] == [[1.0, 1.0], [0.0, 0.0, 0.0]]


class Tagged(torch.Tensor):
    """A user's tensor class."""


def test_parameters_subclasses_and_attributes_survive(transport: Transport) -> None:
    frozen = torch.nn.Parameter(torch.ones(300), requires_grad=False)
    learning = torch.nn.Parameter(torch.ones(2))
    learning.shard = 3  # type: ignore[attr-defined]
    leaf = torch.ones(300, requires_grad=True)
    tagged = torch.arange(300).as_subclass(Tagged)
    got = transport([frozen, learning, leaf, tagged, leaf * 2])
    assert [type(tensor) for tensor in got[:2]] == [torch.nn.Parameter] * 2
    assert [tensor.requires_grad for tensor in got] == [False, True, True, False, False]
    assert got[1].shard == 3
    assert type(got[3]) is Tagged
    assert got[3].tolist() == list(range(300))
    assert torch.equal(got[4], torch.full((300,), 2.0))
    (got[2] * 2).sum().backward()
    assert got[2].grad is not None


def test_tensors_without_data_stay_without(transport: Transport) -> None:
    got = transport(torch.ones(3, 4, device="meta", dtype=torch.bfloat16))
    assert (got.device.type, got.shape, got.dtype) == ("meta", (3, 4), torch.bfloat16)


def test_sparse_tensors_take_torchs_own_way(transport: Transport) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = transport([torch.eye(3).to_sparse()])[0]
    assert got.is_sparse
    assert torch.equal(got.to_dense(), torch.eye(3))


def test_what_was_one_object_still_is(transport: Transport) -> None:
    shared = torch.zeros(100)
    got = transport({"a": shared, "b": [shared], "alias": shared.detach(), "other": shared[:50]})
    assert got["a"] is got["b"][0]
    got["a"][0] = 5
    assert got["alias"][0] == 5
    assert got["other"][0] == 0


def test_shared_memory_is_shipped_once() -> None:
    linear = torch.nn.Linear(100, 100, bias=False)
    _, buffers = wire.dumps({"embed": linear.state_dict()["weight"], "head": linear.state_dict()["weight"]})
    assert [len(buffer.raw()) for buffer in buffers] == [40_000]


def test_views_that_begin_at_one_address_are_not_confused(transport: Transport) -> None:
    square = torch.arange(10_000.0).view(100, 100)
    twins = {"plain": square, "turned": square.t(), "top": square[:50], "conj": torch.complex(square, square)}
    twins["conjugated"] = twins["conj"].conj()
    got = transport(twins)
    assert all(raw(got[key]) == raw(twins[key]) for key in twins)


ARRAYS = {
    "numbers": np.arange(1000).reshape(10, 100),
    "fortran": np.asfortranarray(np.arange(1000.0).reshape(10, 100)),
    "strided": np.arange(1000)[::3],
    "big endian": np.arange(100, dtype=">i4"),
    "strings": np.array(["ab", "c"] * 100),
    "bytes": np.array([b"ab", b"c"]),
    "dates": np.array(["2026-11-29", "2027-01-01"], dtype="datetime64[D]"),
    "records": np.zeros(100, dtype=[("x", "<i4"), ("y", "<f8")]),
    "empty": np.zeros((0, 3), np.int8),
    "scalar": np.array(5.0),
    "bools": np.array([True, False]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_keep_dtype_shape_and_values(name: str, transport: Transport) -> None:
    sent = ARRAYS[name]
    got = transport([sent])[0]
    assert (got.dtype, got.shape) == (sent.dtype, sent.shape)
    assert got.tolist() == sent.tolist()
    assert got.flags.writeable


def test_read_only_arrays_arrive_writable(transport: Transport) -> None:
    sent = np.broadcast_to(np.arange(500), (3, 500))
    got = transport({"x": sent})["x"]
    got[0, 0] = 9
    assert (got[0, 0], sent[0, 0]) == (9, 0)


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2], [3, 4]],
        [[1], [3, 4]],
        ["ab", "cd"],
        [(1, 2), (3, 4)],
        [None, {"role": "user"}],
        [np.zeros(2)] * 2,
    ],
    ids=str,
)
def test_object_arrays_keep_their_rows(rows: list[Any], transport: Transport) -> None:
    sent = np.empty(2, dtype=object)
    sent[0], sent[1] = rows
    got = transport([sent])[0]
    assert (got.dtype, got.shape) == (object, (2,))
    assert [type(row) for row in got] == [type(row) for row in rows]
    assert str(got.tolist()) == str(rows)


def test_object_arrays_of_two_dimensions_and_none(transport: Transport) -> None:
    square = np.array([["a", [1]], [None, 2]], dtype=object)
    got = transport([square, np.empty(0, dtype=object), np.empty((0, 2), dtype=object)])
    assert got[0].tolist() == [["a", [1]], [None, 2]]
    assert [array.shape for array in got] == [(2, 2), (0,), (0, 2)]


def test_rows_that_share_an_object_still_do(transport: Transport) -> None:
    row = {"x": torch.zeros(200)}
    sent = np.empty(3, dtype=object)
    sent[:] = row
    got = transport(sent)
    assert got[0] is got[1] is got[2]


def test_masked_arrays_take_numpys_own_way(transport: Transport) -> None:
    got = transport(np.ma.masked_array(np.arange(1000), mask=np.arange(1000) % 2 == 1))
    assert isinstance(got, np.ma.MaskedArray)
    assert got.sum() == sum(range(0, 1000, 2))


@dataclass
class Answer:
    loss: torch.Tensor
    notes: dict[str, Any]


def test_tensors_are_found_wherever_they_are() -> None:
    weight = torch.ones(1000)
    value = Answer(weight, {"deep": [(weight + 1, {"x": weight + 2})], "array": np.zeros(500)})
    data, buffers = wire.dumps(value)
    assert sum(len(buffer.raw()) for buffer in buffers) == wire.nbytes_of(value) == 3 * 4000 + 4000
    assert len(data) < 1500
    got = wire.loads(data, buffers)
    assert torch.equal(got.notes["deep"][0][1]["x"], weight + 2)


def test_a_module_of_torch_travels(transport: Transport) -> None:
    module = torch.nn.Linear(30, 20)
    got = transport(module)
    inputs = torch.ones(1, 30)
    assert torch.equal(got(inputs), module(inputs))


class FunctionPickler(pickle.Pickler):
    """Knows how to pickle lambdas, as cloudpickle does."""

    def reducer_override(self, obj: Any) -> Any:
        return (
            (eval, ("lambda x: x + 5",)) if callable(obj) and obj.__name__ == "<lambda>" else NotImplemented
        )


def test_another_pickler_takes_what_pickle_cannot() -> None:
    packed = wire.pack({"f": lambda x: x + 5, "x": torch.ones(100)}, pickler=FunctionPickler)
    got = pickle.loads(pickle.dumps(packed, 5))
    assert got["f"](got["x"]).sum() == 600


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
    value = {"x": torch.ones(1000), "y": [torch.ones(500)], "small": torch.ones(2), "ids": jagged([300, 100])}
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


def test_arrays_in_read_only_memory_refuse_writes() -> None:
    got = read_only({"n": np.zeros(1000)})
    with pytest.raises(ValueError, match="read-only"):
        got["n"][0] = 1


def test_what_was_read_only_can_be_sent_on() -> None:
    got = through_pack(read_only({"x": torch.ones(1000)}))
    got["x"].add_(1)
    wire.check_unwritten(got)


def test_loading_on_a_device_is_asked_for() -> None:
    data, buffers = wire.dumps({"x": torch.ones(1000), "small": torch.ones(2), "none": torch.ones(0)})
    got = wire.loads(data, buffers, device="meta")
    assert {tensor.device.type for tensor in got.values()} == {"meta"}
    assert {tensor.device.type for tensor in wire.loads(data, buffers).values()} == {"cpu"}


def test_an_unknown_version_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.wire_version.WIRE_VERSION", 99)
        payloads = [wire.dumps([1])[0], pickle.dumps(wire.pack([1]), 5)]
    for payload in payloads:
        with pytest.raises(
            wire.WireVersionError, match=r"wire format 99, but verl-protocol .* reads wire format 1"
        ):
            pickle.loads(payload)


def test_an_unknown_dtype_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("verl_protocol.wire_tensor.dtype_name", lambda dtype: "float2_new")
        data, buffers = wire.dumps(torch.ones(3))
    with pytest.raises(wire.UnknownDtypeError, match="'float2_new'"):
        wire.loads(data, buffers)


def test_packed_values_can_be_copied() -> None:
    got: Any = copy.deepcopy(wire.pack({"x": torch.arange(3)}))
    assert got["x"].tolist() == [0, 1, 2]


SCALARS = st.none() | st.integers() | st.text(max_size=4) | st.floats(allow_nan=False) | st.booleans()
TENSORS = hnp.arrays(
    hnp.integer_dtypes(endianness="=", sizes=(8, 32, 64)) | hnp.boolean_dtypes(),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40),
).map(lambda array: torch.from_numpy(array.copy()))
VALUES = st.recursive(
    SCALARS | TENSORS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.tuples(inner)
    ),
    max_leaves=6,
)


def same(one: Any, two: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict):
        return list(one) == list(two) and all(same(one[key], two[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(two) and len(one) == len(two) and all(map(same, one, two))
    return bool(one == two)


@settings(deadline=None, max_examples=60)
@given(value=VALUES, which=st.sampled_from(TRANSPORTS))
def test_whatever_is_sent_arrives(value: Any, which: Transport) -> None:
    assert same(which(value), value)
