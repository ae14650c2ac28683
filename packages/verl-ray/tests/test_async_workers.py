"""Async methods: one call at a time in the order sent, unless the user asks for more."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator

import pytest
import ray
import torch
from verl_dispatch import CallTimeout, Dispatch, Worker, WorkerGroupError, register
from verl_dispatch.errors import MixedOrderWarning
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
    with pytest.warns(MixedOrderWarning, match="slow"):
        started = RayWorkerGroup(pool, template)
    with started as interleaved:
        interleaved.slow(600.0)
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
        group.slow.options(timeout_s=2.0, blocking=True)(600)
    assert group.step.options(timeout_s=60)() == [["s", "step"]] * 2


class Server(Worker):
    """A worker whose event loop serves a background task, as a rollout engine does."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[int] = []
        self.ticks = 0
        self.constructed_in = threading.current_thread()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def start(self) -> None:
        self.ticking = asyncio.create_task(self._tick())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(0.01)
            self.ticks += 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ticks_so_far(self) -> int:
        return self.ticks

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    async def note_async(self, number: int) -> int:
        self.seen.append(number)
        return number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def note(self, number: int) -> int:
        self.seen.append(number)
        return number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen_so_far(self) -> list[int]:
        return self.seen

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def in_the_thread_of_the_constructor(self) -> bool:
        return threading.current_thread() is self.constructed_in

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def refuses(self) -> None:
        raise LookupError("no such prompt")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def puts_and_gets(self) -> tuple[int, int]:
        reference = ray.put(3)
        return ray.get(reference), await reference

    @staticmethod
    async def doubled(number: int) -> int:
        return 2 * number

    @classmethod
    async def named(cls) -> str:
        return cls.__name__

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def calls_its_own(self) -> tuple[int, str, int]:
        return await self.doubled(4), await self.named(), await self.note_async(5)


@pytest.fixture(scope="module")
def server(pool: RayResourcePool) -> Iterator[RayWorkerGroup[Server]]:
    with RayWorkerGroup(pool, RayClassWithInitArgs(Server)) as started:
        yield started


def test_sync_and_async_calls_never_overtake_each_other(server: RayWorkerGroup[Server]) -> None:
    for number in range(300):
        (server.note_async if number % 3 else server.note)(number)
    assert server.seen_so_far() == [list(range(300))] * 2


def test_background_tasks_go_on_between_calls(server: RayWorkerGroup[Server]) -> None:
    server.start()
    deadline = time.monotonic() + 30
    while min(server.ticks_so_far()) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert min(server.ticks_so_far()) >= 3


def test_sync_methods_run_where_the_constructor_ran(server: RayWorkerGroup[Server]) -> None:
    assert server.in_the_thread_of_the_constructor() == [True, True]


def test_an_async_method_fails_as_itself(server: RayWorkerGroup[Server]) -> None:
    with pytest.raises(WorkerGroupError) as caught:
        server.refuses()
    assert isinstance(caught.value.errors[0].cause, LookupError)
    assert "no such prompt" in str(caught.value)


def test_ray_works_inside_async_methods(server: RayWorkerGroup[Server]) -> None:
    assert server.puts_and_gets() == [(3, 3)] * 2


def test_async_methods_call_each_other(server: RayWorkerGroup[Server]) -> None:
    assert server.calls_its_own() == [(8, "Server", 5)] * 2


def test_an_actor_handle_gives_the_value_of_an_async_method(server: RayWorkerGroup[Server]) -> None:
    assert ray.get(server.workers[0].note_async.remote(7), timeout=30) == 7
