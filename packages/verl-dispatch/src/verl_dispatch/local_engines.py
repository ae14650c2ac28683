"""How the ranks of an in-process group run: in turns in the caller's thread, or each in its own thread."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

from verl_dispatch.local_answer import LocalAnswer, LocalCall
from verl_dispatch.local_rank import LocalRank, ReadOnlyCopies, failure_of
from verl_dispatch.plan import CallPlan
from verl_dispatch.process_group import LonelyProcessGroup, ProcessGroup
from verl_dispatch.rank_environment import RankEnvironment
from verl_dispatch.rank_info import RankInfo
from verl_dispatch.rendezvous import Rendezvous, Seat, ThreadProcessGroup

__all__ = ["ThreadEngine", "TurnEngine"]


_REASON = (
    "the ranks of this in-process group run one after the other; "
    "make the group with concurrent=True to give each rank a thread"
)


# Ends of a method. All else, such as Ctrl-C, is meant for the program in whose thread the method runs.
_FAILURES = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)


class TurnEngine:
    """Runs every rank of a call before it returns; while a rank runs, the environment is that of the rank."""

    def __init__(self, infos: Sequence[RankInfo]) -> None:
        self._ranks = [LocalRank(info, _lonely, sets_environment=True) for info in infos]
        self._environment = RankEnvironment(infos)

    def workers(self) -> list[Any]:
        """The users' objects, in rank order."""
        return [rank.worker for rank in self._ranks]

    def build(self, call: LocalCall, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run every rank's constructor."""
        self._run(call, lambda rank, _: self._ranks[rank].build(cls, args, kwargs))

    def run(self, call: LocalCall, plan: CallPlan, role: str | None) -> None:
        """Run a method on the ranks that the plan calls."""
        ranks, method = self._ranks, plan.method
        copies = ReadOnlyCopies() if plan.read_only else None
        calls = plan.calls
        self._run(call, lambda rank, index: ranks[rank].run(method, calls[index], role, copies))

    def _run(self, call: LocalCall, run: Callable[[int, int], Any]) -> None:
        show, clock = self._environment.show, time.perf_counter
        saved = self._environment.enter()
        try:
            for index, answer in enumerate(call.answers):
                show(answer.rank)
                started = clock()
                try:
                    answer.value = run(answer.rank, index)
                except _FAILURES as error:
                    call.fail(answer, failure_of(answer.rank, error))
                answer.seconds = clock() - started
                answer.done = True
        finally:
            self._environment.leave(saved)

    def close(self, reason: str) -> None:
        """Drop the workers."""
        for rank in self._ranks:
            rank.close()


def _lonely(info: RankInfo) -> ProcessGroup:
    return LonelyProcessGroup(info.rank, info.world_size, _REASON)


_JOIN_S = 1.0

Run = Callable[[], Any]
Job = tuple[LocalCall, LocalAnswer, Rendezvous, Run]


class ThreadEngine:
    """Hands calls to the ranks' threads and returns at once; each rank takes its calls in order."""

    def __init__(self, infos: Sequence[RankInfo], name: str) -> None:
        self._threads = [RankThread(info, name) for info in infos]
        # Calls that wait or run are kept by the ranks; those that are done leave by themselves.
        self._open: weakref.WeakSet[LocalCall] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed: str | None = None

    def workers(self) -> list[Any]:
        """The users' objects, in rank order."""
        return [thread.rank.worker for thread in self._threads]

    def build(self, call: LocalCall, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run every rank's constructor."""
        self._start(call, [partial(thread.rank.build, cls, args, kwargs) for thread in self._threads])

    def run(self, call: LocalCall, plan: CallPlan, role: str | None) -> None:
        """Run a method on the ranks that the plan calls."""
        copies = ReadOnlyCopies() if plan.read_only else None
        threads = self._threads
        runs = [partial(threads[each.rank].rank.run, plan.method, each, role, copies) for each in plan.calls]
        self._start(call, runs)

    def _start(self, call: LocalCall, runs: Sequence[Run]) -> None:
        present = [answer.rank for answer in call.answers]
        rendezvous = Rendezvous(len(self._threads), call.method, present)
        # All ranks take the calls of several senders in one order, or two calls could wait for each other.
        with self._lock:
            if self._closed is None:
                self._open.add(call)
                for answer, run in zip(call.answers, runs, strict=True):
                    self._threads[answer.rank].put((call, answer, rendezvous, run))
                return
        _fail_all(call, self._closed)

    def close(self, reason: str) -> None:
        """Answer every open call with a failure, end the waits of the ranks and their threads."""
        with self._lock:
            self._closed = self._closed or reason
            open_calls = list(self._open)
        for thread in self._threads:
            thread.stop(reason)
        deadline = time.monotonic() + _JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        for call in open_calls:
            _fail_all(call, reason)


def _fail_all(call: LocalCall, reason: str) -> None:
    for answer in call.answers:
        call.settle(answer, None, failure_of(answer.rank, RuntimeError(reason)))


class RankThread:
    """One rank and the thread that everything of it runs in."""

    def __init__(self, info: RankInfo, name: str) -> None:
        self._seat = Seat()
        self.rank = LocalRank(info, self._process_group, sets_environment=False)
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._current: Job | None = None
        self._stopped: str | None = None
        # A rank that never comes back must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"{name}-rank-{info.rank}", daemon=True)
        self._thread.start()

    def _process_group(self, info: RankInfo) -> ProcessGroup:
        return ThreadProcessGroup(info.rank, info.world_size, self._seat)

    def put(self, job: Job) -> None:
        """Run a job after those put before it."""
        self._jobs.put(job)

    def stop(self, reason: str) -> None:
        """Fail the job that runs and those that wait, and end the thread as soon as it is free."""
        self._stopped = reason
        current = self._current
        if current is not None:
            current[2].abort(reason)
        self._jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, unless it is the one that asks."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._current = job
            self._do(*job)
            self._current = None
            del job
        self.rank.close()

    def _do(
        self, call: LocalCall, answer: LocalAnswer, rendezvous: Rendezvous, run: Callable[[], Any]
    ) -> None:
        self._seat.rendezvous = rendezvous
        started = time.perf_counter()
        value, failure = None, None
        try:
            if self._stopped is not None:
                raise RuntimeError(self._stopped)
            value = run()
        except BaseException as error:
            rendezvous.leave(self.rank.info.rank, error)
            failure = failure_of(self.rank.info.rank, error)
        else:
            rendezvous.leave(self.rank.info.rank)
        self._seat.rendezvous = None
        answer.seconds = time.perf_counter() - started
        call.settle(answer, value, failure)
