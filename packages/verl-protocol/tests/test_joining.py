"""concat adds rows, union adds columns; both check everything before they touch anything."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import NonTensorData, TensorDict
from verl_protocol import DataProto, union_numpy_dict
from verl_protocol.columns.checks import jagged_of
from verl_protocol.columns.objects import object_column


def tensors(**columns: torch.Tensor) -> DataProto:
    return DataProto.from_dict(columns)


def meta(**entries: Any) -> DataProto:
    return DataProto.from_dict({"a": torch.zeros(1)}, meta_info=entries)


def test_lists_of_one_length_and_of_several_go_together() -> None:
    parts = [DataProto.from_dict(non_tensors={"l": rows}) for rows in ([[1, 2], [3, 4]], [[1], [3]])]
    assert DataProto.concat(parts).non_tensor_batch["l"].tolist() == [[1, 2], [3, 4], [1], [3]]


MISMATCHES: dict[str, tuple[list[DataProto], str]] = {
    "tensors in one part only": (
        [DataProto.from_dict(non_tensors={"s": list("ab")}), tensors(a=torch.zeros(2))],
        r"part 0 has no tensor columns, part 1 has \['a'\]",
    ),
    "tensors missing later": (
        [tensors(a=torch.zeros(2)), DataProto.from_dict(non_tensors={"s": list("ab")})],
        r"part 0 has \['a'\], part 1 has no tensor columns",
    ),
    "one key missing": (
        [tensors(a=torch.zeros(2), b=torch.zeros(2)), tensors(a=torch.zeros(2))],
        r"besides \['a'\]: part 0 has \['b'\], part 1 has none of these",
    ),
    "other arrays": (
        [
            DataProto.from_dict({"a": torch.zeros(1)}, {"s": ["x"]}),
            DataProto.from_dict({"a": torch.zeros(1)}, {"t": ["x"]}),
        ],
        r"non-tensor columns: part 0 has \['s'\], part 1 has \['t'\]",
    ),
    "other width": (
        [tensors(ids=torch.zeros(2, 3)), tensors(ids=torch.zeros(2, 5))],
        r"'ids' differs in its row shape: part 0 has \(3,\), part 1 has \(5,\); pad it .*concat\(..., pad=",
    ),
    "other dtype": (
        [tensors(a=torch.zeros(1)), tensors(a=torch.zeros(1)), tensors(a=torch.zeros(1).long())],
        r"'a' differs in its dtype: part 0 has torch.float32, part 2 has torch.int64",
    ),
    "other device": (
        [tensors(a=torch.zeros(1)), tensors(a=torch.zeros(1, device="meta"))],
        "'a' differs in its device: part 0 has cpu, part 1 has meta",
    ),
    "numbers and strings": (
        [DataProto.from_dict(non_tensors={"n": np.array(value)}) for value in ([1], ["x"])],
        "'n' differs in its kind: part 0 has i, part 1 has U",
    ),
    "one array wider": (
        [DataProto.from_dict(non_tensors={"n": np.zeros((1, width))}) for width in (2, 3)],
        r"'n' differs in its row shape: part 0 has \(2,\), part 1 has \(3,\)",
    ),
}


@pytest.mark.parametrize(("parts", "words"), MISMATCHES.values(), ids=MISMATCHES)
def test_parts_that_do_not_fit_are_refused_by_key_and_part(parts: list[DataProto], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        DataProto.concat(parts)


def test_parts_of_other_types_are_refused() -> None:
    data = tensors(a=torch.zeros(1))
    with pytest.raises(TypeError, match=r"got \['DataProto', 'TensorDict'\]"):
        DataProto.concat([data, data.to_tensordict()])  # type: ignore[type-var]
    with pytest.raises(TypeError, match="put it in a list"):
        DataProto.concat(data)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="nothing to concatenate"):
        DataProto.concat([])


def test_parts_without_rows_and_columns_are_skipped_with_their_meta_kept() -> None:
    empty = DataProto(meta_info={"k": 1, "metrics": {"loss": 2.0}})
    data = tensors(a=torch.arange(2))
    for parts in ([empty, data], [data, empty]):
        joined = DataProto.concat(parts)
        assert joined.batch["a"].tolist() == [0, 1]
        assert joined.meta_info == {"k": 1, "metrics": {"loss": [2.0]}}
    assert DataProto.concat([DataProto(meta_info={"k": 1})] * 2).meta_info == {"k": 1}
    assert len(DataProto.concat([empty, empty])) == 0
    assert len(DataProto.concat([DataProto(TensorDict({}, [3]))] * 2)) == 6


def test_object_and_string_arrays_go_together() -> None:
    parts = [
        DataProto.from_dict(non_tensors={"s": rows}) for rows in (["x"], np.array(["long"]), np.array([]))
    ]
    joined = DataProto.concat(parts).non_tensor_batch["s"]
    assert joined.tolist() == ["x", "long"]
    assert joined.dtype == object


def test_shorter_rows_are_widened_on_request() -> None:
    short = tensors(ids=torch.ones(2, 3, dtype=torch.int64), mask=torch.ones(2, 3, dtype=torch.bool))
    wide = tensors(ids=torch.ones(2, 5, dtype=torch.int64), mask=torch.ones(2, 5, dtype=torch.bool))
    right = DataProto.concat([short, wide], pad={"ids": 9, "mask": False})
    assert right.batch["ids"].tolist() == [[1, 1, 1, 9, 9]] * 2 + [[1] * 5] * 2
    assert right.batch["mask"].tolist() == [[True] * 3 + [False] * 2] * 2 + [[True] * 5] * 2
    assert right.batch["mask"].dtype == torch.bool
    left = DataProto.concat([short, wide], pad={"ids": 0, "mask": 0}, pad_side="left")
    assert left.batch["ids"][0].tolist() == [0, 0, 1, 1, 1]
    assert left.batch["ids"].dtype == torch.int64
    largest = torch.iinfo(torch.int64).max
    exact = DataProto.concat([short, wide], pad={"ids": largest, "mask": 0})
    assert exact.batch["ids"][0].tolist() == [1, 1, 1, largest, largest]
    with pytest.raises(ValueError, match="'mask' differs in its row shape"):
        DataProto.concat([short, wide], pad={"ids": 0})
    with pytest.raises(ValueError, match="nope"):
        DataProto.concat([short, short], pad={"nope": 0})


def test_a_single_part_gives_a_new_batch() -> None:
    data = tensors(a=torch.zeros(2))
    joined = DataProto.concat([data])
    assert joined is not data
    joined.batch["a"][0] = 5
    assert data.batch["a"][0] == 0


@pytest.mark.parametrize(
    "value",
    [np.arange(3), torch.arange(3), float("nan"), {"p": np.zeros(2)}, [torch.ones(1)], {"x"}, object()],
)
def test_equal_meta_of_any_type_is_kept(value: Any) -> None:
    data = DataProto.from_dict({"a": torch.zeros(4)}, meta_info={"k": value})
    assert DataProto.concat(data.chunk(2)).equals(data)


def test_conflicting_meta_shows_key_parts_and_values() -> None:
    parts = [meta(timing={"gen": 73.94637298}), meta(), meta(timing={"gen": 73.94638062})]
    with pytest.raises(
        ValueError, match=r"'timing'.*part 0 has .*73.94637298.*part 2 has .*73.94638062.*merge="
    ):
        DataProto.concat(parts)
    joined = DataProto.concat(parts, merge={"timing": "list"})
    assert joined.meta_info == {"timing": [{"gen": 73.94637298}, {"gen": 73.94638062}]}
    assert DataProto.concat(parts, merge={"timing": "max"}).meta_info == {"timing": {"gen": 73.94638062}}
    assert DataProto.concat(parts, merge={"timing": len}).meta_info == {"timing": 2}


def test_a_key_of_some_parts_is_kept() -> None:
    assert DataProto.concat([meta(x=1), meta(y=2), meta(x=1)]).meta_info == {"x": 1, "y": 2}


def test_the_padding_flag_is_on_if_any_part_has_it() -> None:
    plain, flagged = tensors(a=torch.zeros(1)), DataProto.from_dict({"a": torch.zeros(1)}, auto_padding=True)
    assert DataProto.concat([plain, flagged]).is_padding_enabled()
    assert not DataProto.concat([plain, plain]).is_padding_enabled()
    assert tensors(b=torch.zeros(1)).union(flagged).is_padding_enabled()


def test_many_small_parts_cost_in_proportion() -> None:
    parts = [tensors(a=torch.full((1,), at)) for at in range(512)]
    assert DataProto.concat(parts).batch["a"].tolist() == list(range(512))


# Union

EQUAL_COLUMNS: dict[str, Callable[[], Any]] = {
    "NaN": lambda: torch.tensor([1.0, float("nan")]),
    "jagged": lambda: jagged_of([torch.ones(3), torch.ones(5)], 1),
    "strings": lambda: np.array(["x", "y"]),
    "objects with arrays": lambda: object_column([{"p": np.zeros(3)}, {"p": torch.ones(3)}]),
    "fp8": lambda: torch.ones(2).to(torch.float8_e4m3fn),
    "numbers with NaN": lambda: np.array([1.0, float("nan")]),
    "dates": lambda: np.array(["2026-01-01", "NaT"], dtype="datetime64[D]"),
}


def holding(value: Any) -> DataProto:
    is_tensor = isinstance(value, torch.Tensor)
    return DataProto.from_dict({"v": value} if is_tensor else None, None if is_tensor else {"v": value})


@pytest.mark.parametrize("make", EQUAL_COLUMNS.values(), ids=EQUAL_COLUMNS)
def test_a_column_in_both_may_be_equal(make: Callable[[], Any]) -> None:
    data = holding(make())
    assert data.union(holding(copy.deepcopy(make()))).equals(holding(make()))


def test_strings_are_equal_as_objects_and_as_array() -> None:
    data = holding(object_column(["x", "y"]))
    assert data.union(holding(np.array(["x", "y"]))).non_tensor_batch["v"].dtype == object


def test_a_difference_names_key_row_and_values() -> None:
    first, second = holding(torch.tensor([1, 2, 3])), holding(torch.tensor([1, 5, 9]))
    with pytest.raises(
        ValueError, match=r"'v' is in both batches and differs first in row 1: tensor\(2\) and tensor\(5\)"
    ):
        first.union(second)
    with pytest.raises(ValueError, match="differs first in row 0: 'x' and 'z'"):
        holding(["x", "y"]).union(holding(["z", "y"]))


def test_union_of_batches_with_one_kind_of_column_each() -> None:
    data = tensors(a=torch.arange(4)).union(DataProto.from_dict(non_tensors={"z": list("abcd")}))
    assert len(data) == 4
    assert data.non_tensor_batch["z"].tolist() == list("abcd")
    other = DataProto.from_dict(non_tensors={"z": list("abcd")}).union(tensors(a=torch.arange(4)))
    assert other.batch["a"].tolist() == [0, 1, 2, 3]
    assert tensors(a=torch.arange(4)).union(DataProto(meta_info={"m": 1})).meta_info == {"m": 1}
    assert len(DataProto(meta_info={"m": 1}).union(tensors(a=torch.arange(4)))) == 4


UNION_ERRORS: dict[str, tuple[DataProto, str]] = {
    "more rows": (tensors(b=torch.zeros(8)), r"4 rows and 8; did you mean repeat\(2\)\?"),
    "other rows": (DataProto.from_dict(non_tensors={"z": list("abc")}), "4 rows and 3$"),
    "one key twice": (DataProto.from_dict(non_tensors={"a": list("abcd")}), r"\['a'\] cannot name both"),
    "other meta": (DataProto(meta_info={"k": 2}), "'k'.*this batch has 1, the other has 2"),
    "other values": (tensors(a=torch.zeros(4)), "'a' is in both"),
}


@pytest.mark.parametrize(("other", "words"), UNION_ERRORS.values(), ids=UNION_ERRORS)
def test_after_an_error_nothing_has_changed(other: DataProto, words: str) -> None:
    data = DataProto.from_dict({"a": torch.arange(4.0)}, {"s": list("wxyz")}, {"k": 1})
    before = [copy.deepcopy(data), copy.deepcopy(other)]
    with pytest.raises(ValueError, match=words):
        data.union(other)
    assert [data, other] == before


def test_union_numpy_dict_writes_into_the_first_after_checking() -> None:
    first, second = {"a": np.arange(2)}, {"a": np.arange(2), "b": np.array(["x", "y"])}
    assert union_numpy_dict(first, second) is first
    assert set(first) == {"a", "b"}
    with pytest.raises(ValueError, match="'a' is in both"):
        union_numpy_dict(first, {"c": np.zeros(2), "a": np.ones(2)})
    assert set(first) == {"a", "b"}
    with pytest.raises(TypeError, match="'d' must be an array"):
        union_numpy_dict(first, {"d": [1, 2]})  # type: ignore[dict-item]


def test_rows_decide_about_the_dtype_of_an_array() -> None:
    parts = [DataProto.from_dict(None, {"s": column}) for column in (np.array([]), np.array(["ab"]))]
    for order in (parts, parts[::-1]):
        assert DataProto.concat(order).non_tensor_batch["s"].dtype == "<U2"


@pytest.mark.parametrize("value", ["x", [1, 2], {"a": torch.ones(2)}], ids=repr)
def test_one_value_for_all_rows_of_a_tensordict_stays_one(value: Any) -> None:
    inner = TensorDict({"q": NonTensorData(value, batch_size=[4])}, [4])
    entries = {"a": torch.arange(4), "s": NonTensorData(value, batch_size=[4]), "n": inner}
    data = DataProto(batch=TensorDict(entries, [4]))
    whole = DataProto.concat(data.chunk(2))
    assert whole.equals(data)
    assert whole.batch.get("s").batch_size == (4,)
    other = DataProto(batch=TensorDict({**entries, "s": NonTensorData("other", batch_size=[4])}, [4]))
    assert DataProto.concat([data[:1], other[:1]]).batch.get("s").tolist() == [value, "other"]
