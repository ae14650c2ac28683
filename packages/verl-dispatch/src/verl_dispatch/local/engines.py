"""How the ranks of an in-process group run: in turns in the caller's thread, or each in its own thread."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from types import CoroutineType
from typing import Any, TypeAlias

from verl_protocol.wire.guard import check_unwritten, sharing_reads, watch

from verl_dispatch.errors import NotPicklableError
from verl_dispatch.local.call import LocalCall
from verl_dispatch.local.collectives import LocalProcessGroup, Rendezvous, Seat
from verl_dispatch.local.copies import Memo, private_arguments, private_copy
from verl_dispatch.planning.options import Labels
from verl_dispatch.planning.plan import RankCall, refuse_unpicklable
from verl_dispatch.workers.observed import Observation, Recorder
from verl_dispatch.workers.rank import RankInfo
from verl_dispatch.workers.roles import ColocatedWorker, clean_up
from verl_dispatch.workers.site import SITE, WorkerSite, building

Run: TypeAlias = "Callable[[LocalRank, RankCall], Any]"
"""What a rank does with its part of a call: build its worker, or run a method."""


# --- Ranks that take turns in the caller's thread, with torchrun's variables set while each runs --------


_REASON = (
    "the ranks of this in-process group run one after the other; "
    "make the group with concurrent=True to give each rank a thread"
)

# Ends of a method. All else, such as Ctrl-C, is meant for the program in whose thread the method runs.
_FAILURES = (Exception, SystemExit, GeneratorExit, asyncio.CancelledError)


class TurnEngine:
    """Runs every rank of a call before it returns; while a rank runs, `os.environ` has its variables."""

    def __init__(self, infos: Sequence[RankInfo]) -> None:
        seat = Seat(_REASON)
        self.ranks: list[LocalRank] = [LocalRank(info, seat, sets_environment=True) for info in infos]
        self._variables = [encoded(info.environment()) for info in infos]

    def start(self, call: LocalCall, run: Run) -> None:
        """Have every rank of the plan run its part, to the end."""
        clock, limit_s = time.perf_counter, call.deadline.limit
        for each in call.plan.calls:
            with environment_of(self._variables[each.rank]):
                started = clock()
                try:
                    answer = run(self.ranks[each.rank], each)
                except _FAILURES as error:
                    call.failed(each.rank, error)
                    continue
                # The wait for the ranks before it is not this rank's time.
                call.seconds[each.rank] = spent = clock() - started
            if limit_s is not None and spent > limit_s:
                call.overdue.append(each.rank)
            call.answered(each.rank, answer)

    def close(self, reason: str) -> None:
        """Drop the workers."""
        for rank in self.ranks:
            rank.close()


# The variables are written into the mapping behind `os.environ`, and not through it into the table of the
# process: the C library moves that table when a name is added, while torch reads it without the
# interpreter's lock (with `getenv`, in the first operation of a thread), and the process crashes.
# Keys and values there are as `os.environ` encodes them.
Variables: TypeAlias = "Mapping[Any, Any]"


def encoded(variables: Mapping[str, str]) -> Variables:
    """Variables as the mapping behind `os.environ` has them."""
    key, value = os.environ.encodekey, os.environ.encodevalue
    return {key(name): value(text) for name, text in variables.items()}


_lock = threading.RLock()
_inside: dict[object, Variables] = {}
_outside: Variables = {}


@contextmanager
def environment_of(variables: Variables) -> Iterator[None]:
    """While this lasts `os.environ` has these variables; afterwards it is as it was.

    The last of several threads undoes what all of them have set. Ctrl-C, a signal handler or a finalizer that
    itself calls a group may come at any point here.
    """
    global _outside
    behind: MutableMapping[Any, Any] = vars(os.environ)["_data"]
    mine = object()
    try:
        try:
            with _lock:
                before = {key: behind[key] for key in variables if key in behind}
                if not _inside:
                    _outside = before
                _inside[mine] = before
                behind.update(variables)
            yield
        finally:
            _leave(mine, variables, behind)
    finally:
        # To the end where it was interrupted, else there is nothing to do.
        _leave(mine, variables, behind)


def _leave(mine: object, variables: Variables, behind: MutableMapping[Any, Any]) -> None:
    with _lock:
        before = _inside.get(mine)
        if before is None:
            return
        if any(behind.get(key) is not value for key, value in variables.items()):
            _undo_in_process(variables)
        for key in variables:
            behind.pop(key, None)
        behind.update(_outside if len(_inside) == 1 else before)
        del _inside[mine]


def _undo_in_process(names: Iterable[Any]) -> None:
    # A worker that writes or removes a variable through `os.environ` does so in the process's table too.
    for name in names:
        if name in _outside:
            os.putenv(name, _outside[name])
        else:
            os.unsetenv(name)


# --- Ranks that have a thread each, and can meet --------------------------------------------------------


_JOIN_S = 1.0

Job: TypeAlias = "tuple[LocalCall, RankCall, Rendezvous, Run]"


class ThreadEngine:
    """Hands calls to the ranks' threads and returns at once; each rank takes its calls in order."""

    def __init__(self, infos: Sequence[RankInfo], name: str) -> None:
        self._threads = [RankThread(info, name) for info in infos]
        self.ranks: list[LocalRank] = [thread.rank for thread in self._threads]
        # Calls that wait or run are kept by the ranks; those that are done leave by themselves.
        self._open: weakref.WeakSet[LocalCall] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed: str | None = None

    def start(self, call: LocalCall, run: Run) -> None:
        """Have every rank of the plan run its part, after what it was given before."""
        rendezvous = Rendezvous(len(self._threads), call.plan.method, call.plan.called_ranks)
        # All ranks take the calls of several senders in one order, or two calls could wait for each other.
        with self._lock:
            if self._closed is None:
                self._open.add(call)
                for each in call.plan.calls:
                    self._threads[each.rank].jobs.put((call, each, rendezvous, run))
                return
        call.cut_off(self._closed)

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
            call.cut_off(reason)


class RankThread:
    """One rank and the thread that everything of it runs in, one of `jobs` after the other."""

    def __init__(self, info: RankInfo, name: str) -> None:
        self._seat = Seat()
        self.rank: LocalRank = LocalRank(info, self._seat, sets_environment=False)
        self.jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._current: Job | None = None
        self._stopped: str | None = None
        # A rank that never comes back must not keep the program from ending.
        self._thread = threading.Thread(target=self._work, name=f"{name}-rank-{info.rank}", daemon=True)
        self._thread.start()

    def stop(self, reason: str) -> None:
        """Fail the job that runs and those that wait, and end the thread as soon as it is free."""
        self._stopped = reason
        current = self._current
        if current is not None:
            current[2].abort(reason)
        self.jobs.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, unless it is the one that asks."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            self._current = job
            self._do(*job)
            self._current = None
            del job
        self.rank.close()

    def _do(self, call: LocalCall, each: RankCall, rendezvous: Rendezvous, run: Run) -> None:
        self._seat.rendezvous = rendezvous
        try:
            if self._stopped is not None:
                raise RuntimeError(self._stopped)
            value = run(self.rank, each)
        except BaseException as error:
            self._seat.rendezvous = None
            rendezvous.leave(each.rank, error)
            call.failed(each.rank, error)
        else:
            self._seat.rendezvous = None
            rendezvous.leave(each.rank)
            call.answered(each.rank, value)


# --- One rank: the user's object, where it stands, and how a call runs on it ----------------------------


class ReadOnlyCopies:
    """The one copy of a call's arguments that all ranks of a read-only call share."""

    def __init__(self) -> None:
        self._memo: Memo = {}
        self._lock = threading.Lock()

    def arguments(self, call: RankCall) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """One rank's arguments; objects that several ranks get are the same ones for all of them."""
        with self._lock:
            return watch(private_arguments(call.args, call.kwargs, self._memo))


class LocalRank:
    """One rank; what goes in and out of it is copied."""

    def __init__(self, info: RankInfo, seat: Seat, *, sets_environment: bool) -> None:
        self.info = info
        self.worker: Any = None
        self.recorder: Recorder | None = None
        group = LocalProcessGroup(info.rank, info.world_size, seat)
        self._site = WorkerSite(info, lambda _: group, sets_environment)
        self._loop: asyncio.AbstractEventLoop | None = None

    def build(self, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Run the user's constructor."""
        args, kwargs = private_arguments(args, kwargs)
        with building(self._site):
            self.worker = cls(*args, **kwargs)
        self._site.taken = True

    def run(
        self,
        call: RankCall,
        method: str,
        role: str | None,
        read_only: ReadOnlyCopies | None = None,
        sent: LocalCall | None = None,
    ) -> Any:
        """Run a method, to the end also if it is async, and give a copy of its value."""
        watched = self.recorder is not None or (sent is not None and sent.is_timed)
        seen = Observation(method, self.recorder, role) if watched else None
        try:
            if read_only is None:
                args, kwargs = private_arguments(call.args, call.kwargs)
            else:
                args, kwargs = read_only.arguments(call)
        except Exception:
            labels = Labels(method, list(inspect.signature(self._method(method, role)).parameters))
            refuse_unpicklable(labels, [call], private_copy)
            raise
        token = SITE.set(self._site)
        try:
            function = self._method(method, role)
            function = function if seen is None else seen.of(function)
            if read_only is None:
                value = self._result(function, args, kwargs)
            else:
                with sharing_reads(True):
                    value = self._result(function, args, kwargs)
                check_unwritten((args, kwargs))
        finally:
            SITE.reset(token)
            if seen is not None and sent is not None:
                sent.stamps[call.rank] = seen.stamps._replace(queued=not self._site.sets_environment)
        try:
            return private_copy(value)
        except Exception as error:
            raise NotPicklableError(f"the answer of method {method!r}", str(error)) from error

    def close(self) -> None:
        """Let the user's object clean up, and drop it."""
        worker, self.worker = self.worker, None
        if worker is not None and (rest := clean_up(worker, ("close",))) is not None:
            self._run_coroutine(rest)
        loop, self._loop = self._loop, None
        # The thread that still runs a method in it closes it.
        if loop is not None and not loop.is_running():
            loop.close()

    def _method(self, method: str, role: str | None) -> Callable[..., Any]:
        worker = self.worker
        if worker is None:
            raise RuntimeError("the group was shut down or restarted while the call was under way")
        if role is not None and isinstance(worker, ColocatedWorker):
            return worker.role_method(role, method)
        bound: Callable[..., Any] = getattr(worker, method)
        return bound

    def _result(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        value = function(*args, **kwargs)
        return self._run_coroutine(value) if type(value) is CoroutineType else value

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        # One loop for the rank's whole life: locks and queues that a worker keeps belong to a loop. Where a
        # method still runs in it, as when another thread ends the group, this one has a loop of its own.
        loop = self._loop
        if loop is None or loop.is_running():
            loop = asyncio.new_event_loop()
            self._loop = self._loop or loop
        beside = _a_loop_runs_here()
        try:
            return _in_a_thread(loop, coroutine) if beside else loop.run_until_complete(coroutine)
        finally:
            if not loop.is_running():
                coroutine.close()
                if self.worker is None or loop is not self._loop:
                    loop.close()


def _a_loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine while the caller's own event loop runs: a thread can run one loop only."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(loop.run_until_complete(coroutine))
        except BaseException as error:
            outcome.set_exception(error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name="verl-local-async", daemon=True).start()
    return outcome.result()
