"""Pools on the shared cluster: reserved at the first use, the same at every call, freed by their owner."""

from __future__ import annotations

import gc
import pickle
import time
from collections.abc import Callable

import pytest
import ray
from verl_ray.errors import NameTakenError, PoolAlreadyPlaced, PoolClosed, PoolFull, ResourceUnavailable
from verl_ray.pools.placement import release, sort_placement_group_by_node_ip
from verl_ray.pools.pool import (
    RayResourcePool,
    ResourcePoolManager,
    extract_pg_from_exist,
    merge_resource_pool,
)
from verl_ray.wire.message import packed

Resources = Callable[[], dict[str, float]]

pytestmark = pytest.mark.usefixtures("shared_ray")


def test_groups_are_the_same_at_every_call_and_cannot_be_had_in_another_way() -> None:
    with RayResourcePool([1, 1, 1], use_gpu=False) as pool:
        first = [group.id for group in pool.get_placement_groups()]
        assert len(first) == 3
        assert first == [group.id for group in pool.get_placement_groups()]
        assert first == [group.id for group in pool.pgs or []]
        assert first == [group.id for group in sort_placement_group_by_node_ip(pool.get_placement_groups())]
        with pytest.raises(ValueError, match=r"already created .* STRICT_PACK"):
            pool.get_placement_groups(strategy="PACK")
        with pytest.raises(ValueError, match="name"):
            pool.get_placement_groups(name="late")
        assert pool.get_placement_groups(strategy="STRICT_PACK")


def test_the_groups_of_a_pool_that_is_not_placed_are_none() -> None:
    assert RayResourcePool([1], use_gpu=False).pgs is None


def test_a_strategy_asked_for_first_is_kept() -> None:
    with RayResourcePool([2], use_gpu=False) as pool:
        group = pool.get_placement_groups(strategy="SPREAD")[0]
        assert ray.util.placement_group_table(group)["strategy"] == "SPREAD"
        assert pool.get_placement_groups() == [group]
        assert pool.slots()[1].placement_group == group


def test_an_unknown_strategy_reserves_nothing(free_resources: Resources) -> None:
    pool = RayResourcePool([2], use_gpu=False)
    with pytest.raises(ValueError, match="strategy is 'TIGHT', expected one of STRICT_PACK"):
        pool.get_placement_groups(strategy="TIGHT")
    assert free_resources()["CPU"] == 8.0


def test_the_default_demand_is_small() -> None:
    with RayResourcePool([2], use_gpu=False) as pool:
        assert sum(b["CPU"] for group in pool.get_placement_groups() for b in group.bundle_specs) <= 2


def test_pools_in_turn_free_all_they_had(free_resources: Resources) -> None:
    for _ in range(10):
        with RayResourcePool([8], use_gpu=False, max_colocate_count=1, timeout_s=10) as pool:
            assert len(pool.slots()) == 8
        assert free_resources()["CPU"] == 8.0


def test_an_interrupt_frees_the_pool() -> None:
    def interrupted() -> None:
        with RayResourcePool([8], use_gpu=False) as pool:
            pool.get_placement_groups()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with RayResourcePool([8], use_gpu=False, timeout_s=10) as again:
        assert again.get_placement_groups()


def test_a_pool_that_was_shut_down_says_so() -> None:
    pool = RayResourcePool([2], use_gpu=False)
    part = pool.split([1, 1])[0]
    pool.slots()
    pool.shutdown()
    pool.shutdown()
    for closed in (pool, part):
        assert closed.closed
        with pytest.raises(PoolClosed, match="was shut down; make a new one"):
            closed.slots()
        with pytest.raises(PoolClosed):
            closed.acquire()


def test_a_dropped_pool_frees_its_slots(wait_until_free: Resources) -> None:
    pool = RayResourcePool([4], use_gpu=False)
    assert len(pool.slots()) == 4
    del pool
    gc.collect()
    assert wait_until_free()["CPU"] == 8.0


def test_raw_groups_in_the_users_hands_outlive_the_pool_object() -> None:
    groups = RayResourcePool([2], use_gpu=False).get_placement_groups()
    gc.collect()
    time.sleep(0.3)
    assert ray.util.placement_group_table(groups[0])["state"] == "CREATED"
    ray.util.remove_placement_group(groups[0])


def test_two_pools_of_one_prefix_get_different_names() -> None:
    with (
        RayResourcePool([1], use_gpu=False, name_prefix="global_pool") as one,
        RayResourcePool([1], use_gpu=False, name_prefix="global_pool") as other,
    ):
        ids = {group.id for pool in (one, other) for group in pool.get_placement_groups()}
        names = {ray.util.placement_group_table(group)["name"] for group in one.pgs or []}
        assert len(ids) == 2
        assert all(name.startswith("global_pool_1_") for name in names)


def test_an_exact_name_can_be_attached_to_and_a_clash_names_the_owner() -> None:
    with RayResourcePool([1], use_gpu=False) as one, RayResourcePool([1], use_gpu=False) as other:
        groups = one.get_placement_groups(name="exact")
        assert [ray.util.get_placement_group("exact0")] == groups
        job = ray.get_runtime_context().get_job_id()
        with pytest.raises(NameTakenError, match=f"'exact0' already exists, owned by job {job}"):
            other.get_placement_groups(name="exact")
        (part,) = other.split(1)
        other.pgs = groups
        assert other.slots() == part.slots() == one.slots()
        other.shutdown()
        assert one.slots()
        with pytest.raises(ValueError, match=r"pgs is \[1, 1\], expected groups .*, each once"):
            RayResourcePool([1, 1], use_gpu=False).pgs = groups * 2


def test_split_parts_are_views_over_the_parents_slots() -> None:
    with RayResourcePool([2, 1], use_gpu=False) as pool:
        one, two = pool.split([1, 2])
        assert one.slots() + two.slots() == pool.slots()
        assert (one.world_size, two.world_size) == (1, 2)
        assert two.local_world_size_list() == [1, 1]
        assert (pool.local_rank_list(), pool.local_world_size_list()) == ([0, 1, 0], [2, 2, 1])
        one.shutdown()
        assert pool.get_placement_groups()
        assert two.get_placement_groups() == pool.get_placement_groups()
        with pytest.raises(PoolAlreadyPlaced, match=r"already placed as \[2, 1\]"):
            pool.add_node(1)


def test_parts_taken_before_the_pool_is_placed_see_the_same_slots() -> None:
    with RayResourcePool([2, 2], use_gpu=False) as pool:
        _, second = pool.split(2)
        _, last = second.split([1, 1])
        assert last.slots() == pool.slots()[3:]


def test_merged_pools_keep_order_and_owners() -> None:
    with RayResourcePool([2], use_gpu=False) as one, RayResourcePool([1], use_gpu=False) as other:
        merged = merge_resource_pool(one, other)
        assert merged.slots() == one.slots() + other.slots()
        assert (merged.world_size, merged.store, merged.spec) == (3, [2, 1], one.spec)
        assert [part.slots() for part in merged.split([1, 2])] == [merged.slots()[:1], merged.slots()[1:]]
        merged.shutdown()
        assert one.slots()
        assert other.slots()
        with pytest.raises(ValueError, match="shares no slot"):
            merge_resource_pool(one, one.split([1, 1])[0])


def test_parts_around_a_gap_merge_with_contiguous_nodes() -> None:
    with RayResourcePool([2, 2], use_gpu=False) as pool:
        a, b, c, d = pool.split(1)
        merged = merge_resource_pool(merge_resource_pool(a, c), b)
        assert merged.slots() == (*a.slots(), *b.slots(), *c.slots())
        assert merged.store == [2, 1]
        assert d.slots()[0] not in merged.slots()


@pytest.mark.parametrize("shares", [1, 2, 3])
def test_as_many_groups_fit_as_the_pool_says(shares: int) -> None:
    with RayResourcePool([2], use_gpu=False, max_colocate_count=shares) as pool:
        taken = [pool.acquire(f"g{number}") for number in range(shares)]
        with pytest.raises(PoolFull, match=f"{shares} of {shares}"):
            pool.acquire("late")
        with pytest.raises(PoolFull, match=f"{shares} of {shares}"):
            pool.split(1)[0].acquire("late part")
        assert pool.owners() == [f"g{number}" for number in range(shares)]
        taken[0].release()
        pool.split([1, 1])[1].acquire("one part")
        pool.split([1, 1])[0].acquire("the other part")


def test_a_demand_beyond_the_bundle_is_refused_at_once() -> None:
    with RayResourcePool([1], use_gpu=False) as pool:
        with pool.acquire("one", {"CPU": 1}), pytest.raises(ResourceUnavailable, match="rank 0 asks CPU 1"):
            pool.acquire("two", {"CPU": 1})
        with pool.acquire("three", {"CPU": 1}):
            assert pool.owners() == ["three"]


def test_accelerators_by_name() -> None:
    with RayResourcePool([2], accelerator="NPU", max_colocate_count=2) as pool:
        assert all(b["NPU"] == 1 for group in pool.get_placement_groups() for b in group.bundle_specs)
        assert pool.worker_options()["resources"] == {"NPU": 0.5}
    with RayResourcePool([2]) as pool:
        assert [b["NPU"] for b in pool.get_placement_groups(device_name="npu")[0].bundle_specs] == [1, 1]
        assert pool.accelerator == "NPU"
        with pytest.raises(ValueError, match="accelerator"):
            pool.get_placement_groups(device_name="cuda")


def test_a_pool_of_one_accelerator_refuses_the_device_of_another() -> None:
    with pytest.raises(ValueError, match="is 'cuda', expected a device of the pool's 'NPU'"):
        RayResourcePool([1], accelerator="NPU").get_placement_groups(device_name="cuda")


def test_gpu_slots_follow_the_device_ids() -> None:
    with RayResourcePool([4], max_colocate_count=2) as pool:
        where = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy

        @ray.remote(num_cpus=0, num_gpus=0.5)
        def my_gpu() -> int:
            return int(ray.get_runtime_context().get_accelerator_ids()["GPU"][0])

        asked = [
            my_gpu.options(scheduling_strategy=where(slot.placement_group, slot.bundle_index)).remote()
            for slot in pool.slots()
        ]
        assert ray.get(asked, timeout=60) == [0, 1, 2, 3]


def test_a_pool_pickles_as_a_view_that_frees_nothing() -> None:
    with RayResourcePool([2], use_gpu=False, max_colocate_count=2) as pool:
        # Also as an argument of a worker's method.
        for sent in (pool, packed(pool, "one")):
            copy = pickle.loads(pickle.dumps(sent))
            assert (copy.slots(), copy.spec, copy.store) == (pool.slots(), pool.spec, pool.store)
            copy.shutdown()
            assert pool.slots()


def test_groups_of_existing_pools_are_chosen_by_size_from_the_named_pools_alone() -> None:
    with (
        RayResourcePool([1, 3], use_gpu=False) as actor,
        RayResourcePool([2], use_gpu=False) as critic,
        RayResourcePool([2, 1], use_gpu=False) as wanted,
    ):
        pools = {"actor": actor, "critic": critic}
        chosen = extract_pg_from_exist(pools, ["actor"], wanted)
        assert [group.bundle_count for group in chosen] == [3, 1]
        assert critic.pgs is None
        wanted.pgs = chosen
        assert [slot.placement_group for slot in wanted.slots()] == [chosen[0], chosen[0], chosen[1]]
        with pytest.raises(ValueError, match=r"groups for \[2, 1\], they have \[2\]"):
            extract_pg_from_exist(pools, ["critic"], RayResourcePool([2, 1], use_gpu=False))
        with pytest.raises(ValueError, match=r"\['typo'\], expected names among actor, critic"):
            extract_pg_from_exist(pools, ["typo"], wanted)
        # A group of a pool that two roles share counts once.
        with pytest.raises(ValueError, match=r"groups for \[3, 3\], they have \[3, 1\]"):
            extract_pg_from_exist(
                {"actor": actor, "ref": actor}, ["actor", "ref"], RayResourcePool([3, 3], use_gpu=False)
            )


def test_a_task_can_make_its_own_pool() -> None:
    @ray.remote(num_cpus=0)
    def inside() -> int:
        with RayResourcePool([2], use_gpu=False) as pool:
            return len(pool.slots())

    assert ray.get(inside.remote(), timeout=60) == 2


def test_a_detached_pool_outlives_its_object(free_resources: Resources) -> None:
    pool = RayResourcePool([1], use_gpu=False, detached=True)
    group = pool.slots()[0].placement_group
    del pool
    gc.collect()
    time.sleep(0.3)
    assert ray.util.placement_group_table(group)["state"] == "CREATED"
    release([group])
    assert free_resources()["CPU"] == 8.0


def test_the_manager_frees_all_its_pools(free_resources: Resources) -> None:
    with ResourcePoolManager({"a": [2], "b": [1]}, {"x": "a", "y": "b"}, use_gpu=False) as manager:
        assert len(manager.get_resource_pool("x").slots()) == 2
        assert len(manager.get_resource_pool("y").slots()) == 1
    assert free_resources()["CPU"] == 8.0
