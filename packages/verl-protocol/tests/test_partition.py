"""Even sizes, and rows spread so that the parts weigh nearly the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from verl_protocol import balanced_partition, boundaries, even_sizes

weights = st.lists(st.integers(0, 1000) | st.floats(0, 1000), max_size=40)


@given(st.integers(0, 100), st.integers(1, 20))
def test_even_sizes_differ_by_at_most_one(num_rows: int, num_parts: int) -> None:
    sizes = even_sizes(num_rows, num_parts)
    assert len(sizes) == num_parts
    assert sum(sizes) == num_rows
    assert max(sizes) - min(sizes) <= 1
    assert boundaries(sizes) == [sum(sizes[:at]) for at in range(num_parts + 1)]


@given(weights, st.integers(1, 8))
def test_every_row_is_in_one_part_and_the_inverse_leads_back(values: list[float], num_parts: int) -> None:
    partition = balanced_partition(values, num_parts)
    assert len(partition.parts) == num_parts
    assert sorted(partition.order) == list(range(len(values)))
    assert [partition.order[at] for at in partition.inverse] == list(range(len(values)))
    assert partition.sizes == tuple(len(part) for part in partition.parts)
    assert all(list(part) == sorted(part) for part in partition.parts)


@given(weights, st.integers(1, 8))
def test_sums_differ_by_at_most_the_heaviest_row(values: list[float], num_parts: int) -> None:
    sums = [sum(values[row] for row in part) for part in balanced_partition(values, num_parts).parts]
    assert max(sums) - min(sums) <= max(values, default=0) + 1e-6


@given(st.integers(0, 8), st.integers(1, 6), st.randoms(use_true_random=False))
def test_parts_have_equal_counts_on_request(rows_each: int, num_parts: int, random: Any) -> None:
    values = [random.randint(0, 100) for _ in range(rows_each * num_parts)]
    partition = balanced_partition(values, num_parts, equal_size=True)
    assert set(partition.sizes) == {rows_each}
    assert sorted(partition.order) == list(range(len(values)))
    sums = [sum(values[row] for row in part) for part in partition.parts]
    assert max(sums) - min(sums) <= max(values, default=0)


def test_many_rows_come_out_nearly_equal() -> None:
    values = np.random.default_rng(0).integers(1, 4000, 2048)
    for equal_size in (False, True):
        parts = balanced_partition(values, 8, equal_size).parts
        sums = [int(values[list(part)].sum()) for part in parts]
        assert max(sums) - min(sums) <= 4


def test_weights_may_be_any_vector() -> None:
    expected = balanced_partition([3, 1, 2], 2)
    for given_weights in (torch.tensor([3, 1, 2]), np.array([3.0, 1.0, 2.0]), (3, 1, 2)):
        assert balanced_partition(given_weights, 2) == expected
    assert expected.parts == ((0,), (1, 2))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, -1], "at least 0"),
        ([float("nan")], "finite"),
        ([[1], [2]], "2 dimensions"),
        (["a"], "not all numbers"),
    ],
)
def test_weights_that_cannot_balance_are_errors(values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        balanced_partition(values, 2)


def test_counts_must_be_possible() -> None:
    with pytest.raises(ValueError, match="3 rows cannot be spread over 2 parts of equal size"):
        balanced_partition([1, 2, 3], 2, equal_size=True)
    with pytest.raises(ValueError, match="num_parts"):
        balanced_partition([1], 0)
    with pytest.raises(ValueError, match="num_parts"):
        even_sizes(3, 0)
