"""Columns are selected, taken out and renamed by whole keys; unknown keys are errors and change nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from verl_protocol import DataProto


def batch() -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(4), "b": torch.ones(4), "ab": torch.zeros(4)},
        {"uid": list("wxyz"), "ui": list("1234")},
        {"k": 1, "m": 2},
    )


def keys(data: DataProto) -> tuple[set[str], set[str], set[str]]:
    return set(data._columns()), set(data.non_tensor_batch), set(data.meta_info)


def test_a_string_is_one_key() -> None:
    assert keys(batch().select("ab", "uid", "k")) == ({"ab"}, {"uid"}, {"k"})
    assert keys(batch().pop("ab", "uid", "k")) == ({"ab"}, {"uid"}, {"k"})


@pytest.mark.parametrize("wanted", [["a", "ab"], ("a", "ab"), {"a", "ab"}, {"a": 1, "ab": 2}.keys()])
def test_keys_come_in_any_collection(wanted: Any) -> None:
    assert set(batch().select(wanted).batch.keys()) == {"a", "ab"}


def test_none_selects_everything_and_no_keys_keep_the_rows() -> None:
    assert batch().select().equals(batch())
    assert len(batch().select([])) == 4
    assert len(batch().select([], [], [])) == 4
    assert keys(batch().select([], [], [])) == (set(), set(), set())
    tensorless = DataProto.from_dict(non_tensors={"s": list("abcd")})
    assert len(tensorless.select(non_tensor_batch_keys=[])) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_keys": ["a", "nope"]}, r"no tensor column 'nope'; there are \['a', 'ab', 'b'\]"),
        ({"batch_keys": "uid"}, "no tensor column 'uid'"),
        ({"non_tensor_batch_keys": ["nope", "no"]}, "no non-tensor column 'nope', 'no'"),
        ({"meta_info_keys": "nope"}, r"no meta_info key 'nope'; there are \['k', 'm'\]"),
    ],
)
def test_unknown_keys_are_errors_that_change_nothing(arguments: dict[str, Any], words: str) -> None:
    data = batch()
    before = copy.deepcopy(data)
    for method in (data.select, data.pop):
        with pytest.raises(KeyError, match=words):
            method(**arguments)
        with pytest.raises(KeyError, match=words):
            method(**({"batch_keys": ["a"], "non_tensor_batch_keys": ["ui"]} | arguments))
    assert data == before
    assert len(data.select(missing_ok=True, **arguments)) == 4


def test_pop_takes_columns_out() -> None:
    data = batch()
    taken = data.pop(["a", "b"], ["ui"], ["m"])
    assert keys(taken) == ({"a", "b"}, {"ui"}, {"m"})
    assert keys(data) == ({"ab"}, {"uid"}, {"k"})
    assert taken.union(data) == batch()
    assert len(data.pop(meta_info_keys="k")) == 4


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a", "z", {"z": 0, "b": 1, "ab": 2}),
        (["a"], ["z"], {"z": 0, "b": 1, "ab": 2}),
        (["a", "b"], ["c", "d"], {"c": 0, "d": 1, "ab": 2}),
        (["a", "b"], ["b", "a"], {"b": 0, "a": 1, "ab": 2}),
        (["a", "b", "ab"], ["b", "ab", "a"], {"b": 0, "ab": 1, "a": 2}),
        ("a", "a", {"a": 0, "b": 1, "ab": 2}),
        ([], [], {"a": 0, "b": 1, "ab": 2}),
    ],
)
def test_columns_are_renamed_all_at_once(old: Any, new: Any, expected: dict[str, int]) -> None:
    data = DataProto.from_dict({key: torch.full((2,), at) for at, key in enumerate(["a", "b", "ab"])})
    assert data.rename(old, new) is data
    assert {key: int(column[0]) for key, column in data._columns().items()} == expected


def test_non_tensor_columns_are_renamed_too() -> None:
    data = batch().rename(["uid", "a"], ["id", "first"])
    assert keys(data)[:2] == ({"first", "b", "ab"}, {"id", "ui"})


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda d: d.rename("a", "b"), KeyError, r"cannot rename to \['b'\]"),
        (lambda d: d.rename("a", "uid"), KeyError, r"cannot rename to \['uid'\]"),
        (lambda d: d.rename(["a", "nope"], ["x", "y"]), KeyError, "no column 'nope'"),
        (lambda d: d.rename(["a", "b"], ["x"]), ValueError, "one new key of its own"),
        (lambda d: d.rename(["a", "b"], ["x", "x"]), ValueError, "one new key of its own"),
        (lambda d: d.rename("a", ["x", "y"]), ValueError, "one new key of its own"),
    ],
)
def test_wrong_renames_change_nothing(
    call: Callable[[DataProto], object], error: type[Exception], words: str
) -> None:
    data = batch()
    with pytest.raises(error, match=words):
        call(data)
    assert data == batch()
