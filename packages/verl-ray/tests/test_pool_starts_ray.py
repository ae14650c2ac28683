"""A pool without Ray starts it; pools and groups of a cluster that was left say so."""

from __future__ import annotations

import pytest
import ray
from verl_dispatch import Dispatch, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, WorkerGroupError
from verl_ray.errors import PoolClosed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Idle:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self) -> int:
        return 1


@pytest.mark.usefixtures("no_ray")
def test_the_first_use_starts_ray_and_a_later_cluster_is_not_mistaken_for_it() -> None:
    pool = RayResourcePool([1], use_gpu=False)
    assert not ray.is_initialized()
    assert len(pool.slots()) == 1
    assert ray.is_initialized()
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Idle))
    watch = group.watch(every_s=0.1)
    assert group.ping() == [1]
    ray.shutdown()
    for refused in (group.ping, group.restart):
        with pytest.raises(WorkerGroupError, match="this process has left the workers' Ray cluster"):
            refused()
    group.shutdown()
    watch.thread.join(10)
    assert not watch.thread.is_alive()
    with pytest.raises(PoolClosed, match="a Ray cluster that this process has left; make a new one"):
        pool.slots()
    assert (pool.store, pool.pgs, repr(pool)) == ([1], None, "RayResourcePool([1], CPU, 'verl_ray')")
    pool.shutdown()
    assert not ray.is_initialized()
