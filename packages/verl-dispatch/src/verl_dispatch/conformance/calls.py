"""Calls under way: waited for, awaited, streamed, given up; run one at a time in the order sent."""

from __future__ import annotations

import asyncio
import gc
import math
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, NoReturn

import pytest

from verl_dispatch.conformance.backend import (
    Backend,
    GroupCache,
    SharedGroups,
    awaited,
    batch,
    failure_of,
    later,
    said,
    within,
)
from verl_dispatch.conformance.workers import OrderWorker, PlainWorker, ids_of
from verl_dispatch.errors import CallTimeout, WorkerGroupError
from verl_dispatch.groups.call import Call
from verl_dispatch.modes import Broadcast
from verl_dispatch.planning.options import DEFAULT_OPTIONS


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test, run by an event loop of its own."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


def started(future: Any) -> asyncio.Task[Any]:
    """A task that awaits the future."""
    return asyncio.ensure_future(awaited(future))


class TestCalls(SharedGroups):
    """Calls on a group of 4, and on one of 1."""

    # --- what a backend's _send gives back ------------------------------------------------------------------

    def test_what_was_sent_is_waited_for_streamed_and_done(self, backend: Backend, group: Any) -> None:
        sent = group._send(group.one_to_all.plan(1), DEFAULT_OPTIONS)
        assert isinstance(sent, Call)
        assert sent.wait() == sent.wait(60) == said(1)
        assert sorted(sent.stream()) == list(enumerate(said(1)))
        assert sent.done()
        handed_on = group._send(group.one_to_all.plan(1), DEFAULT_OPTIONS.changed(blocking=False))
        assert backend.resolved(handed_on.futures()) == said(1)

    def test_only_ranks_that_answer_are_read(self, group: Any) -> None:
        sent = group._send(group.over_pairs.plan(batch(4)), DEFAULT_OPTIONS)
        assert len(sent.wait()) == 2
        assert [rank for rank, _ in sorted(sent.stream())] == [0, 1]

    def test_the_time_of_each_rank_is_kept(self, group: Any) -> None:
        sent = group._send(group.sleep.plan(0.01), DEFAULT_OPTIONS)
        sent.wait()
        assert sorted(sent.seconds) == [0, 1, 2, 3]
        assert all(spent > 0.005 for spent in sent.seconds.values())

    # --- async programs -------------------------------------------------------------------------------------

    @in_a_loop
    async def test_calls_are_awaited_and_streamed(self, group: Any) -> None:
        assert ids_of(await group.rows.submit(batch(4))) == [0, 1, 2, 3]
        assert ids_of(await later(group.rows)(batch(4))) == [0, 1, 2, 3]
        streamed = {rank: answer async for rank, answer in group.one_to_all.stream("x")}
        assert streamed == dict(enumerate(said("x")))

    @in_a_loop
    async def test_blocking_calls_work_while_an_event_loop_runs(self, group: Any) -> None:
        made = later(group.rows)(batch(4))
        with group.trace() as trace:
            assert ids_of(group.rows(batch(4))) == [0, 1, 2, 3]
            assert group.one_to_all_async(1) == said(1)
        assert sorted(group.one_to_all.stream("x")) == list(enumerate(said("x")))
        with pytest.raises(WorkerGroupError, match="boom"):
            group.raise_on(1)
        assert len(trace.calls) == 2
        assert ids_of(made.get()) == ids_of(group.rows.submit(batch(4)).result()) == [0, 1, 2, 3]

    @in_a_loop
    async def test_batches_that_are_made_of_others_are_awaited(self, group: Any, single: Any) -> None:
        made = later(single.rows)(later(group.rows)(batch(8)))
        assert [ids_of(await piece) for piece in made.chunk(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert await made.arow_count() == 8

    @in_a_loop
    async def test_failures_are_raised_where_they_are_awaited(self, group: Any) -> None:
        with pytest.raises(WorkerGroupError, match="boom"):
            await group.raise_on.submit(1)
        with pytest.raises(WorkerGroupError, match="'i'"):
            await later(group.rows)(batch(4).select(["x"]))
        with pytest.raises(WorkerGroupError, match="boom"):
            async for _ in group.raise_on.stream(2):
                pass

    @in_a_loop
    async def test_many_awaits_hold_no_thread_and_stand_behind_nobody(
        self, backend: Backend, group: Any, single: Any
    ) -> None:
        long_s = 0.5 if backend.ranks_meet else 0.01
        threads = set(threading.enumerate())
        with within(3 * long_s + 10):
            long = [started(group.sleep.submit(long_s)) for _ in range(4)]
            short = [started(single.sleep.submit(0.002 * (n % 2))) for n in range(196)]
            given_up = [long.pop(), *(short.pop() for _ in range(40))]
            await asyncio.sleep(0)
            assert set(threading.enumerate()) <= threads
            for task in given_up:
                task.cancel()
            await asyncio.wait(given_up, timeout=5)
            if backend.ranks_meet:
                assert all(task.cancelled() for task in given_up)
            assert await asyncio.gather(*short) == [[0]] * 156
            if backend.ranks_meet:
                assert not long[-1].done()
            assert set(threading.enumerate()) <= threads
            assert await asyncio.gather(*long) == [[0, 1, 2, 3]] * 3

    def test_a_cancelled_await_lets_go_and_the_call_goes_on(self, group: Any, slow: None) -> None:
        future = group.sleep.submit(1.5)
        with within(1.2), pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(awaited(future), 0.1))
        assert future.result(60) == [0, 1, 2, 3]

    def test_ctrl_c_ends_an_await_at_once(self, group: Any, slow: None) -> None:
        future = group.sleep.submit(1.5)
        # Python's own handler, also where the tests run in the background and SIGINT is ignored.
        interrupted = interrupted_after(0.2, signal.SIGINT, signal.default_int_handler)
        with within(1.2), interrupted, pytest.raises(KeyboardInterrupt):
            asyncio.run(awaited(future))
        assert future.result(60) == [0, 1, 2, 3]

    @in_a_loop
    async def test_groups_end_with_an_async_block(self, backend: Backend) -> None:
        group: Any = backend.make_group(PlainWorker, 1)
        async with group as entered:
            assert await entered.get.submit() == ["plain"]
        assert "shut down" in str(failure_of(group.get))

    # --- time limits ----------------------------------------------------------------------------------------

    @pytest.mark.parametrize("given", [-1, math.nan, "x", True])
    def test_a_time_limit_that_is_none_is_named(self, group: Any, given: Any) -> None:
        future, made = group.one_to_all.submit(1), later(group.rows)(batch(4))
        for wait in (future.result, made.get, made.row_count, lambda limit: asyncio.run(made.aget(limit))):
            with pytest.raises((TypeError, ValueError), match=r"^timeout must be a number of seconds"):
                wait(given)
        with pytest.raises((TypeError, ValueError), match=r"timeout_s.* a number of seconds above 0"):
            group.one_to_all.options(timeout_s=given)
        assert future.result() == said(1)

    @pytest.mark.parametrize("limit", [math.inf, 1e300])
    def test_no_end_is_a_time_limit(self, group: Any, limit: float) -> None:
        unbounded = group.one_to_all.options(timeout_s=limit)
        assert unbounded(1) == unbounded.submit(1).result(limit) == said(1)
        assert sorted(unbounded.stream(1)) == list(enumerate(said(1)))
        assert ids_of(later(group.rows)(batch(4)).get(limit)) == [0, 1, 2, 3]

    def test_the_clock_of_a_stream_runs_from_the_call(self, group: Any, slow: None) -> None:
        answers = group.sleep.options(timeout_s=0.3).stream(1)
        time.sleep(0.4)
        with within(0.5), pytest.raises(CallTimeout, match=r"'sleep'.* within 0\.3 s from ranks 0, 1, 2, 3"):
            next(answers)

    def test_a_batch_that_is_late_is_named(self, group: Any, slow: None) -> None:
        group.sleep.submit(0.6)
        made = later(group.rows)(batch(4))
        for wait in (made.get, lambda limit: asyncio.run(made.aget(limit))):
            with pytest.raises(CallTimeout, match=r"'rows'.* within 0\.1 s from rank"):
                wait(0.1)
        assert ids_of(made.get(60)) == [0, 1, 2, 3]

    def test_a_short_wait_is_short_while_others_wait_longer(self, group: Any, slow: None) -> None:
        future = group.sleep.submit(1)
        with ThreadPoolExecutor() as threads:
            other = threads.submit(future.result)
            with within(0.8), pytest.raises(CallTimeout):
                future.result(0.1)
            assert other.result(60) == [0, 1, 2, 3]

    # --- what is no answer ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("verb", ["submit", "stream", "batch"])
    def test_an_exception_of_the_programs_own_comes_through(self, group: Any, slow: None, verb: str) -> None:
        group.sleep.submit(1)
        future, answers = group.one_to_all.submit(1), group.one_to_all.stream(1)
        made = later(group.rows)(batch(4))
        read: Callable[[], Any]
        read, expected = {
            "submit": (future.result, said(1)),
            "stream": (lambda: sorted(answers), list(enumerate(said(1)))),
            "batch": (lambda: ids_of(made.get()), [0, 1, 2, 3]),
        }[verb]
        with interrupted_after(0.2), pytest.raises(InterruptedError):
            read()
        assert read() == expected

    def test_a_failure_that_nobody_reads_is_told(self, group: Any, caplog: pytest.LogCaptureFixture) -> None:
        future = group.raise_on.submit(2)
        _give_up(future)
        del future
        group.one_to_all(1)
        deadline = time.monotonic() + 10
        while "nobody read it" not in caplog.text and time.monotonic() < deadline:
            gc.collect()
            time.sleep(0.01)
        assert "method 'raise_on' failed on rank 2, and nobody read it" in caplog.text
        assert "boom" in caplog.text


@in_a_loop
async def _give_up(future: Any) -> None:
    waiting = started(future)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    if not waiting.cancelled():
        pytest.skip("a call is over when it has been sent")


def _interrupt(*_: object) -> NoReturn:
    raise InterruptedError


@contextmanager
def interrupted_after(
    seconds: float, number: int = signal.SIGUSR1, handler: Any = _interrupt
) -> Iterator[None]:
    """A signal whose handler raises, in the main thread."""
    before = signal.signal(number, handler)
    timer = threading.Timer(seconds, os.kill, [os.getpid(), number])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        signal.signal(number, before)


# --- A worker runs one call at a time, in the order in which they were sent ---------------------------------


NUM_CALLS = 200
NUM_ROWS = 4
IN_ORDER = [(number, 1) for number in range(NUM_CALLS)]
"""The log of calls that ran in order, none beside another."""


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
        methods = [group.bind(name) for name in names]
        if verb == "submit":
            sent = [method.submit(number, number) for number, method in enumerate(methods)]
            answers = [future.result() for future in sent]
        else:
            sent = [later(method)(number, number) for number, method in enumerate(methods)]
            answers = [backend.resolved(references) for references in sent]
        assert answers == [[number, number] for number in range(NUM_CALLS)]
        assert group.take_log() == [IN_ORDER] * 2

    def test_a_chain_of_futures_keeps_its_place_among_other_calls(self, group: Any) -> None:
        made: Any = batch(NUM_ROWS)
        names = ["plain", "asynchronous", "pass_on", "pass_on_async"]
        for number, name in enumerate(random.Random(NUM_CALLS).choices(names, k=NUM_CALLS)):
            method = later(group.bind(name))
            if name.startswith("pass_on"):
                made = method(made, Broadcast(number))
            else:
                method(number, number)
        assert group.take_log() == [IN_ORDER] * 2
        assert ids_of(made.get()) == list(range(NUM_ROWS))

    def test_calls_of_several_threads_come_one_by_one_in_one_order_to_all_ranks(self, group: Any) -> None:
        def send(thread: int) -> None:
            for number in range(thread * 100, thread * 100 + 25):
                (group.plain if number % 3 else group.asynchronous).submit(number, number)

        with ThreadPoolExecutor(4) as threads:
            list(threads.map(send, range(4)))
        first, second = group.take_log()
        assert first == second
        assert sorted(first) == [(thread * 100 + number, 1) for thread in range(4) for number in range(25)]

    def test_a_blocking_call_comes_after_all_that_were_sent(self, group: Any) -> None:
        for number in range(20):
            later(group.asynchronous)(None, 8 * number)
        assert group.plain(1, 1) == [1, 1]
        assert group.take_log() == [[*((8 * number, 1) for number in range(20)), (1, 1)]] * 2


class TestPrograms(SharedGroups):
    """Calls of all kinds in random order: each answer is that of workers who did one call after the other."""

    @pytest.mark.parametrize("seed", range(3))
    def test_a_random_program_answers_as_its_calls_in_turn_would(
        self, backend: Backend, group: Any, seed: int
    ) -> None:
        choice = random.Random(seed)
        kept: list[Any] = group.keep(None)
        unread: list[tuple[Callable[[], Any], Any]] = []
        for step in range(30):
            match choice.choice(["keep", "keep later", "get", "rows", "chain", "stream", "submit"]):
                case "keep":
                    assert group.keep(step) == (kept := [step] * 4)
                case "keep later":
                    kept = [step] * 4
                    unread.append((partial(backend.resolved, later(group.keep)(step)), kept))
                case "get":
                    assert group.get_kept() == kept
                case "rows":
                    data = batch(choice.randint(1, 9), auto_padding=True)
                    kept = [ids_of(call.args[0]) for call in group.rows.plan(data)]
                    assert ids_of(group.rows(data)) == ids_of(data)
                case "chain":
                    data = batch(4 * choice.randint(1, 3))
                    kept = [ids_of(call.args[0]) for call in group.rows.plan(data)]
                    made = later(group.twice)(later(group.rows)(data))
                    twice = sorted([*ids_of(data), *ids_of(data)])
                    unread.append((lambda made=made: ids_of(backend.resolved(made)), twice))  # type: ignore[misc]
                case "stream":
                    assert sorted(group.get_kept.stream()) == list(enumerate(kept))
                case _:
                    unread.append((group.get_kept.submit().result, kept))
        for look, expected in choice.sample(unread, len(unread)):
            assert look() == expected

    def test_threads_and_an_event_loop_use_one_group_at_once(
        self, backend: Backend, group: Any, single: Any
    ) -> None:
        together, turns = threading.Barrier(5), range(8)

        def call(turn: int) -> None:
            data = batch(5, first=100 * turn, auto_padding=True)
            assert ids_of(group.rows(data)) == ids_of(data)

        def hand_on(turn: int) -> None:
            data = batch(4, first=1000 * turn)
            made = later(single.rows)(later(group.rows)(data))
            assert ids_of(backend.resolved(made)) == ids_of(data)

        def stream(turn: int) -> None:
            answers = sorted(group.one_to_all.stream(turn, "streamed"))
            assert answers == list(enumerate(said(turn, "streamed")))

        def fail(turn: int) -> None:
            with pytest.raises(WorkerGroupError, match=f"on rank {turn % 4}[\\s\\S]*turn {turn}"):
                group.raise_on(turn % 4, f"turn {turn}")

        async def await_all() -> None:
            together.wait(60)
            futures = [group.one_to_all.submit(turn) for turn in turns]
            assert [await each for each in futures] == list(map(said, turns))

        def at_once(work: Callable[[int], None]) -> None:
            together.wait(60)
            list(map(work, turns))

        with ThreadPoolExecutor() as threads:
            works = [threads.submit(at_once, work) for work in (call, hand_on, stream, fail)]
            asyncio.run(await_all())
            for work in works:
                work.result(60)
