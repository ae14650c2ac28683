"""Who may drive groups: threads that share a pool, workers of another group, actors, tasks, all at once."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import ray
from verl_dispatch import Dispatch, Worker, WorkerGroupError, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120), pytest.mark.usefixtures("running_ray")]


class Adder(Worker):
    """Adds its step."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, number: int) -> tuple[str, int]:
        return os.environ["RANK"], number + self.step

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def add_to_each(self, answer: tuple[str, int]) -> tuple[str, int]:
        return self.add(answer[1])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, word: str) -> None:
        raise KeyError(word)


def small_pool(workers: int = 2, **options: Any) -> RayResourcePool:
    return RayResourcePool([workers], use_gpu=False, cpus_per_worker=0.1, **options)


class Owner:
    """Whoever has a group of its own: two workers that add ten times its number."""

    def __init__(self, number: int) -> None:
        self.pool = small_pool()
        self.group = RayWorkerGroup(self.pool, RayClassWithInitArgs(Adder, 10 * number))

    def ask(self, number: int) -> list[tuple[str, int]]:
        return self.group.add(number)

    def ask_all(self, numbers: list[int]) -> Any:
        futures = [self.group.add.submit(number) for number in numbers]
        return [future.result() for future in futures]

    def lend(self) -> RayWorkerGroup[Adder]:
        return self.group

    def end(self) -> None:
        self.group.shutdown()
        self.pool.shutdown()


class AsyncOwner(Owner):
    """One whose calls are awaited, but for the first, which blocks while the loop runs."""

    async def ask_all(self, numbers: list[int]) -> Any:
        futures = [self.group.add.submit(number) for number in numbers[1:]]
        return [self.ask(numbers[0]), *[await future for future in futures]]


class Boss(Worker):
    """A worker that has a group of its own, and frees it when it ends."""

    def __init__(self) -> None:
        super().__init__()
        self.own = AsyncOwner(1 + self.rank)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ask(self, number: int) -> Any:
        return os.environ["RANK"], self.own.ask(number)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def ask_all(self, numbers: list[int]) -> Any:
        return await self.own.ask_all(numbers)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ask_one_that_fails(self, word: str) -> None:
        self.own.group.fail(word)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ask_other(self, other: RayWorkerGroup[Adder], number: int) -> Any:
        return other.add(number)

    def close(self) -> None:
        self.own.end()


def both(number: int) -> list[tuple[str, int]]:
    """What two ranks answer."""
    return [("0", number), ("1", number)]


@pytest.fixture(scope="module")
def pool(running_ray: None) -> Iterator[RayResourcePool]:
    with small_pool(max_colocate_count=3) as made:
        yield made


@pytest.fixture(scope="module")
def pair(pool: RayResourcePool) -> Iterator[list[RayWorkerGroup[Adder]]]:
    """Two groups on one pool."""
    groups = [RayWorkerGroup(pool, RayClassWithInitArgs(Adder, step), wait=False) for step in (1, 2)]
    yield groups
    for group in groups:
        group.shutdown()


def test_threads_share_two_groups_of_one_pool(pair: list[RayWorkerGroup[Adder]]) -> None:
    one, two = pair
    together = threading.Barrier(4)

    def there_and_back(first: int) -> None:
        together.wait()
        for number in range(first, first + 10):
            later = one.add.options(blocking=False)(number)
            assert one.add_to_each(two.add_to_each.options(blocking=False)(later)) == both(number + 4)

    def failing(first: int) -> None:
        together.wait()
        for number in range(first, first + 10):
            with pytest.raises(WorkerGroupError, match=f"word {number}"):
                two.fail(f"word {number}")

    async def awaiting() -> None:
        together.wait()
        answers = [one.add.submit(number) for number in range(20)]
        assert [await answer for answer in answers] == [both(number + 1) for number in range(20)]

    with ThreadPoolExecutor() as threads:
        works = [threads.submit(there_and_back, 100), threads.submit(there_and_back, 200)]
        works.append(threads.submit(failing, 300))
        asyncio.run(awaiting())
        for work in works:
            work.result(60)


def test_workers_drive_groups_of_their_own(
    pair: list[RayWorkerGroup[Adder]], pool: RayResourcePool, free_resources: Any, wait_until_free: Any
) -> None:
    before = free_resources()
    with RayWorkerGroup(pool, RayClassWithInitArgs(Boss)) as bosses:
        assert bosses.ask(5) == [("0", both(15)), ("1", both(25))]
        assert bosses.ask_all([1, 2, 3]) == [[both(n + 10 * b) for n in (1, 2, 3)] for b in (1, 2)]
        with pytest.raises(WorkerGroupError, match=r"'ask_one_that_fails'[\s\S]*'fail'[\s\S]*oh no"):
            bosses.ask_one_that_fails("oh no")
        # All of them use one that is not theirs while its owner does.
        asked = bosses.ask_other.submit(pair[0], 7)
        assert pair[0].add(8) == both(9)
        assert asked.result() == [both(8)] * 2
    assert wait_until_free(expected=before) == before


@pytest.mark.parametrize("cls", [Owner, AsyncOwner])
def test_an_actor_drives_a_group_and_lends_it(
    cls: type[Owner], free_resources: Any, wait_until_free: Any
) -> None:
    before = free_resources()
    actor: Any = ray.remote(num_cpus=0)(cls).remote(1)
    asked = actor.ask_all.remote([1, 2, 3])
    lent = ray.get(actor.lend.remote(), timeout=60)
    assert lent.add(4) == both(14)
    assert ray.get(asked, timeout=60) == [both(11), both(12), both(13)]
    ray.get(actor.end.remote(), timeout=60)
    with pytest.raises(WorkerGroupError, match="'add'"):
        lent.add(5)
    assert wait_until_free(expected=before) == before


def test_tasks_drive_groups_of_their_own_and_borrow_one(
    pair: list[RayWorkerGroup[Adder]], free_resources: Any, wait_until_free: Any
) -> None:
    before = free_resources()

    @ray.remote(num_cpus=0)
    def task(number: int, other: RayWorkerGroup[Adder]) -> Any:
        owner = Owner(number)
        try:
            return owner.ask(1), other.add(number)
        finally:
            owner.end()

    answers: Callable[..., Any] = ray.get
    found = answers([task.remote(number, pair[1]) for number in (1, 2)], timeout=60)
    assert found == [(both(11), both(3)), (both(21), both(4))]
    assert wait_until_free(expected=before) == before
