"""Arrays, objects and tensors anywhere in a value, on the wire."""

from __future__ import annotations

import copy
import pickle
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


def test_what_was_one_object_still_is(transport: Transport) -> None:
    shared = torch.zeros(100)
    got = transport({"a": shared, "b": [shared], "alias": shared.detach(), "other": shared[:50]})
    assert got["a"] is got["b"][0]
    got["a"][0] = 5
    assert got["alias"][0] == 5
    assert got["other"][0] == 0


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


class Word(str):
    """A string that is more than its characters."""


STRINGS: dict[str, list[Any]] = {
    "short": [f"prompt-{row:08d}" for row in range(300)],
    "empty": ["", "", ""],
    "one empty": [""],
    "with the separator": ["a\0b", "c"],
    "only separators": ["\0", "\0\0"],
    "any characters": ["ä", "\U0001f600", "\ud800", "\udfff\ud800", "\n", "日本"],
    "subclass": ["a", Word("b")],
    "subclass first": [Word("a"), "b"],
    "numpy's": ["a", np.str_("b")],
    "long": ["x" * 5000, "y"],
    "with None": ["a", None],
    "bytes": ["a", b"a"],
}


@pytest.mark.parametrize("name", STRINGS)
def test_strings_arrive_as_they_were(name: str, transport: Transport) -> None:
    sent = np.empty(len(STRINGS[name]), dtype=object)
    sent[:] = STRINGS[name]
    got = transport(sent)
    assert got.dtype == object
    assert [(type(item), item) for item in got] == [(type(item), item) for item in STRINGS[name]]
    square = transport(sent.reshape(1, -1))
    assert (square.shape, square.tolist()) == ((1, len(sent)), [sent.tolist()])
    got[0] = None
    assert got[0] is None


def test_a_long_string_that_rows_share_is_sent_once() -> None:
    sent = np.empty(64, dtype=object)
    sent[:] = ["long " * 1000] * 64
    data, buffers = wire.dumps(sent)
    assert len(data) < 6000
    got = wire.loads(data, buffers)
    assert got[0] is got[63]


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


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_tensors_in_arrays_of_objects_are_counted(shape: tuple[int, ...]) -> None:
    array = np.empty(shape, dtype=object)
    array[...] = {"x": None}
    array[(0,) * len(shape)]["x"] = torch.ones(100)
    assert wire.nbytes_of([array]) == 400
    got = wire.loads(*wire.dumps([array]))[0]
    assert (got.shape, got[(0,) * len(shape)]["x"].sum()) == (shape, 100)


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
@given(value=VALUES, protocol=st.integers(2, 5))
def test_whatever_is_sent_arrives(value: Any, protocol: int) -> None:
    assert same(pickle.loads(pickle.dumps(wire.pack(value), protocol)), value)
    assert same(wire.loads(*wire.dumps(value)), value)
