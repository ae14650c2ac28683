"""The order of nodes and bundles: numbers as numbers, the same for every order of the input."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_ray.pools.ordering import arrange_on_nodes, node_order_key, order_bundles
from verl_ray.pools.placement import order_bundles as public_order_bundles

TWO_NODES = [
    ("nA", "10.0.0.2", 0, ["0"]),
    ("nB", "10.0.0.3", 1, ["0"]),
    ("nB", "10.0.0.3", 2, ["1"]),
    ("nA", "10.0.0.2", 3, ["1"]),
]


@pytest.mark.parametrize("seed", range(20))
def test_bundles_go_node_by_node_whatever_order_they_come_in(seed: int) -> None:
    rows = TWO_NODES[:]
    random.Random(seed).shuffle(rows)
    assert [bundle for *_, bundle, _ in order_bundles(rows)] == [0, 3, 1, 2]


def test_the_same_function_is_offered_by_placement() -> None:
    assert public_order_bundles is order_bundles


def test_accelerator_ids_count_as_numbers() -> None:
    rows = [("n", "10.0.0.1", index, [str(index)]) for index in (10, 9, 2)]
    assert [bundle for *_, bundle, _ in order_bundles(rows)] == [2, 9, 10]


def test_accelerator_order_beats_bundle_order() -> None:
    rows = [("n", "10.0.0.1", 0, ["3"]), ("n", "10.0.0.1", 1, ["GPU-b2"]), ("n", "10.0.0.1", 2, ["1"])]
    assert [bundle for *_, bundle, _ in order_bundles(rows)] == [2, 0, 1]


ADDRESSES_IN_ORDER = [
    "10.0.0.9",
    "10.0.0.10",
    "10.0.0.100",
    "fe80::1",
    "fe80::a",
    "my-pod-2",
    "my-pod-12",
]


@pytest.mark.parametrize("seed", range(10))
def test_addresses_have_one_total_order(seed: int) -> None:
    shuffled = ADDRESSES_IN_ORDER[:]
    random.Random(seed).shuffle(shuffled)
    assert sorted(shuffled, key=node_order_key) == ADDRESSES_IN_ORDER


def test_nodes_with_one_address_are_told_apart_by_id() -> None:
    rows: list[tuple[str, str, int, list[str]]] = [
        ("b", "10.0.0.1", 0, []),
        ("a", "10.0.0.1", 1, []),
        ("b", "10.0.0.1", 2, []),
    ]
    assert [bundle for *_, bundle, _ in order_bundles(rows)] == [1, 0, 2]


@given(st.lists(st.text(max_size=8), min_size=1, max_size=6))
def test_any_names_can_be_ordered(names: list[str]) -> None:
    rows = [("id", name, index, [name]) for index, name in enumerate(names)]
    assert sorted(bundle for *_, bundle, _ in order_bundles(rows)) == list(range(len(names)))


NODES = {"a": ("a", "10.0.0.9"), "b": ("b", "10.0.0.10"), "c": ("c", "10.0.0.100")}


@pytest.mark.parametrize(
    ("sizes", "landed", "order"),
    [
        ([1, 1, 1], "cab", [1, 2, 0]),
        ([4, 2], "ba", [0, 1]),
        ([2, 4], "ab", [0, 1]),
        ([2, 1, 2], "bca", [2, 1, 0]),
        ([2, 1, 2], "aba", [0, 2, 1]),
        ([1, 1], "aa", [0, 1]),
    ],
    ids=[
        "equal sizes by node",
        "spec first",
        "spec order",
        "equal ones swap",
        "one node together",
        "same node",
    ],
)
def test_groups_follow_the_spec_and_equal_ones_the_nodes(
    sizes: list[int], landed: str, order: list[int]
) -> None:
    assert arrange_on_nodes(sizes, [NODES[name] for name in landed]) == order


@given(st.data())
def test_ranks_stay_contiguous_per_node(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=7))
    landed = [NODES[data.draw(st.sampled_from("abc"))] for _ in sizes]
    order = arrange_on_nodes(sizes, landed)
    assert sorted(order) == list(range(len(sizes)))
    runs = [
        node
        for place, node in enumerate(landed[i] for i in order)
        if not place or landed[order[place - 1]] != node
    ]
    assert len(runs) == len(set(runs))
