"""Process counts per node, even or not, and a class with its constructor's arguments."""

from typing import Any

import pytest
from verl_dispatch import ClassWithInitArgs, ResourcePool, WorkerGroup


@pytest.mark.parametrize(
    ("counts", "local_ranks", "local_sizes"),
    [
        ([4, 2], [0, 1, 2, 3, 0, 1], [4, 4, 4, 4, 2, 2]),
        ([1, 2], [0, 0, 1], [1, 2, 2]),
        ([3], [0, 1, 2], [3, 3, 3]),
        ([], [], []),
        (None, [], []),
    ],
)
def test_nodes_may_differ(counts: list[int] | None, local_ranks: list[int], local_sizes: list[int]) -> None:
    pool = ResourcePool(counts)
    assert pool.world_size == len(local_ranks)
    assert pool.local_rank_list() == local_ranks
    assert pool.local_world_size_list() == local_sizes
    assert pool.store == pool.pool() == (counts or [])


def test_a_pool_does_not_share_the_callers_list() -> None:
    counts = [2]
    pool = ResourcePool(counts)
    pool.add_node(1)
    assert counts == [2]
    assert pool.store == [2, 1]


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_counts_must_be_whole_and_positive(count: Any) -> None:
    with pytest.raises(ValueError, match="process_on_nodes must be a whole number of at least 1"):
        ResourcePool([count])
    with pytest.raises(ValueError, match="process_count"):
        ResourcePool().add_node(count)


def test_defaults() -> None:
    pool = ResourcePool()
    assert (pool.max_colocate_count, pool.n_gpus_per_node) == (10, 8)


def test_a_group_over_a_pool_has_its_world_size() -> None:
    assert WorkerGroup(ResourcePool([4, 2])).world_size == 6


def test_a_class_with_arguments_makes_its_object() -> None:
    made = ClassWithInitArgs(dict, [("a", 1)], b=2)
    assert (made.cls, made.args, made.kwargs) == (dict, ([("a", 1)],), {"b": 2})
    assert made() == {"a": 1, "b": 2}


def test_a_pool_is_shown_by_its_nodes() -> None:
    pool = ResourcePool([4, 2])
    assert repr(pool) == "ResourcePool([4, 2])"
    assert "<tr><td>1</td><td>2</td></tr>" in pool._repr_html_()
