"""One driver that starts groups all day: every one of them leaves the cluster and the driver as they were."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group_table
from verl_dispatch import Dispatch, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl_ray.pools.cluster import actor_state
from verl_ray.pools.shares import LEDGER

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

GROUPS, AHEAD, WARM_UP = 20, 2, 5


class Visitor:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> int:
        return number + 1


def ranks_of(number: int) -> int:
    """Most groups have one worker, some two."""
    return 1 if number % 10 else 2


def started(number: int) -> tuple[RayResourcePool, RayWorkerGroup[Visitor]]:
    """The group of one turn; its workers start while others are used."""
    pool = RayResourcePool(
        [ranks_of(number)], use_gpu=number % 3 == 0, max_colocate_count=1, cpus_per_worker=0.1
    )
    return pool, RayWorkerGroup(pool, RayClassWithInitArgs(Visitor), name_prefix="visitor", wait=False)


def resident_mib() -> float:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1024**2


@pytest.fixture
def small_cluster(no_ray: None) -> None:
    """A cluster that keeps few processes ready."""
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)


def test_twenty_groups_in_turn_leave_nothing(
    small_cluster: None,
    free_resources: Callable[[], dict[str, float]],
    wait_until_free: Callable[..., dict[str, float]],
) -> None:
    actors: list[str] = []
    memory: list[float] = []
    before = free_resources()
    coming = deque(started(number) for number in range(AHEAD))
    for number in range(GROUPS):
        if number + AHEAD < GROUPS:
            coming.append(started(number + AHEAD))
        pool, group = coming.popleft()
        assert group.add(number) == [number + 1] * ranks_of(number)
        actors += [handle._actor_id.hex() for handle in group.workers]
        # Those of most turns are ended; of some, the driver just loses sight.
        if number % 4:
            group.shutdown()
            pool.shutdown()
        del group, pool
        gc.collect()
        memory.append(resident_mib())
    assert wait_until_free(expected=before) == before
    assert {entry["state"] for entry in placement_group_table().values()} <= {"REMOVED"}
    assert {actor_state(actor) for actor in actors} <= {"DEAD", "unknown"}
    assert ray.util.list_named_actors(all_namespaces=True) == []
    assert list(LEDGER._shares) == []
    assert memory[-1] - memory[WARM_UP] < 30
