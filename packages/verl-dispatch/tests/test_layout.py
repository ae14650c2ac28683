"""Row layouts: every row goes to exactly one part, padding is last, and orders lead back."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from verl_dispatch.errors import UnevenRowsError
from verl_dispatch.planning.layout import RowLayout, balanced_layout, padded_layout, uneven_layout
from verl_dispatch.planning.split import split_batches
from verl_protocol import DataProto

ROWS = st.integers(0, 40)
PARTS = st.integers(1, 8)


def real_rows(layout: RowLayout) -> list[int]:
    """All rows that are no padding, part after part."""
    return [row for part in layout.parts for row in part if row < layout.num_rows]


def batch(num_rows: int) -> DataProto:
    return DataProto.from_dict(
        tensors={"i": torch.arange(num_rows)}, non_tensors={"s": [f"s{row}" for row in range(num_rows)]}
    )


@given(ROWS, PARTS)
def test_padded_parts_are_equal_and_hold_every_row_in_order(num_rows: int, num_parts: int) -> None:
    layout = padded_layout(num_rows, num_parts)
    assert len(set(layout.rows)) == 1
    assert sum(layout.pad) == -num_rows % num_parts
    assert real_rows(layout) == list(range(num_rows))
    assert [sum(row >= num_rows for row in part) for part in layout.parts] == list(layout.pad)


@given(ROWS, PARTS)
def test_uneven_parts_differ_by_at_most_one_and_are_never_empty(num_rows: int, num_parts: int) -> None:
    if 0 < num_rows < num_parts:
        with pytest.raises(UnevenRowsError, match=f"{num_rows} rows? (is|are) fewer .* {num_parts} workers"):
            uneven_layout("it", num_rows, num_parts)
        return
    layout = uneven_layout("it", num_rows, num_parts)
    assert max(layout.rows) - min(layout.rows) <= 1
    assert real_rows(layout) == list(range(num_rows))
    assert not layout.changes_answers


@given(ROWS, PARTS)
def test_even_parts_refuse_rows_that_do_not_divide(num_rows: int, num_parts: int) -> None:
    if num_rows % num_parts:
        with pytest.raises(
            UnevenRowsError, match=f"{num_rows} rows? .* {num_parts} workers.* pad .*auto_padding"
        ):
            split_batches(num_parts, (batch(num_rows),), {})
    else:
        [[parts], _] = split_batches(num_parts, (batch(num_rows),), {})
        assert list(map(len, parts)) == [num_rows // num_parts] * num_parts


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), PARTS)
@example([0] * 8, 3)
def test_balanced_parts_hold_every_row_once_and_none_is_empty(weights: list[int], num_parts: int) -> None:
    if len(weights) < num_parts:
        return
    layout = balanced_layout("it", weights, len(weights), num_parts, equal_size=False, padded=False)
    assert sorted(real_rows(layout)) == list(range(len(weights)))
    assert min(layout.rows) >= 1
    assert layout.order == tuple(real_rows(layout))


@given(st.lists(st.integers(0, 100), min_size=1, max_size=40), PARTS)
def test_balanced_parts_of_equal_size_put_padding_last(weights: list[int], num_parts: int) -> None:
    num_rows = len(weights)
    layout = balanced_layout("it", weights, num_rows, num_parts, equal_size=True, padded=True)
    assert len(set(layout.rows)) == 1
    assert sum(layout.pad) == -num_rows % num_parts
    for part, pad in zip(layout.parts, layout.pad, strict=True):
        assert [row >= num_rows for row in part] == [False] * (len(part) - pad) + [True] * pad


def test_balanced_parts_of_equal_size_refuse_rows_that_do_not_divide() -> None:
    with pytest.raises(UnevenRowsError, match="it: 7 rows cannot be split over 4 workers evenly"):
        balanced_layout("it", [1.0] * 7, 7, 4, equal_size=True, padded=False)


def test_near_equal_weights_end_up_on_every_part() -> None:
    weights = [90, 10, 50, 40, 30, 60, 20, 80, 70, 50]
    layout = balanced_layout("it", weights, 10, 2, equal_size=True, padded=False)
    sums = [sum(weights[row] for row in part) for part in layout.parts]
    assert abs(sums[0] - sums[1]) <= 20
    assert layout.rows == (5, 5)


@settings(max_examples=25)
@given(ROWS.filter(bool), PARTS)
def test_cutting_a_batch_leaves_it_alone_and_marks_padding(num_rows: int, num_parts: int) -> None:
    data = batch(num_rows)
    parts = padded_layout(num_rows, num_parts).cut(data)
    assert len(data) == num_rows
    joined = DataProto.concat(parts)
    last = num_rows - 1
    expected = [min(row, last) for row in range(len(joined))]
    assert joined.tensor("i").tolist() == expected
    assert joined.column("s").tolist() == [f"s{row}" for row in expected]
    assert joined.pad_mask.tolist() == [row >= num_rows for row in range(len(joined))]


def test_parts_of_one_batch_keep_metrics_on_the_first_only() -> None:
    data = batch(5)
    data.meta_info = {"metrics": {"loss": 1.0}, "temperature": 0.5}
    for layout in (padded_layout(5, 2), uneven_layout("it", 5, 2)):
        metas = [part.meta_info for part in layout.cut(data)]
        assert metas == [{"metrics": {"loss": 1.0}, "temperature": 0.5}, {"temperature": 0.5}]
    assert data.meta_info == {"metrics": {"loss": 1.0}, "temperature": 0.5}


def test_parts_share_no_meta_info_with_the_batch_or_each_other() -> None:
    data = batch(5)
    data.meta_info = {"config": {"lr": 1.0}}
    for part in padded_layout(5, 4).cut(data):
        part.meta_info["config"]["lr"] = 2.0
        assert data.meta_info == {"config": {"lr": 1.0}}


def test_jagged_columns_are_padded_with_their_last_row() -> None:
    rows = [torch.arange(length) for length in (3, 1, 2)]
    data = DataProto.from_dict(tensors={"j": torch.nested.as_nested_tensor(rows, layout=torch.jagged)})
    parts = padded_layout(3, 2).cut(data)
    lengths = [[len(row) for row in part.tensor("j").unbind()] for part in parts]
    assert lengths == [[3, 1], [2, 2]]
    assert parts[1].tensor("j")[1].tolist() == [0, 1]


def test_an_even_cut_shares_storage_with_the_batch() -> None:
    data = DataProto.from_dict(tensors={"i": torch.arange(6)}, non_tensors={"n": np.arange(6)})
    parts = padded_layout(6, 3).cut(data)
    parts[2].tensor("i")[0] = 40
    assert data.tensor("i").tolist() == [0, 1, 2, 3, 40, 5]
