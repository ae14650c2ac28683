"""Batches as rows, items and TensorDicts, and back."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl_protocol import DataProto, DataProtoItem, collate_fn, wire
from verl_protocol import tensordict_ops as ops
from verl_protocol.columns.checks import jagged_of


def trip(data: DataProto) -> DataProto:
    return DataProto.from_tensordict(data.to_tensordict())


COLUMNS: dict[str, Any] = {
    "lists": [[1, 2], [3, 4]],
    "equal strings": ["a", "a"],
    "equal dicts": [{"x": 1}, {"x": 1}],
    "tensors": [torch.zeros(2), torch.ones(2)],
    "arrays": [np.zeros(2), np.zeros(2)],
    "None": [None, None],
    "ints": np.arange(2),
    "floats": np.array([1.0, float("nan")], dtype=np.float32),
    "bools": np.array([True, False]),
    "matrix": np.arange(4).reshape(2, 2),
    "strings": np.array(["a", "bcd"], dtype="<U9"),
    "bytes": np.array([b"a", b"b"]),
    "dates": np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
    "numpy scalars as objects": np.array([np.int64(1), np.int64(2)], dtype=object),
    "object matrix": np.array([[1, "x"], [None, 2]], dtype=object),
}


@pytest.mark.parametrize("num_rows", [0, 1, 2])
@pytest.mark.parametrize("name", COLUMNS)
def test_columns_survive_a_tensordict(name: str, num_rows: int) -> None:
    column = COLUMNS[name][:num_rows]
    data = DataProto.from_dict({"a": torch.zeros(num_rows)}, {"c": column}, {"k": 1})
    again = trip(data)
    assert again == data
    found, expected = again.non_tensor_batch["c"], data.non_tensor_batch["c"]
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if isinstance(column, list):
        assert all(one is other for one, other in zip(found, expected, strict=True))
    if num_rows:
        assert collate_fn(list(data)) == data


@pytest.mark.parametrize(
    "value", [1, None, [1, 2], {"a": torch.ones(2)}, torch.ones(3), np.arange(3), "x", float("nan")]
)
def test_meta_info_survives_a_tensordict(value: Any) -> None:
    data = DataProto.from_dict({"a": torch.zeros(2)}, meta_info={"k": value})
    assert trip(data) == data


def test_rows_without_tensors_or_columns_survive() -> None:
    for data in (
        DataProto.from_dict(non_tensors={"s": list("abcd")}),
        DataProto(TensorDict({}, [3])),
        DataProto(meta_info={"k": 1}),
    ):
        assert len(trip(data)) == len(data)
        assert trip(data) == data


ARRAYS: dict[str, Any] = {
    "matrix": np.arange(6).reshape(3, 2),
    "strings": np.array(["a", "bcd", ""], dtype="<U9"),
}


def test_a_tensordict_has_the_keys_of_the_batch_and_no_others() -> None:
    data = DataProto.from_dict({"a": torch.zeros(3)}, {**ARRAYS, "s": list("xyz")}, {"k": 1})
    for batch in (data, data[:0], DataProto(data.batch.to("cpu"), data.non_tensor_batch, data.meta_info)):
        assert set(batch.to_tensordict().keys()) == {"a", "matrix", "strings", "s", "k"}


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize(
    "way",
    [
        lambda td: pickle.loads(pickle.dumps(wire.pack(td))),
        lambda td: ops.index_select_tensor_dict(td, [0, 1, 2]),
    ],
    ids=["wire", "row operation"],
)
def test_arrays_are_told_from_objects_by_a_tensordict_that_travels(
    device: str | None, way: Callable[[TensorDict], TensorDict]
) -> None:
    data = DataProto(TensorDict({"a": torch.zeros(3)}, [3], device=device), dict(ARRAYS))
    assert DataProto.from_tensordict(way(data.to_tensordict())) == data


def test_a_value_put_into_a_tensordict_counts() -> None:
    tensordict = DataProto.from_dict({"a": torch.zeros(3)}, ARRAYS).to_tensordict()
    for key, value in (("strings", "longer than nine"), ("matrix", "no row")):
        stack: Any = tensordict.get(key)
        stack.tensordicts[0] = NonTensorData(value)
        assert DataProto.from_tensordict(tensordict).column(key)[0] == value


def test_equal_values_stay_a_column_through_cat() -> None:
    tensordict = DataProto.from_dict({"a": torch.zeros(4)}, {"s": ["a", "a", "b", "c"]}).to_tensordict()
    joined: Any = torch.cat([tensordict[:2], tensordict[2:]])
    assert DataProto.from_tensordict(joined).non_tensor_batch["s"].tolist() == ["a", "a", "b", "c"]
    assert DataProto.from_tensordict(tensordict[:1]).non_tensor_batch["s"].tolist() == ["a"]


def test_nested_tensordicts_are_columns() -> None:
    inner = TensorDict(
        {"x": torch.arange(4), "s": NonTensorStack(*"abcd"), "c": NonTensorData(5, batch_size=[4])}, [4]
    )
    data = DataProto.from_tensordict(TensorDict({"a": torch.zeros(4), "n": inner}, [4]))
    results = {
        "itself": (data, [0, 1, 2, 3]),
        "slice": (data[1:3], [1, 2]),
        "index": (data[[3, 0]], [3, 0]),
        "stride": (data[::2], [0, 2]),
        "concat": (DataProto.concat(data.chunk(2)), [0, 1, 2, 3]),
        "repeat": (data.repeat(2), [0, 0, 1, 1, 2, 2, 3, 3]),
    }
    for name, (result, expected) in results.items():
        found: Any = result.batch["n"]
        assert found["x"].tolist() == expected, name
        assert list(found["s"]) == [list("abcd")[row] for row in expected], name
        assert found["c"] == 5 or set(found["c"]) == {5}, name
        assert found.batch_size == (len(expected),), name
    assert data == data.select()
    with pytest.raises(ValueError, match="'n' differs in its keys"):
        DataProto.concat([data, DataProto(TensorDict({"a": torch.zeros(1), "n": TensorDict({}, [1])}, [1]))])


def test_what_a_tensordict_cannot_carry_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"\['a'\] cannot name both a column and a meta_info key"):
        DataProto.from_dict({"a": torch.zeros(2)}, meta_info={"a": 1}).to_tensordict()
    with pytest.raises(ValueError, match=r"batch_size \[2, 3\]"):
        DataProto.from_tensordict(TensorDict({"a": torch.zeros(2, 3)}, [2, 3]))
    with pytest.raises(ValueError, match=r"batch_size \[\]"):
        DataProto.from_tensordict(TensorDict({"a": torch.zeros(2, 3)}, []))
    with pytest.raises(ValueError, match="'k'"):
        DataProto.from_tensordict(DataProto(meta_info={"k": 1}).to_tensordict(), meta_info={"k": 2})


def test_the_declared_device_is_kept() -> None:
    data = DataProto(TensorDict({"a": torch.zeros(2)}, [2], device="cpu"))
    for result in (trip(data), data[[0]], data.repeat(2), data.chunk(2)[0], DataProto.concat([data, data])):
        assert result.batch.device == torch.device("cpu")
    assert DataProto.from_dict({"a": torch.zeros(2)}).batch.device is None


def test_rows_unite_their_keys() -> None:
    rows: list[dict[str, Any]] = [
        {"x": torch.tensor(1), "s": "a"},
        {"x": torch.tensor(2), "extra": [1]},
        {"s": None},
    ]
    with pytest.raises(ValueError, match=r"row 2 has no tensor for 'x'.*fill=\{'x'"):
        DataProto.from_rows(rows)
    data = DataProto.from_rows(rows, fill={"x": torch.tensor(0)}, meta_info={"k": 1})
    assert data.batch["x"].tolist() == [1, 2, 0]
    assert data.non_tensor_batch["extra"].tolist() == [None, [1], None]
    assert data.to_rows()[1]["extra"] is rows[1]["extra"]
    assert data.meta_info == {"k": 1}
    assert len(DataProto.from_rows([])) == 0
    assert len(DataProto.from_rows([{}, {}])) == 2


def test_items_are_rows() -> None:
    data = DataProto.from_dict({"a": torch.arange(3)}, {"s": list("xyz"), "n": np.arange(3)}, {"k": 1})
    items = list(data)
    assert all(isinstance(item, DataProtoItem) for item in items)
    assert [int(item.batch["a"]) for item in items] == [0, 1, 2]
    assert items[1].non_tensor_batch == {"s": "y", "n": 1}
    assert items[1].meta_info == {"k": 1}
    assert items[1].batch.batch_size == torch.Size([])
    assert collate_fn(items[::-1]) == data[::-1]
    assert items[1] == data[1]
    assert items[1] != data[2]
    assert items[1] != "something else"


def test_items_that_do_not_fit_together_are_errors() -> None:
    first = DataProto.from_dict({"a": torch.zeros(1, 2)}, {"s": ["x"]})[0]
    with pytest.raises(KeyError, match="all dicts need the same keys"):
        collate_fn([first, DataProto.from_dict({"b": torch.zeros(1)})[0]])
    with pytest.raises(ValueError, match="'a' have different shapes"):
        collate_fn([first, DataProto.from_dict({"a": torch.zeros(1, 3)}, {"s": ["x"]})[0]])
    with pytest.raises(ValueError, match="nothing to concatenate"):
        collate_fn([])


def test_items_made_by_hand_are_collated() -> None:
    items = [DataProtoItem(TensorDict({"a": torch.tensor(at)}, []), {"s": [at, at]}) for at in range(2)]
    data = collate_fn(items)
    assert data.batch["a"].tolist() == [0, 1]
    assert data.non_tensor_batch["s"].tolist() == [[0, 0], [1, 1]]
    assert data.non_tensor_batch["s"].shape == (2,)


def test_metrics_are_not_multiplied_by_collating() -> None:
    data = DataProto.from_dict({"a": torch.zeros(3)}, meta_info={"metrics": {"loss": 1.0}})
    assert collate_fn(list(data)).meta_info == {"metrics": {"loss": 1.0}}


def test_ragged_items_stay_jagged_whatever_their_lengths() -> None:
    data = DataProto.from_dict({"j": jagged_of([torch.ones(2, 3), torch.ones(2, 3)], 2)})
    assert collate_fn([data[1]]).batch["j"].is_nested
    assert collate_fn(list(data)) == data
