"""What the parameters of a pool mean, without Ray running."""

from __future__ import annotations

import inspect
import math
from typing import Any

import numpy as np
import pytest
from verl_ray.errors import PoolClosed
from verl_ray.pools.pool import (
    RayResourcePool,
    ResourcePoolManager,
    SubRayResourcePool,
    extract_pg_from_exist,
    merge_resource_pool,
    split_resource_pool,
)


@pytest.mark.parametrize(
    ("options", "bundle"),
    [
        ({"use_gpu": False}, {"CPU": 1}),
        ({}, {"CPU": 1, "GPU": 1}),
        ({"use_gpu": False, "max_colocate_count": 4}, {"CPU": 4}),
        ({"max_colocate_count": 3}, {"CPU": 3, "GPU": 1}),
        ({"use_gpu": False, "max_colocate_count": 10}, {"CPU": 10}),
        ({"max_colocate_count": 2, "cpus_per_worker": 0.5}, {"CPU": 1, "GPU": 1}),
        ({"cpus_per_worker": 0}, {"GPU": 1}),
        ({"use_gpu": False, "cpus_per_worker": 2}, {"CPU": 2}),
        ({"accelerator": "NPU"}, {"CPU": 1, "NPU": 1}),
        ({"accelerator_type": "A100"}, {"CPU": 1, "GPU": 1, "accelerator_type:A100": 0.0001}),
        (
            {"accelerator_type": "accelerator_type:H200"},
            {"CPU": 1, "GPU": 1, "accelerator_type:H200": 0.0001},
        ),
    ],
)
def test_what_a_slot_reserves(options: dict[str, Any], bundle: dict[str, float]) -> None:
    assert RayResourcePool([1], **options).spec.bundle() == bundle


@pytest.mark.parametrize("sizes", [[], None])
def test_a_pool_without_nodes_is_refused_at_the_first_use(sizes: list[int] | None) -> None:
    with pytest.raises(ValueError, match=r"process_on_nodes is .*one node at least"):
        RayResourcePool(sizes, use_gpu=False).place()


def test_a_pool_that_was_shut_down_is_not_opened_by_other_groups() -> None:
    pool = RayResourcePool([1], use_gpu=False)
    pool.shutdown()
    with pytest.raises(PoolClosed, match="was shut down"):
        pool.pgs = []
    assert pool.closed


def test_an_accelerator_type_may_be_a_resource_of_the_cluster_by_its_bare_name() -> None:
    spec = RayResourcePool([1], accelerator_type="my_a100").spec
    assert spec.bundle(["CPU", "my_a100"])["my_a100"] == 0.0001


@pytest.mark.parametrize("shares", [1, 2, 3, 6, 7, 10, 64, 10_000])
def test_all_shares_of_a_slot_fit_into_it_however_many(shares: int) -> None:
    pool = RayResourcePool([1], max_colocate_count=shares)
    share = pool.worker_options()["num_gpus"]
    assert share > 0
    assert round(share * 10_000) * shares <= 10_000
    assert round(pool.worker_options()["num_cpus"] * 10_000) * shares <= pool.spec.bundle()["CPU"] * 10_000


def test_an_accelerator_that_ray_cannot_share_has_one_share() -> None:
    assert RayResourcePool([1], accelerator="TPU").spec.shares == 1
    with pytest.raises(ValueError, match="max_colocate_count is 2, expected 1, as Ray cannot share"):
        RayResourcePool([1], accelerator="TPU", max_colocate_count=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_colocate_count": 0}, "max_colocate_count must be .* got 0"),
        ({"max_colocate_count": True}, "max_colocate_count must be .* got True"),
        ({"max_colocate_count": 10_001}, "1 to 10000"),
        ({"timeout_s": 0}, "timeout_s must be a number of seconds above 0"),
        ({"timeout_s": math.nan}, "timeout_s must be .* got nan"),
        ({"timeout_s": "5"}, "timeout_s must be .* got '5'"),
        ({"timeout_s": True}, "timeout_s must be .* got True"),
        ({"cpus_per_worker": -1}, "cpus_per_worker is -1"),
        ({"cpus_per_worker": math.inf}, "cpus_per_worker is inf"),
        ({"cpus_per_worker": "2"}, "cpus_per_worker is '2'"),
        ({"use_gpu": None}, "use_gpu must be True or False, got None"),
        ({"use_gpu": "False"}, "use_gpu must be True or False, got 'False'"),
        ({"detached": "no"}, "detached must be True or False, got 'no'"),
        ({"name_prefix": 5}, "name_prefix must be a str, got 5"),
        ({"accelerator": 5}, "accelerator must be a str, got 5"),
        ({"accelerator_type": 5}, "accelerator_type must be a str, got 5"),
        ({"label_selector": "zone"}, "label_selector must be a dict"),
        ({"topology_strategy": {"zone": 1}}, "topology_strategy must be a str, got 1"),
        ({"process_on_nodes": 2}, "process_on_nodes must be a list of whole numbers, got 2"),
        ({"use_gpu": False, "accelerator": "NPU"}, "no accelerator beside use_gpu=False"),
        ({"accelerator": "CPU"}, "use_gpu=False"),
        ({"process_on_nodes": [2, 0]}, "process_on_nodes must be .* got 0"),
        ({"process_on_nodes": [True]}, "process_on_nodes must be .* got True"),
        ({"process_on_nodes": ["2"]}, "process_on_nodes must be .* got '2'"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        RayResourcePool(**{"process_on_nodes": [1], **options})


def test_what_is_typed_out_means_the_same_as_what_is_left_out() -> None:
    for function in (RayResourcePool, RayResourcePool.get_placement_groups, ResourcePoolManager):
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in ("self", "resource_pool_spec", "pool_options"):
                assert parameter.default in (None, True, False), name


def test_a_pool_copies_the_list_it_is_given() -> None:
    spec = [2]
    pool = RayResourcePool(spec, use_gpu=False)
    pool.add_node(1)
    assert spec == [2]
    assert pool.store == [2, 1]
    assert pool.world_size == 3
    pool.store.append(9)
    assert pool.store == [2, 1]


def test_counts_may_be_numpy_numbers() -> None:
    assert RayResourcePool(list(np.array([2, 1]))).store == [2, 1]
    assert [part.world_size for part in RayResourcePool([4]).split(np.int64(2))] == [2, 2]


def test_local_numbers_of_an_uneven_pool() -> None:
    pool = RayResourcePool([2, 1], use_gpu=False)
    assert pool.local_world_size_list() == [2, 2, 1]
    assert pool.local_rank_list() == [0, 1, 0]


def test_pools_are_equal_to_themselves_alone() -> None:
    one, other = RayResourcePool([2]), RayResourcePool([2])
    assert one != other
    assert len({one, other, one}) == 2


@pytest.mark.parametrize("bad", [[1, 1], [4], [0, 3], [3, 0], [-1, 4], [], 2, 0, -3, True, [1.0, 2.0]])
def test_sizes_that_do_not_cut_the_pool_are_refused(bad: Any) -> None:
    with pytest.raises(ValueError, match="split_size"):
        RayResourcePool([2, 1]).split(bad)


def test_parts_know_their_place_also_when_cut_twice() -> None:
    pool = RayResourcePool([2, 2], use_gpu=False, max_colocate_count=3)
    first, second = split_resource_pool(pool, [1, 3])
    middle, last = second.split([1, 2])
    assert [part.store for part in (first, second, middle, last)] == [[1], [1, 2], [1], [2]]
    assert [part.start_bundle_index for part in (first, second, middle, last)] == [0, 1, 1, 2]
    assert [part.subgroup_world_size for part in (first, second, middle, last)] == [1, 3, 1, 2]
    assert {part.spec for part in (first, second, middle, last)} == {pool.spec}
    assert isinstance(last, SubRayResourcePool)
    assert last.parent is second


def test_what_is_no_pool_is_named() -> None:
    no_pool: Any = None
    for use, message in (
        (lambda: split_resource_pool(no_pool, 1), "resource_pool is None"),
        (lambda: merge_resource_pool(RayResourcePool([1]), no_pool), "rp2 is None"),
        (lambda: extract_pg_from_exist({}, [], no_pool), "resource_pool is None"),
    ):
        with pytest.raises(ValueError, match=f"{message}, expected a RayResourcePool"):
            use()


def test_a_run_outside_the_parent_is_refused() -> None:
    with pytest.raises(ValueError, match="a run of the parent"):
        SubRayResourcePool(RayResourcePool([2]), 1, 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accelerator_type": "H200"}, "accelerator_type: 'A100' and 'H200'"),
        ({"max_colocate_count": 2}, "shares: 10 and 2"),
        ({"use_gpu": False}, "accelerator: 'GPU' and None"),
        ({"detached": True}, "detached: False and True"),
        ({"label_selector": {"zone": "a"}}, "label_selector: None and {'zone': 'a'}"),
    ],
)
def test_pools_made_differently_do_not_merge(options: dict[str, Any], message: str) -> None:
    left = RayResourcePool([1], accelerator_type="A100")
    with pytest.raises(ValueError, match=message):
        merge_resource_pool(left, RayResourcePool([1], **{"accelerator_type": "A100", **options}))


def test_the_manager_maps_roles_to_pools() -> None:
    manager = ResourcePoolManager(
        {"main": [4, 2], "reward": [1]}, {"actor": "main", "critic": "main", "rm": "reward"}
    )
    manager.create_resource_pool()
    pools = dict(manager.resource_pool_dict)
    manager.create_resource_pool()
    assert manager.resource_pool_dict == pools
    assert manager.get_resource_pool("actor") is manager.get_resource_pool("critic") is pools["main"]
    assert pools["main"].store == [4, 2]
    assert pools["main"].spec.shares == 3
    assert manager.get_n_gpus() == 7


def test_a_manager_may_have_no_roles() -> None:
    manager: ResourcePoolManager[str] = ResourcePoolManager(resource_pool_spec={"main": [1]}, mapping=None)
    manager.create_resource_pool()
    assert manager.resource_pool_dict["main"].store == [1]
    assert manager.mapping == {}


def test_the_manager_names_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match=r"mapping has .*'critic': 'typo'.* expected .* main"):
        ResourcePoolManager({"main": [1]}, {"actor": "main", "critic": "typo"})
    bad: tuple[tuple[Any, Any, str], ...] = (
        (None, None, "resource_pool_spec must be a dict"),
        ({"main": 2}, None, r"resource_pool_spec\['main'\] must be a list"),
        ({"main": [1]}, "main", "mapping must be a dict"),
    )
    for spec, mapping, message in bad:
        with pytest.raises(TypeError, match=message):
            ResourcePoolManager(spec, mapping)
    with pytest.raises(KeyError, match=r"no role in the mapping 'judge'; there are \['actor'\]"):
        ResourcePoolManager({"main": [1]}, {"actor": "main"}).get_resource_pool("judge")
