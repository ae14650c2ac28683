"""Rows repeated, folded, cut along columns and grouped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto, fold_batch_dim, pad_dataproto_to_divisor, unfold_batch_dim
from verl_protocol.columns.checks import jagged_of


def test_repeat_of_no_width_no_rows_and_no_times() -> None:
    data = DataProto.from_dict({"a": torch.zeros(2, 0)}, {"s": ["x", "y"]})
    assert tuple(data.repeat(3, interleave=False).batch["a"].shape) == (6, 0)
    assert tuple(data.repeat(3).batch["a"].shape) == (6, 0)
    assert len(data.repeat(0)) == len(data[:0].repeat(3)) == 0
    assert data.repeat(0).non_tensor_batch["s"].dtype == object
    with pytest.raises(ValueError, match="repeat_times must be a whole number of at least 0, got -1"):
        data.repeat(-1)


@pytest.mark.parametrize(
    "dtype", [torch.float8_e4m3fn, torch.uint32, torch.bfloat16, torch.complex64, torch.bool]
)
@pytest.mark.parametrize("interleave", [True, False])
def test_repeat_keeps_bytes_of_any_dtype(dtype: torch.dtype, interleave: bool) -> None:
    raw = torch.arange(32, dtype=torch.uint8) % 2
    column = raw.view(dtype).view(2, -1)
    repeated = DataProto.from_dict({"a": column}).repeat(2, interleave).batch["a"]
    order = [0, 0, 1, 1] if interleave else [0, 1, 0, 1]
    assert repeated.dtype == dtype
    assert repeated.view(torch.uint8).tolist() == column.view(torch.uint8)[order].tolist()


@pytest.mark.parametrize("counts", [[2, 0, 1], (2, 0, 1), torch.tensor([2, 0, 1]), np.array([2, 0, 1])])
def test_each_row_is_repeated_by_its_own_count(counts: Any) -> None:
    data = DataProto.from_dict({"a": torch.arange(3)}, {"s": list("xyz")})
    result = data.sample_level_repeat(counts)
    assert result.batch["a"].tolist() == [0, 0, 2]
    assert result.non_tensor_batch["s"].tolist() == ["x", "x", "z"]


def test_counts_must_match_the_rows() -> None:
    data = DataProto.from_dict({"a": torch.arange(3)})
    with pytest.raises(ValueError, match=r"3 rows, 1 count$"):
        data.sample_level_repeat([2])
    with pytest.raises(ValueError, match="repeat_times must be a whole number of at least 0, got -1"):
        data.sample_level_repeat([1, -1, 1])


def test_columns_are_cut_into_rows_and_the_others_repeated() -> None:
    data = DataProto.from_dict(
        {"t": torch.arange(8).view(2, 4), "u": torch.arange(2)},
        {"lists": [["a1", "a2"], ["b1", "b2"]], "array": np.arange(4).reshape(2, 2), "s": ["x", "y"]},
    )
    cut = data.unfold_column_chunks(2, ["t", "lists", "array"])
    assert cut.batch["t"].tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert cut.batch["u"].tolist() == [0, 0, 1, 1]
    assert cut.non_tensor_batch["lists"].tolist() == [["a1"], ["a2"], ["b1"], ["b2"]]
    assert cut.non_tensor_batch["lists"].shape == (4, 1)
    assert cut.non_tensor_batch["array"].tolist() == [[0], [1], [2], [3]]
    assert cut.non_tensor_batch["s"].tolist() == ["x", "x", "y", "y"]
    assert data.unfold_column_chunks(2).batch["u"].tolist() == [0, 0, 1, 1]


def test_pad_rows_are_still_known_after_cutting() -> None:
    data = DataProto.from_dict({"mask": torch.zeros(3, 2)})
    padded, _ = pad_dataproto_to_divisor(data, 4)
    assert padded.unfold_column_chunks(2, "mask").pad_mask.tolist() == [False] * 6 + [True] * 2


@pytest.mark.parametrize(
    ("key", "n_split", "words"),
    [
        ("t", 3, "'t': its width 4 does not divide into 3 pieces"),
        ("u", 2, "'u': it has no width"),
        ("j", 2, "'j': it has no width"),
        ("lists", 2, r"'lists': its rows have different lengths \(\[1, 2\]\)"),
        ("s", 2, "'s': its rows are no lists"),
        ("nope", 2, "no column 'nope'"),
    ],
)
def test_columns_that_cannot_be_cut_are_named(key: str, n_split: int, words: str) -> None:
    data = DataProto.from_dict(
        {"t": torch.zeros(2, 4), "u": torch.zeros(2), "j": jagged_of([torch.ones(2), torch.ones(4)], 1)},
        {"lists": [[1], [1, 2]], "s": ["xx", "yy"]},
    )
    with pytest.raises((ValueError, KeyError), match=words):
        data.unfold_column_chunks(n_split, key)


def test_folding_and_unfolding_cancel() -> None:
    data = DataProto.from_dict({"a": torch.arange(8).view(4, 2)}, {"s": list("wxyz")}, {"k": 1})
    folded = fold_batch_dim(data, 2)
    assert tuple(folded.batch["a"].shape) == (2, 2, 2)
    assert folded.batch.batch_size == (2,)
    assert folded.non_tensor_batch["s"].tolist() == [["w", "x"], ["y", "z"]]
    assert unfold_batch_dim(folded) == data
    assert unfold_batch_dim(data, 1) == data
    assert len(unfold_batch_dim(fold_batch_dim(DataProto.from_dict(non_tensors={"s": list("wxyz")}), 2))) == 4


def test_rows_that_cannot_be_folded_are_errors() -> None:
    data = DataProto.from_dict({"a": torch.zeros(4, 2), "b": torch.zeros(4)})
    with pytest.raises(ValueError, match="4 rows cannot be cut into 3 groups"):
        fold_batch_dim(data, 3)
    with pytest.raises(ValueError, match="'b': its first 2 dimensions"):
        unfold_batch_dim(data)
    jagged = DataProto.from_dict({"j": jagged_of([torch.ones(1), torch.ones(2)], 1)})
    with pytest.raises(ValueError, match="'j': only dense tensors"):
        fold_batch_dim(jagged, 1)


@pytest.mark.parametrize(
    "column",
    [
        ["a", "b", "a"],
        np.array(["a", "b", "a"]),
        torch.tensor([1, 2, 1]),
        [float("nan"), 0.5, float("nan")],
        [1, None, 1],
    ],
)
def test_groups_come_in_order_of_appearance(column: Any) -> None:
    is_tensor = isinstance(column, torch.Tensor)
    data = DataProto.from_dict({"row": torch.arange(3)} | ({"g": column} if is_tensor else {}))
    if not is_tensor:
        data.union(DataProto.from_dict(non_tensors={"g": column}))
    groups = list(data.group_by("g").values())
    assert [group.batch["row"].tolist() for group in groups] == [[0, 2], [1]]


def test_columns_that_cannot_group_are_errors() -> None:
    data = DataProto.from_dict({"wide": torch.zeros(2, 2)}, {"lists": [[1], [2]]})
    with pytest.raises(ValueError, match="'wide': rows can be grouped by"):
        data.group_by("wide")
    with pytest.raises(ValueError, match="cannot group by list values"):
        data.group_by("lists")
    with pytest.raises(KeyError, match="no column 'nope'"):
        data.group_by("nope")
