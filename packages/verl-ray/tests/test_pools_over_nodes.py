"""Pools over several nodes: uneven specs, order, labels, a late node, a lost node."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from ray.cluster_utils import Cluster
from verl_ray.errors import PlacementTimeout
from verl_ray.pools.cluster import alive_nodes
from verl_ray.pools.ordering import node_order_key
from verl_ray.pools.pool import RayResourcePool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster(no_ray: None) -> Iterator[Cluster]:
    """A head without CPUs and three nodes: small, large, and one with a label."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    cluster.add_node(num_cpus=4)
    cluster.add_node(num_cpus=1, labels={"zone": "b"})
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    shut_down: Callable[[], None] = cluster.shutdown
    shut_down()


@pytest.mark.parametrize("spec", [[4, 2], [2, 4]])
def test_an_uneven_pool_keeps_the_order_of_its_spec(cluster: Cluster, spec: list[int]) -> None:
    with RayResourcePool(spec, use_gpu=False, timeout_s=30) as pool:
        slots = pool.slots()
        assert pool.store == spec
        assert len({slot.node_id for slot in slots[: spec[0]]}) == 1
        assert len({slot.node_id for slot in slots}) == 2
        assert pool.local_rank_list() == [*range(spec[0]), *range(spec[1])]
        assert slots == pool.slots()


def test_parts_cross_the_node_border(cluster: Cluster) -> None:
    with RayResourcePool([4, 2], use_gpu=False, timeout_s=30) as pool:
        left, right = pool.split(3)
        assert (left.store, right.store) == ([3], [1, 2])
        assert len({slot.node_id for slot in right.slots()}) == 2


def test_equal_groups_follow_the_order_of_nodes_in_every_pool(cluster: Cluster) -> None:
    orders = []
    for _ in range(2):
        with RayResourcePool([1, 1, 1], use_gpu=False, timeout_s=30) as pool:
            keys = [node_order_key(slot.node_ip, slot.node_id) for slot in pool.slots()]
            orders.append(keys)
    assert all(keys == sorted(keys) for keys in orders)


def test_a_group_spread_over_nodes_has_local_numbers_per_node(cluster: Cluster) -> None:
    with RayResourcePool([6], use_gpu=False, timeout_s=30) as pool:
        pool.get_placement_groups(strategy="PACK")
        nodes = [slot.node_id for slot in pool.slots()]
        assert len(set(nodes)) > 1
        assert nodes == sorted(nodes, key=nodes.index)
        assert sum(pool.store) == 6
        assert pool.store == [nodes.count(node) for node in dict.fromkeys(nodes)]


def test_labels_choose_the_node(cluster: Cluster) -> None:
    wanted = next(node.node_id for node in alive_nodes() if node.labels.get("zone") == "b")
    with RayResourcePool([1], use_gpu=False, label_selector={"zone": "b"}, timeout_s=30) as pool:
        assert [slot.node_id for slot in pool.slots()] == [wanted]
    with pytest.raises(PlacementTimeout, match=r"has CPU 1, needs 2"):
        RayResourcePool([2], use_gpu=False, label_selector={"zone": "b"}, timeout_s=1).slots()


def test_what_fits_in_sum_but_on_no_node_is_refused_with_each_nodes_numbers(cluster: Cluster) -> None:
    with pytest.raises(PlacementTimeout, match=r"(?=.*has CPU 2, needs 5)(?=.*has CPU 4, needs 5)"):
        RayResourcePool([5], use_gpu=False, timeout_s=1).slots()


def test_a_node_that_comes_late_is_used(cluster: Cluster) -> None:
    with RayResourcePool([6], use_gpu=False, timeout_s=60) as pool, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(pool.slots)
        with pytest.raises(TimeoutError):
            waiting.result(timeout=1)
        late = cluster.add_node(num_cpus=6)
        assert {slot.node_id for slot in waiting.result(timeout=60)} == {late.node_id}
    cluster.remove_node(late)


def test_the_slots_of_a_lost_node_are_freed_without_a_hang(cluster: Cluster) -> None:
    short_lived = cluster.add_node(num_cpus=6)
    pool = RayResourcePool([6], use_gpu=False, timeout_s=60)
    assert {slot.node_id for slot in pool.slots()} == {short_lived.node_id}
    cluster.remove_node(short_lived)
    started = time.monotonic()
    pool.shutdown()
    assert time.monotonic() - started < 15
    assert short_lived.node_id not in {node.node_id for node in alive_nodes()}
