"""How batches are made, and what is refused with which words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl_protocol import DataProto


@pytest.mark.parametrize(
    "rows",
    [
        [[1, 2], [3, 4]],
        [[1], [3, 4]],
        [torch.zeros(3)] * 2,
        [np.zeros((2, 3)), np.zeros((2, 4))],
        [np.zeros((2, 3)), np.zeros((2, 3))],
        [[{"role": "user"}], [{"role": "user"}]],
        ["ab", "cd"],
        [(1, 2), (3, 4)],
        [None, {"a": 1}],
    ],
)
def test_a_list_becomes_a_column_of_its_very_objects(rows: list[Any]) -> None:
    data = DataProto.from_dict(tensors={"a": torch.zeros(2)}, non_tensors={"rows": rows})
    column = data.non_tensor_batch["rows"]
    assert column.shape == (2,)
    assert column.dtype == object
    assert all(column[at] is rows[at] for at in range(2))


@pytest.mark.parametrize(
    "array",
    [
        np.arange(2),
        np.zeros((2, 3), dtype=np.float32),
        np.array(["a", "bcd"]),
        np.array([[1, "x"], [2, "y"]], object),
    ],
)
def test_an_array_keeps_dtype_and_shape(array: np.ndarray[Any, Any]) -> None:
    data = DataProto.from_dict(tensors={"t": torch.zeros(2)}, non_tensors={"a": array})
    trips = {
        "itself": data,
        "index": data[[0, 1]],
        "concat": DataProto.concat(data.chunk(2)),
        "repeat": data.repeat(2)[::2],
        "iterator": DataProto.concat(list(data.make_iterator(1, 1))),
        "shuffled": next(data.make_iterator(2, 1, dataloader_kwargs={"shuffle": True})),
        "TensorDict": DataProto.from_tensordict(data.to_tensordict()),
    }
    for name, trip in trips.items():
        column = trip.non_tensor_batch["a"]
        assert (column.dtype, column.shape) == (array.dtype, array.shape), name
        assert name == "shuffled" or column.tolist() == array.tolist(), name


def test_constructors_leave_the_callers_dicts_alone() -> None:
    tensors, non_tensors, meta = {"a": torch.zeros(2)}, {"s": ["a", "b"]}, {"k": [1]}
    data = DataProto.from_dict(tensors=tensors, non_tensors=non_tensors, meta_info=meta, auto_padding=True)
    data.batch["new"] = torch.ones(2)
    data.meta_info["k"].append(2)
    assert set(tensors) == {"a"}
    assert non_tensors == {"s": ["a", "b"]}
    assert meta == {"k": [1]}
    tensordict = data.to_tensordict()
    again = DataProto.from_tensordict(tensordict, meta_info=meta | {"k": [1, 2]})
    again.batch["more"] = torch.ones(2)
    assert not isinstance(tensordict.get("more", None), torch.Tensor)
    assert meta == {"k": [1]}


def test_the_plain_constructor_takes_its_containers_as_they_are() -> None:
    batch = TensorDict({"a": torch.zeros(2)}, [2])
    arrays, meta = {"s": np.array(["x", "y"], dtype=object)}, {"k": 1}
    data = DataProto(batch, arrays, meta)
    assert data.batch is batch
    assert data.non_tensor_batch is arrays
    assert data.meta_info is meta


def untyped(value: Any) -> Any:
    """What a program without type checks might hand in."""
    return value


def written_by_item(data: DataProto, value: Any) -> None:
    data.non_tensor_batch["t"] = value


def written_by_update(data: DataProto, value: Any) -> None:
    data.non_tensor_batch.update(t=value)


def written_by_default(data: DataProto, value: Any) -> None:
    data.non_tensor_batch.setdefault("t", value)


def written_by_union(data: DataProto, value: Any) -> None:
    data.non_tensor_batch |= {"t": value}


def written_whole(data: DataProto, value: Any) -> None:
    data.non_tensor_batch = {**data.non_tensor_batch, "t": value}


WRITERS = [written_by_item, written_by_update, written_by_default, written_by_union, written_whole]


@pytest.mark.parametrize("write", WRITERS)
@pytest.mark.parametrize(
    "value", [[0.1, 0.2, 0.3], (0.1, 0.2, 0.3), range(3), ["a", "b", "c"], [[1], [2], [3]]], ids=str
)
def test_a_list_that_is_written_is_a_column(write: Callable[[DataProto, Any], None], value: Any) -> None:
    data = DataProto.from_dict({"a": torch.arange(3)})
    write(data, value)
    column = data.non_tensor_batch["t"]
    assert column.dtype == object
    assert (column.shape, column.tolist()) == ((3,), list(value))
    assert data == DataProto.from_dict({"a": torch.arange(3)}, {"t": value})
    assert DataProto.concat([data, data[[0]]]).column("t").tolist() == [*value, value[0]]
    assert DataProto.from_tensordict(data.to_tensordict()) == data


def test_a_list_in_the_dict_that_a_batch_was_made_of_is_a_column() -> None:
    columns: Any = {"s": ["x", "y"]}
    data = DataProto(None, columns)
    assert data.non_tensor_batch["s"].tolist() == ["x", "y"]
    columns["t"] = (1, 2)
    assert data.repeat(2).column("t").tolist() == [1, 1, 2, 2]
    assert data.non_tensor_batch is columns


@pytest.mark.parametrize("write", WRITERS)
def test_a_list_of_other_rows_is_named(write: Callable[[DataProto, Any], None]) -> None:
    data = DataProto.from_dict({"a": torch.arange(3)})
    write(data, [1, 2])
    with pytest.raises(ValueError, match="'batch' has 3, 't' has 2"):
        data.repeat(2)


def test_tensors_in_a_dict_are_a_batch() -> None:
    data = DataProto.from_dict({"a": torch.arange(4), "b": torch.zeros(4, 2)}, {"s": list("wxyz")}, {"k": 1})
    data.batch = {key: column[:-1] for key, column in data.batch.items()}
    assert isinstance(data.batch, TensorDict)
    assert (data.batch["a"].tolist(), data.batch.batch_size) == ([0, 1, 2], (3,))
    with pytest.raises(ValueError, match="'batch' has 3, 's' has 4"):
        data.repeat(2)
    data.non_tensor_batch["s"] = data.non_tensor_batch["s"][:-1]
    assert data == DataProto(
        {"a": torch.arange(3), "b": torch.zeros(3, 2)}, {"s": untyped(list("wxy"))}, {"k": 1}
    )
    with pytest.raises(ValueError, match="'a' has 1, 'b' has 2"):
        data.batch = {"a": torch.ones(1), "b": torch.ones(2)}
    assert len(data) == 3
    data.batch = {}
    assert len(data) == 3
    assert not data.tensors()


def test_none_means_no_entries() -> None:
    data = DataProto(batch=None, non_tensor_batch=None, meta_info=None)
    found: tuple[Any, ...] = (data.batch, data.non_tensor_batch, data.meta_info)
    assert found == (None, {}, {})
    assert len(data) == 0
    assert not data.is_padding_enabled()


REFUSED: list[tuple[str, Callable[[], object], type[Exception], str]] = [
    (
        "rows differ",
        lambda: DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(3)}),
        ValueError,
        "'a' has 2, 'b' has 3",
    ),
    (
        "rows of kinds differ",
        lambda: DataProto.from_dict({"a": torch.zeros(2)}, {"s": ["x"]}),
        ValueError,
        "'s' has 1",
    ),
    (
        "one key twice",
        lambda: DataProto.from_dict({"a": torch.zeros(2)}, {"a": list("xy")}),
        ValueError,
        r"\['a'\] cannot name both",
    ),
    (
        "a string",
        lambda: DataProto.from_dict(non_tensors={"s": "ab"}),
        TypeError,
        "'s'.*a string is not a column",
    ),
    ("a set", lambda: DataProto.from_dict(non_tensors=untyped({"s": {1, 2}})), TypeError, "'s'.*got set"),
    ("an int", lambda: DataProto.from_single_dict({"s": 3}), ValueError, "'s'.*got int"),
    (
        "a tensor",
        lambda: DataProto.from_dict(non_tensors=untyped({"s": torch.ones(2)})),
        TypeError,
        "under tensors",
    ),
    ("no tensor", lambda: DataProto.from_dict({"a": [1, 2]}), TypeError, "'a'.*must be a torch.Tensor"),  # type: ignore[dict-item]
    ("no rows", lambda: DataProto.from_dict({"a": torch.tensor(1.0)}), ValueError, "'a' has no dimensions"),
    (
        "no array rows",
        lambda: DataProto.from_dict(non_tensors={"s": np.array(1)}),
        ValueError,
        "'s' has no dim",
    ),
    (
        "two devices",
        lambda: DataProto.from_dict({"a": torch.zeros(2), "b": torch.zeros(2, device="meta")}),
        ValueError,
        "'a' on cpu, 'b' on meta",
    ),
    (
        "more batch dims",
        lambda: DataProto.from_dict({"a": torch.zeros(2, 3)}, num_batch_dims=2),
        ValueError,
        "num_batch_dims=2",
    ),
    (
        "more batch dims in a TensorDict",
        lambda: DataProto(TensorDict({"a": torch.zeros(2, 3)}, [2, 3])),
        ValueError,
        r"batch_size \[2, 3\]",
    ),
    (
        "a list for batch",
        lambda: DataProto(untyped([torch.zeros(2)])),
        TypeError,
        "a dict of tensors or None, got list",
    ),
    (
        "a dict of lists for batch",
        lambda: DataProto(untyped({"a": [1, 2]})),
        TypeError,
        "'a'.*must be a torch.Tensor",
    ),
    (
        "a dict of different rows",
        lambda: DataProto({"a": torch.ones(2), "b": torch.ones(3)}),
        ValueError,
        "'b' has 3",
    ),
    (
        "a string as column",
        lambda: DataProto(None, untyped({"s": "ab"})),
        TypeError,
        "'s'.*wrap it in a list",
    ),
    (
        "strided nested",
        lambda: DataProto.from_dict({"x": torch.nested.nested_tensor([torch.ones(1)], layout=torch.strided)}),
        TypeError,
        "layout=torch.jagged",
    ),
]


@pytest.mark.parametrize(
    ("make", "error", "words"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_what_is_no_batch_is_refused_by_key(
    make: Callable[[], object], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_strided_rows_assigned_to_the_batch_are_refused_by_the_next_row_operation() -> None:
    data = DataProto.from_dict({"a": torch.zeros(2)})
    data.batch["x"] = torch.nested.nested_tensor([torch.ones(1), torch.ones(2)], layout=torch.strided)
    assert "x: nested tensor of the strided layout" in repr(data)
    for use in (lambda: DataProto.concat([data, data]), lambda: data.chunk(2), lambda: data[[1, 0]]):
        with pytest.raises(TypeError, match=r"column 'x' is a nested .*layout=torch.jagged"):
            use()


def test_columns_changed_to_other_lengths_are_noticed_by_the_next_row_operation() -> None:
    data = DataProto.from_dict({"a": torch.zeros(4)}, {"s": list("abcd")})
    data.non_tensor_batch["s"] = np.array(["x"], dtype=object)
    with pytest.raises(ValueError, match="'s' has 1"):
        data.chunk(2)
    with pytest.raises(ValueError, match="'s' has 1"):
        data.check_consistency()


@dataclass(eq=False, repr=False)
class Tagged(DataProto):
    """A batch with one more field, the way users add one."""

    tag: str = "none"
    notes: list[str] = field(default_factory=list)


def test_methods_keep_the_subclass_and_its_fields() -> None:
    data = Tagged.from_dict({"a": torch.arange(4)}, {"s": list("abcd")})
    data.tag = "mine"
    results: list[DataProto] = [
        data[1:3],
        data[[0]],
        data.select("a"),
        data.repeat(2),
        *data.chunk(2),
        *data.split(3),
        DataProto.concat(data.chunk(2)),
        next(data.make_iterator(2, 1)),
        data.group_by("s")["a"],
        data.pop("a"),
    ]
    for result in results:
        assert isinstance(result, Tagged)
        assert result.tag == "mine"
    assert Tagged(TensorDict({"a": torch.zeros(1)}, [1]), tag="x").tag == "x"
    assert [entry.name for entry in fields(Tagged)] == [
        "batch",
        "non_tensor_batch",
        "meta_info",
        "tag",
        "notes",
    ]


def test_the_batch_is_a_tensordict_whose_changes_count() -> None:
    data = DataProto.from_dict({"a": torch.arange(3)})
    data.batch["b"] = torch.ones(3)
    assert data.chunk(3)[1].batch["b"].tolist() == [1.0]
    del data.batch["a"]
    assert set(data.batch.keys()) == {"b"}
    data.batch = TensorDict({"c": torch.zeros(5)}, [5])
    assert len(data) == 5
    data.batch = None
    assert data.batch is None


def test_tensor_and_column_are_typed_ways_to_one_column() -> None:
    data = DataProto.from_dict({"a": torch.arange(2)}, {"s": ["x", "y"]})
    assert data.tensor("a").tolist() == [0, 1]
    assert data.column("s").tolist() == ["x", "y"]
    assert "a" in data
    assert "s" in data
    assert "meta" not in data
    with pytest.raises(KeyError, match="no tensor column 's'; there are"):
        data.tensor("s")
    with pytest.raises(KeyError, match="no non-tensor column 'a'"):
        data.column("a")


def test_tensors_are_a_dict_of_one_s_own() -> None:
    data = DataProto.from_dict({"a": torch.arange(2), "b": torch.ones(2)}, {"s": ["x", "y"]})
    found = data.tensors()
    assert list(found) == ["a", "b"]
    assert found["a"] is data.tensor("a")
    del found["a"]
    assert "a" in data
