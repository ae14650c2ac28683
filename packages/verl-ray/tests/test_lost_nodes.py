"""A node is lost while a group works on it: who failed, where the workers may go, and what others keep."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
import torch
from ray.cluster_utils import Cluster
from ray.experimental import get_object_locations
from verl_dispatch import Dispatch, Worker, WorkerGroupError, register
from verl_protocol import DataProto
from verl_protocol.errors import ColumnsLost
from verl_ray import Death, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, ResourceUnavailable
from verl_ray.pools.cluster import alive_nodes
from verl_ray.wire import store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]

# Ray leaves this one untyped.
available_resources: Callable[[], dict[str, float]] = ray.available_resources


class Resident(Worker):
    def __init__(self, given: int) -> None:
        super().__init__()
        self.given = given

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def about(self) -> tuple[int, str, str, str]:
        local = os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]
        return self.rank, *local, str(ray.get_runtime_context().get_node_id())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float) -> int:
        time.sleep(seconds)
        return self.given


@pytest.fixture(scope="module")
def cluster(no_ray: None) -> Iterator[Cluster]:
    """A head that takes no workers, and that notices a dead node within about two seconds."""
    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_timeout_ms": 1000,
        "health_check_failure_threshold": 4,
    }
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": quick}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    shut_down: Callable[[], None] = cluster.shutdown
    shut_down()


@pytest.fixture
def nodes(cluster: Cluster) -> Iterator[Callable[..., Any]]:
    """Adds a node with so many CPUs; those that are left go with the test."""
    added: list[Any] = []

    def add(cpus: int, **more: Any) -> Any:
        added.append(cluster.add_node(num_cpus=cpus, **more))
        return added[-1]

    yield add
    for node in added:
        if node.node_id in {each.node_id for each in alive_nodes()}:
            cluster.remove_node(node)


def dead_ranks(deaths: list[Death]) -> list[int]:
    return sorted(rank for death in deaths for rank in death.ranks)


def group_on(pool: RayResourcePool) -> RayWorkerGroup[Resident]:
    return RayWorkerGroup(pool, RayClassWithInitArgs(Resident, 7))


def free_cpus() -> float:
    return sum(node.free.get("CPU", 0.0) for node in alive_nodes())


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_a_node_lost_in_mid_call_then_no_room_then_a_late_node(
    cluster: Cluster, nodes: Callable[[int], Any]
) -> None:
    nodes(2)
    nodes(2)
    deaths: list[Death] = []
    with RayResourcePool([2, 2], use_gpu=False, max_colocate_count=1, timeout_s=3) as pool:
        group = group_on(pool)
        before = group.about()
        assert [about[:3] for about in before] == [(0, "0", "2"), (1, "1", "2"), (2, "0", "2"), (3, "1", "2")]
        left, right = pool.split(2)
        assert (left.store, right.store) == ([2], [2])
        assert before[0][3] == before[1][3] != before[2][3] == before[3][3]
        group.watch(deaths.append, 0.1)

        victim = node_of(cluster, before[2][3])
        killer = threading.Timer(0.5, cluster.remove_node, (victim,), {"allow_graceful": False})
        killer.start()
        begin = time.monotonic()
        with pytest.raises(WorkerGroupError) as caught:
            group.sleep(100)
        assert time.monotonic() - begin < 20
        assert caught.value.failed_ranks == [2, 3]
        assert caught.value.unanswered_ranks == [0, 1]
        assert victim.node_id[:8] in str(caught.value)
        # On a busy machine a watch may see them one after the other.
        assert wait_for(lambda: dead_ranks(deaths) == [2, 3])

        with pytest.raises(ResourceUnavailable, match=r"needs CPU 1; .*holds 2 \(has CPU 2\)") as no_room:
            group.restart()
        assert "Nothing stays reserved" in str(no_room.value)
        assert free_cpus() == 2
        with pytest.raises(WorkerGroupError, match=r"earlier failure in 'restart'; call restart"):
            group.about()

        late = nodes(2)
        group.restart()
        after = group.about()
        assert [about[:3] for about in after] == [about[:3] for about in before]
        assert {about[3] for about in after} == {before[0][3], late.node_id}
        assert group.sleep(0) == [7] * 4
        assert group.generation == 2
        assert dead_ranks(deaths) == [2, 3]
        group.shutdown()
    assert free_cpus() == 4


def test_a_part_moves_and_the_other_part_stays_then_a_new_group_fits_on_what_is_left(
    cluster: Cluster, nodes: Callable[[int], Any]
) -> None:
    for _ in range(3):
        nodes(1)
    with RayResourcePool(
        [1, 1], use_gpu=False, cpus_per_worker=1, max_colocate_count=1, timeout_s=30
    ) as pool:
        left, right = pool.split(1)
        staying, moving = group_on(left), group_on(right)
        home, lost = staying.about(), moving.about()
        # Ray does not know yet; it will while the new worker is to start there.
        cluster.remove_node(node_of(cluster, lost[0][3]), allow_graceful=False)
        moving.restart()
        assert moving.about()[0][3] not in (home[0][3], lost[0][3])
        assert right.slots()[0].node_id == moving.about()[0][3]
        assert staying.about() == home
        assert staying.generation == 0
        staying.shutdown()
        moving.shutdown()

        nodes(2)
        remove(cluster, home[0][3])
        assert pool.lost_nodes() == (home[0][3],)
        with group_on(pool) as group:
            assert [about[0] for about in group.about()] == [0, 1]
            assert home[0][3] not in {about[3] for about in group.about()}
            assert pool.lost_nodes() == ()


ROWS, WIDTH = 4, 1_000_000


class Maker(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True)
    def make(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"wide": data.tensor("i")[:, None].repeat(1, WIDTH)})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads="wide")
    def firsts(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"first": data.tensor("wide")[:, 0].clone()})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def node(self) -> str:
        return str(ray.get_runtime_context().get_node_id())


def test_columns_are_read_from_disk_and_those_of_a_lost_node_are_named_in_time(
    cluster: Cluster, nodes: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(2):
        nodes(1, object_store_memory=80_000_000)
    with (
        RayResourcePool([1, 1], use_gpu=False, max_colocate_count=1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Maker), name_prefix="makers") as group,
    ):
        # Each node makes 96 MB, more than its store holds. What rank 1 reads is not copied to rank 0.
        made = [group.make(rows_from(first)) for first in range(6)]
        assert wait_for(lambda: is_spilled(made[0]))
        assert group.firsts(made[0]).tensor("first").tolist() == rows_from(0).tensor("i").tolist()
        assert group.firsts(DataProto.concat(made)).tensor("first").sum() == sum(range(6)) * ROWS + 6 * 6

        cluster.remove_node(node_of(cluster, group.node()[1]), allow_graceful=False)
        # Sooner than Ray hears of it.
        monkeypatch.setattr(store, "_LOOK_AFTER_S", 0.2)
        begin = time.monotonic()
        with pytest.raises(
            ColumnsLost, match=r"rows of wide are no longer there: no node .* be reached"
        ) as caught:
            made[4].fetch("wide")
        lost = caught.value
        assert (lost.group, lost.method, lost.rank, lost.generation) == ("makers", "make", 1, 0)
        monkeypatch.undo()
        with pytest.raises(ColumnsLost, match="rank 1 of group 'makers'"):
            made[5].fetch("wide")
        assert time.monotonic() - begin < 10
        assert made[4][: ROWS // 2].tensor("wide")[:, 0].tolist() == [4, 5]


def rows_from(first: int) -> DataProto:
    return DataProto.from_dict({"i": torch.arange(first, first + ROWS)})


def is_spilled(data: DataProto) -> bool:
    column: Any = data._held()["wide"]
    places = get_object_locations([piece.ref for piece in column.pieces])
    return all(place["did_spill"] for place in places.values())


def node_of(cluster: Cluster, node_id: str) -> Any:
    nodes: Callable[[], list[Any]] = cluster.list_all_nodes  # Ray leaves this one untyped
    return next(node for node in nodes() if node.node_id == node_id)


def remove(cluster: Cluster, node_id: str) -> None:
    """Take a node away, and wait until the cluster knows."""
    cluster.remove_node(node_of(cluster, node_id))
    assert wait_for(lambda: node_id not in {node.node_id for node in alive_nodes()})
