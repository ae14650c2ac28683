"""Async methods: one call at a time in the order sent, unless the user asks for more."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest
import torch
from verl_dispatch import CallTimeout, Dispatch, Worker, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

pytestmark = pytest.mark.timeout(120)


class Mixed(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def slow(self, seconds: float = 0.5) -> None:
        self.log.append("s")
        await asyncio.sleep(seconds)
        self.log.append("e")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self) -> list[str]:
        self.log.append("step")
        log, self.log = self.log, []
        return log

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    async def make(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def use(self, data: DataProto) -> DataProto:
        return data


@pytest.fixture(scope="module")
def pool(running_ray: None) -> Iterator[RayResourcePool]:
    with RayResourcePool([2], use_gpu=False, cpus_per_worker=0.1) as places:
        yield places


@pytest.fixture(scope="module")
def group(pool: RayResourcePool) -> Iterator[RayWorkerGroup[Mixed]]:
    with RayWorkerGroup(pool, RayClassWithInitArgs(Mixed)) as started:
        yield started


def test_calls_run_one_at_a_time_in_the_order_sent(group: RayWorkerGroup[Mixed]) -> None:
    group.slow()
    assert group.step() == [["s", "e", "step"]] * 2


def test_more_at_a_time_and_in_no_order_on_request(pool: RayResourcePool) -> None:
    template = RayClassWithInitArgs(Mixed)
    template.update_options({"max_concurrency": 4})
    with RayWorkerGroup(pool, template) as interleaved:
        interleaved.slow(5.0)
        assert all("e" not in log for log in interleaved.step())


def test_futures_are_awaited_by_async_methods(group: RayWorkerGroup[Mixed]) -> None:
    data = DataProto.from_dict(tensors={"i": torch.arange(4)})
    assert group.use(group.make(data)).tensor("i").tolist() == [0, 1, 2, 3]


def test_a_call_can_be_awaited(group: RayWorkerGroup[Mixed]) -> None:
    async def both() -> tuple[object, object]:
        data = DataProto.from_dict(tensors={"i": torch.arange(2)})
        future = group.make(data)
        return await group.step.submit(), (await future).tensor("i").tolist()

    assert asyncio.run(both()) == ([["step"]] * 2, [0, 1])


def test_a_deadline_ends_a_running_async_method(group: RayWorkerGroup[Mixed]) -> None:
    group.step()
    with pytest.raises(CallTimeout):
        group.slow.options(timeout_s=0.3, blocking=True)(60)
    begin = time.monotonic()
    assert group.step() == [["s", "step"]] * 2
    assert time.monotonic() - begin < 20
