"""A pool without Ray starts it; pools and groups of a cluster that was left say so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import ray
import torch
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, WorkerGroupError
from verl_ray.errors import PoolClosed, StartTimeout

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


@pytest.mark.usefixtures("no_ray")
def test_a_start_through_uv_is_warned_of_at_once_and_once_unless_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # As `uv run --no-sync` does in a copy of the working directory, where Ray is not installed.
    uv = tmp_path / "uv"
    uv.write_text("#!/bin/sh\nexit 1\n")
    uv.chmod(0o755)
    program = f"{uv} run --no-sync python"
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, runtime_env={"py_executable": program})
    told = rf"Ray starts each worker by `{re.escape(program)}` .*, set RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 before"

    def start() -> list[str]:
        with RayResourcePool([1], use_gpu=False) as pool, pytest.raises(StartTimeout, match=told):
            RayWorkerGroup(pool, RayClassWithInitArgs(Idle), ray_wait_register_center_timeout=1)
        return [record.message for record in caplog.records if re.search(told, record.message)]

    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "1")
    assert start() == []
    monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV")
    assert len(start()) == 1
    assert len(start()) == 1
