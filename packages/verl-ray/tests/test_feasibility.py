"""Whether a pool fits is asked per node and over all resources, and answered with numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from verl_ray.pools.feasibility import Need, explain_need, labels_match
from verl_ray.pools.placement import explain_feasibility


def test_a_resource_short_on_the_only_fitting_node_is_named_with_both_numbers() -> None:
    nodes = {"n0": {"CPU": 5, "GPU": 8}, "n1": {"CPU": 64, "GPU": 0}}
    answer = explain_feasibility(nodes, spec=[8], cpu_per=3)
    assert not answer.ok
    assert "n0 has CPU 5, needs 24" in answer.reason
    assert "n1 has GPU 0, needs 8" in answer.reason


def test_a_sum_over_nodes_is_not_room_on_one_node() -> None:
    nodes = {"a": {"GPU": 4, "CPU": 99}, "b": {"GPU": 4, "CPU": 99}}
    assert not explain_feasibility(nodes, [8], cpu_per=1).ok


@pytest.mark.parametrize("spec", [[2, 4], [4, 2]])
def test_the_order_of_the_spec_does_not_matter(spec: list[int]) -> None:
    nodes = {"a": {"GPU": 4, "CPU": 99}, "b": {"GPU": 2, "CPU": 99}}
    assert explain_feasibility(nodes, spec, cpu_per=1).ok


def test_groups_that_fit_one_by_one_may_not_fit_together() -> None:
    answer = explain_feasibility({"a": {"CPU": 3}, "b": {"CPU": 3}}, [2, 2, 2], accelerator=None)
    assert not answer.ok
    assert "do not fit together" in answer.reason
    assert "a holds 3 (has CPU 3)" in answer.reason


def test_an_empty_cluster_is_said_to_be_empty() -> None:
    assert explain_feasibility({}, [1]).reason.endswith("there is no usable node")


@pytest.mark.parametrize(
    ("strategy", "spec", "ok"),
    [
        ("PACK", [4], True),
        ("SPREAD", [5], False),
        ("STRICT_SPREAD", [2], True),
        ("STRICT_SPREAD", [3], False),
    ],
)
def test_other_strategies(strategy: str, spec: list[int], ok: bool) -> None:
    nodes = {"a": {"CPU": 2}, "b": {"CPU": 2}}
    answer = explain_feasibility(nodes, spec, accelerator=None, strategy=strategy)
    assert answer.ok is ok
    assert ok or "each process needs CPU 1" in answer.reason


def test_fractions_add_up() -> None:
    assert explain_feasibility({"a": {"GPU": 1, "CPU": 9}}, [10], cpu_per=0.1, accelerator_per=0.1).ok


def _fits_by_trying(spec: list[int], rooms: list[int]) -> bool:
    for places in itertools.product(range(len(rooms)), repeat=len(spec)):
        left = rooms[:]
        for size, place in zip(spec, places, strict=True):
            left[place] -= size
        if min(left) >= 0:
            return True
    return False


SPECS = st.lists(st.integers(1, 5), min_size=1, max_size=4)
ROOMS = st.lists(st.integers(0, 7), min_size=1, max_size=3)


@given(SPECS, ROOMS)
def test_what_is_said_to_fit_does_fit(spec: list[int], rooms: list[int]) -> None:
    if _explained(spec, rooms):
        assert _fits_by_trying(spec, rooms)


@given(st.integers(1, 4), st.integers(1, 4), ROOMS)
def test_equal_groups_are_packed_exactly(size: int, count: int, rooms: list[int]) -> None:
    assert _explained([size] * count, rooms) is _fits_by_trying([size] * count, rooms)


def _explained(spec: list[int], rooms: list[int]) -> bool:
    nodes = {f"n{index}": {"CPU": float(room)} for index, room in enumerate(rooms)}
    return explain_need(nodes, Need(tuple(spec), {"CPU": 1})).ok


def test_many_nodes_are_answered_quickly() -> None:
    nodes = {f"n{index}": {"GPU": 8.0, "CPU": 64.0} for index in range(512)}
    assert explain_feasibility(nodes, [8] * 512).ok
    assert not explain_feasibility(nodes, [8] * 513).ok


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ({"zone": "a"}, True),
        ({"zone": "b"}, False),
        ({"zone": "!b"}, True),
        ({"zone": "in(b, a)"}, True),
        ({"zone": "!in(b, a)"}, False),
        ({"rack": "r1"}, False),
        ({"rack": "!r1"}, True),
        ({}, True),
    ],
)
def test_label_selectors(selector: dict[str, str], matches: bool) -> None:
    assert labels_match({"zone": "a"}, selector) is matches
