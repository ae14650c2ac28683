"""Entries of a TensorDict: set, read and taken out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from protocol_samples import full_tensordict
from tensordict import NonTensorData, NonTensorStack
from verl_protocol import errors
from verl_protocol import tensordict_ops as ops


def test_get_tensordict_takes_columns_and_data() -> None:
    columns = {"a": torch.zeros(2, 3), "s": ["x", "y"], "n": np.arange(2), "l": [[1, 2], [3, 4]]}
    others = {"step": 1, "list": [1, 2, 3], "none": None}
    data = ops.get_tensordict(columns, others)
    assert data.batch_size == (2,)
    assert [ops.get(data, key) for key in ("s", "n", "l")] == [["x", "y"], [0, 1], [[1, 2], [3, 4]]]
    assert {key: ops.get(data, key) for key in others} == others
    assert columns["s"] == ["x", "y"]


def test_get_tensordict_of_data_only_has_no_rows() -> None:
    data = ops.get_tensordict({}, {"metrics": {"loss": 1.0}})
    assert data.batch_size == ()
    assert ops.get(data, "metrics") == {"loss": 1.0}


@pytest.mark.parametrize(
    ("columns", "others", "error"),
    [
        ({"a": torch.zeros(2), "b": torch.zeros(3)}, {}, errors.RowCountError),
        ({"a": torch.zeros(2), "s": ["x"]}, {}, errors.RowCountError),
        ({"a": torch.zeros(2)}, {"a": 1}, errors.KeyConflictError),
        ({"s": "xy"}, {}, errors.ColumnError),
        ({"s": 5}, {}, errors.ColumnError),
        ({"a": torch.tensor(1.0)}, {}, errors.ColumnError),
        ({"a": NonTensorData("x")}, {}, errors.ColumnError),
    ],
)
def test_get_tensordict_names_what_does_not_fit(
    columns: dict[str, Any], others: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"a|s"):
        ops.get_tensordict(columns, others)


def test_get_reads_every_kind_of_entry() -> None:
    data = full_tensordict(2, k={"x": 1})
    assert ops.get(data, "a").tolist() == [0, 1]
    assert ops.get(data, "s") == ["s0", "s1"]
    assert ops.get(data, "k") == {"x": 1}
    assert ops.get(data, "nope") is None
    assert ops.get(data, "nope", 5) == ops.get_non_tensor_data(data, "nope", 5) == 5
    assert ops.get_non_tensor_data(data, "k", None) == {"x": 1}


def test_unwrap_gives_the_value() -> None:
    assert ops.unwrap_non_tensor_data(NonTensorData(3)) == 3
    assert ops.unwrap_non_tensor_data(NonTensorStack("a", "b")) == ["a", "b"]
    assert ops.unwrap_non_tensor_data("plain") == "plain"
    tensor = torch.ones(2, requires_grad=True)
    assert ops.unwrap_non_tensor_data(tensor) is tensor


def test_pop_takes_the_entry_out() -> None:
    data = full_tensordict(2, k=1)
    assert [ops.pop(data, "s"), ops.pop(data, "k"), ops.pop(data, "k", "gone")] == [["s0", "s1"], 1, "gone"]
    assert set(data.keys()) == {"a", "o", "j"}


def test_get_keys_and_pop_keys_give_a_tensordict() -> None:
    data = full_tensordict(2, k=1)
    got = ops.get_keys(data, ["s", "k"])
    assert (ops.get(got, "s"), ops.get(got, "k"), got.batch_size) == (["s0", "s1"], 1, (2,))
    popped = ops.pop_keys(data, ["a", "s"])
    assert set(popped.keys()) == {"a", "s"}
    assert set(data.keys()) == {"o", "j", "k"}


def test_unknown_keys_are_named_and_nothing_is_taken() -> None:
    data = full_tensordict(2)
    for function in (ops.get_keys, ops.pop_keys):
        with pytest.raises(KeyError, match="'nope'"):
            function(data, ["a", "nope"])
    assert "a" in set(data.keys())
    assert set(ops.get_keys(data, "a").keys()) == {"a"}


def test_assigning_lists_and_values() -> None:
    data = full_tensordict(2)
    assert ops.assign_non_tensor(data, names=["x", "x"], config={"lr": [1]}, flag=None) is data
    assert ops.get(data, "names") == ["x", "x"]
    assert ops.get(data, "config") == {"lr": [1]}
    assert isinstance(data.get("names"), NonTensorStack)
    ops.assign_non_tensor_data(data, "names", [1, 2])
    assert isinstance(data.get("names"), NonTensorData)
    ops.assign_non_tensor_stack(data, "names", [[1, 2], [3, 4]])
    assert ops.get(ops.chunk_tensordict(data, 2)[1], "names") == [[3, 4]]


@pytest.mark.parametrize(("value", "error"), [(["x"], errors.RowCountError), ("xy", errors.ColumnError)])
def test_a_stack_needs_one_entry_per_row(value: Any, error: type[Exception]) -> None:
    data = full_tensordict(2)
    with pytest.raises(error, match="names"):
        ops.assign_non_tensor_stack(data, "names", value)
    assert "names" not in set(data.keys())
