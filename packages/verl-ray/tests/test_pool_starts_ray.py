"""A pool without Ray starts it; pools and groups of a cluster that was left say so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import ray
import torch
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, WorkerGroupError
from verl_ray.errors import PoolClosed

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


class Idle:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self) -> int:
        return 1

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def same(self, data: DataProto) -> DataProto:
        return data


@pytest.mark.usefixtures("no_ray")
def test_the_first_use_starts_ray_and_a_later_cluster_is_not_mistaken_for_it() -> None:
    pool = RayResourcePool([1], use_gpu=False)
    assert not ray.is_initialized()
    assert len(pool.slots()) == 1
    assert ray.is_initialized()
    group = RayWorkerGroup(pool, RayClassWithInitArgs(Idle))
    watch = group.watch(every_s=0.1)
    assert group.ping() == [1]
    sent, made = group.ping.submit(), group.same(DataProto.from_dict(tensors={"i": torch.arange(1)}))
    ray.shutdown()

    async def wait() -> object:
        return await sent

    assert isinstance(sent.done(), bool)
    reads: list[Callable[[], object]] = [sent.result, lambda: asyncio.run(wait())]
    reads += [made.get, made.row_count, lambda: asyncio.run(made.aget())]
    for refused in (group.ping, group.restart, *reads):
        with pytest.raises(WorkerGroupError, match="this process has left the workers' Ray cluster"):
            refused()
        assert not ray.is_initialized()
    group.shutdown()
    watch.thread.join(10)
    assert not watch.thread.is_alive()
    with pytest.raises(PoolClosed, match="this process has left the workers' Ray cluster; make a new one"):
        pool.slots()
    assert (pool.store, pool.pgs, repr(pool)) == ([1], None, "RayResourcePool([1], CPU, 'verl_ray')")
    pool.shutdown()
    assert not ray.is_initialized()
