"""A worker runs one call at a time, in the order in which they were sent."""

from __future__ import annotations

import asyncio
import random
from threading import Thread
from typing import Any

import pytest
from verl_protocol import DataProto

from verl_dispatch.conformance.backend import Backend, GroupCache
from verl_dispatch.conformance.batches import batch, ids_of
from verl_dispatch.methods.decorator import register
from verl_dispatch.modes import Broadcast, Dispatch
from verl_dispatch.workers.worker import Worker

NUM_CALLS = 200
NUM_ROWS = 4


class OrderWorker(Worker):
    """Notes every call with how many calls are running then."""

    def __init__(self) -> None:
        super().__init__()
        self.running = 0
        self.log: list[tuple[int, int]] = []

    def _enter(self, number: int) -> None:
        self.running += 1
        self.log.append((number, self.running))

    async def _linger(self, number: int) -> None:
        # A loop that may run other calls meanwhile gets the chance to.
        await asyncio.sleep(0.002 if number % 8 == 0 else 0)
        self.running -= 1

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def plain(self, number: int) -> int:
        self._enter(number)
        self.running -= 1
        return number

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def asynchronous(self, number: int) -> int:
        self._enter(number)
        await self._linger(number)
        return number

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def pass_on(self, data: DataProto, number: int) -> DataProto:
        self._enter(number)
        self.running -= 1
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def pass_on_async(self, data: DataProto, number: int) -> DataProto:
        self._enter(number)
        await self._linger(number)
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_log(self) -> list[tuple[int, int]]:
        log, self.log = self.log, []
        return log


class TestOrder:
    """Plain and async methods in turn, not waited for, on a group of 2."""

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        group: Any = groups.get(OrderWorker, 2)
        group.take_log()
        return group

    @pytest.mark.parametrize("verb", ["not blocking", "submit"])
    def test_calls_run_one_by_one_in_the_order_sent(self, backend: Backend, group: Any, verb: str) -> None:
        names = random.Random(verb).choices(["plain", "asynchronous"], k=NUM_CALLS)
        if verb == "submit":
            sent = [group.bind(name).submit(number) for number, name in enumerate(names)]
            answers = [future.result() for future in sent]
        else:
            sent = [group.bind(name).options(blocking=False)(number) for number, name in enumerate(names)]
            answers = [backend.resolved(references) for references in sent]
        assert answers == [[number, number] for number in range(NUM_CALLS)]
        assert group.take_log() == [one_by_one(NUM_CALLS)] * 2

    def test_a_chain_of_futures_keeps_its_place_among_other_calls(self, group: Any) -> None:
        names = random.Random(NUM_CALLS).choices(
            ["plain", "asynchronous", "pass_on", "pass_on_async"], k=NUM_CALLS
        )
        made: Any = batch(NUM_ROWS)
        for number, name in enumerate(names):
            method = group.bind(name).options(blocking=False)
            if name.startswith("pass_on"):
                made = method(made, Broadcast(number))
            else:
                method(number)
        assert group.take_log() == [one_by_one(NUM_CALLS)] * 2
        assert ids_of(made.get()) == list(range(NUM_ROWS))

    def test_calls_of_several_threads_come_in_one_order_to_all_ranks(self, group: Any) -> None:
        def send(thread: int) -> None:
            for number in range(thread * 100, thread * 100 + 25):
                group.plain.submit(number)

        threads = [Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        first, second = group.take_log()
        assert first == second
        assert sorted(first) == [(thread * 100 + number, 1) for thread in range(4) for number in range(25)]

    def test_a_blocking_call_comes_after_all_that_were_sent(self, group: Any) -> None:
        for number in range(20):
            group.asynchronous.options(blocking=False)(8 * number)
        assert group.plain(1) == [1, 1]
        assert group.take_log() == [[*((8 * number, 1) for number in range(20)), (1, 1)]] * 2


def one_by_one(num_calls: int) -> list[tuple[int, int]]:
    """The log of calls that ran in order, none beside another."""
    return [(number, 1) for number in range(num_calls)]
