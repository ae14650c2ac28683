"""One equality for everything: it always answers and never raises."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tensordict import TensorDict
from verl_protocol import DataProto, equal
from verl_protocol.columns.checks import jagged_of
from verl_protocol.columns.equality import columns_equal


class Stubborn:
    """An object that refuses comparison."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    __hash__ = None  # type: ignore[assignment]


class Undecided:
    """An object whose comparison has no truth value, like an array's."""

    def __eq__(self, other: object) -> Any:
        return np.zeros(2)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Config:
    """A dataclass that holds an array, so that its own == raises."""

    weights: Any


VALUES: dict[str, Any] = {
    "nan": float("nan"),
    "numpy nan": np.float32("nan"),
    "tensor with nan": torch.tensor([1.0, float("nan")]),
    "complex": torch.tensor([1 + 2j, complex("nan")]),
    "fp8": torch.arange(8, dtype=torch.uint8).view(torch.float8_e5m2),
    "uint16": torch.arange(4).to(torch.uint16),
    "empty": torch.zeros(0, 3),
    "meta": torch.zeros(2, device="meta"),
    "sparse": torch.eye(2).to_sparse(),
    "jagged": jagged_of([torch.ones(2), torch.ones(0)], 1),
    "jagged at 2": jagged_of([torch.ones(2, 2), torch.ones(2, 1)], 2),
    "array with nan": np.array([[1.0, float("nan")]]),
    "strings": np.array(["a", "bc"]),
    "objects": np.array([{"x": np.arange(2)}, None], dtype=object),
    "dates": np.array(["NaT", "2026-01-01"], dtype="datetime64[s]"),
    "nested": {"a": [torch.ones(2), (np.zeros(1), {"b": float("nan")})]},
    "set": {1, 2},
    "dataclass": Config(np.arange(3)),
    "TensorDict": TensorDict({"x": torch.ones(2), "y": TensorDict({"z": torch.zeros(2)}, [2])}, [2]),
    "batch": DataProto.from_dict({"a": torch.tensor([float("nan")])}, {"s": [np.arange(2)]}),
    "none": None,
    "int": 3,
    "string": "three",
}


@pytest.mark.parametrize("name", VALUES)
def test_a_copy_is_equal_and_everything_else_is_not(name: str) -> None:
    copied = copy.deepcopy(VALUES[name])
    assert equal(VALUES[name], copied)
    for other, value in VALUES.items():
        if other not in (name, "numpy nan", "nan"):
            assert not equal(copied, value), other
            assert not equal(value, copied), other


def test_values_that_cannot_be_compared_are_equal_only_to_themselves() -> None:
    for value, other in (
        (Stubborn(), Stubborn()),
        (Undecided(), Undecided()),
        (VALUES["sparse"], torch.eye(2)),
    ):
        assert equal(value, value)
        assert not equal(value, other)
        assert not equal([value], [other])


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (jagged_of([torch.ones(2), torch.ones(1)], 1), jagged_of([torch.ones(1), torch.ones(2)], 1)),
        (jagged_of([torch.ones(2, 2)], 1), jagged_of([torch.ones(2, 2)], 2)),
        (np.arange(2), np.arange(2.0)),
        ([1, 2], (1, 2)),
        ({"a": 1}, {"b": 1}),
        ({"a": 1}, {"a": 1, "b": 2}),
        (TensorDict({"a": torch.zeros(2, 1)}, [2]), TensorDict({"a": torch.zeros(2, 1)}, [2, 1])),
    ],
)
def test_near_misses_differ(first: Any, second: Any) -> None:
    assert not equal(first, second)
    assert not columns_equal(first, second)


def test_values_that_hold_themselves_are_compared() -> None:
    first: list[Any] = [1]
    second: list[Any] = [1]
    first.append(first)
    second.append(second)
    assert equal(first, second)
    second.append(3)
    assert not equal(first, second)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=8,
)


@given(plain, plain)
def test_equality_is_symmetric_and_sees_copies(first: Any, second: Any) -> None:
    assert equal(first, copy.deepcopy(first))
    assert equal(first, second) == equal(second, first)


def test_batches_compare_rows_columns_and_meta() -> None:
    def data(**changes: Any) -> DataProto:
        parts: dict[str, Any] = {
            "tensors": {"a": torch.ones(2)},
            "non_tensors": {"s": ["x", "y"]},
            "meta_info": {"k": 1},
        }
        return DataProto.from_dict(**(parts | changes))

    assert data() == data()
    assert data() != data(meta_info={"k": 2})
    assert data() != data(tensors={"b": torch.ones(2)})
    assert data() != data(non_tensors={"s": ["x", "z"]})
    assert data() != "something else"
    assert DataProto.from_dict(non_tensors={"s": []}) != DataProto.from_dict({"a": torch.zeros(0)})
