"""One driver that starts groups all day: every one of them leaves the cluster and the driver as they were."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import ray
from ray.util.placement_group import placement_group_table
from verl_dispatch import Dispatch, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl_ray.cluster import actor_state
from verl_ray.shares import LEDGER

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

GROUPS, WARM_UP = 20, 5


class Visitor:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> int:
        return number + 1


def resident_mib() -> float:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1024**2


@pytest.fixture
def small_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cluster that keeps few processes ready, and none with torch: every group would use one up."""
    ray.shutdown()
    monkeypatch.delenv("RAY_preload_python_modules", raising=False)
    ray.init(num_cpus=2, num_gpus=2, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


def test_twenty_groups_in_turn_leave_nothing(
    small_cluster: None,
    free_resources: Callable[[], dict[str, float]],
    wait_until_free: Callable[..., dict[str, float]],
) -> None:
    actors: list[str] = []
    memory: list[float] = []
    before = free_resources()
    template = RayClassWithInitArgs(Visitor)
    for number in range(GROUPS):
        # Each worker costs the import of torch, so few groups have two.
        ranks = 1 if number % 10 else 2
        pool = RayResourcePool([ranks], use_gpu=number % 3 == 0, max_colocate_count=1)
        group = RayWorkerGroup(pool, template, name_prefix="visitor")
        assert group.add(number) == [number + 1] * ranks
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
    assert LEDGER._holdings == {}
    assert memory[-1] - memory[WARM_UP] < 30
