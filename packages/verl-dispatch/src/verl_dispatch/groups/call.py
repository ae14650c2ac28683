"""A call that was sent: what its ranks have answered so far, every way to wait for the rest.

Answers come in from other threads. What came is one dict of which only single operations are used, and who
waits sleeps on something of its own until it is woken: no lock is held meanwhile. So a signal handler that
raises, a cancelled await, or a finalizer that happens to run leaves nothing behind, and nobody waits for
another waiter.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, Generic, NoReturn, Self, SupportsIndex, TypeAlias, TypeVar

from verl_protocol import DataProtoFuture
from verl_protocol.futures.parts import Deadline

from verl_dispatch.errors import CallTimeout, NotPicklableError
from verl_dispatch.groups.progress import Progress
from verl_dispatch.groups.trace import TracedCall
from verl_dispatch.planning.options import DEFAULT_OPTIONS, CallOptions
from verl_dispatch.planning.plan import CallPlan
from verl_dispatch.workers.observed import Stamps

T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
Pauses: TypeAlias = Generator[float, None, T]
"""What is waited for, apart from how: gives the seconds to sleep before it is asked again, then a result."""

_log = logging.getLogger(__name__)
_now = time.perf_counter
_LOOK_S = 1.0
"""Nobody sleeps longer than this at a time, so that a backend which has gone away is noticed."""


class Arrivals(ABC):
    """What other threads bring, one value or error for each of some keys, and the wait for it.

    The first error ends a wait, once the others have had `grace_s` to come too.
    """

    grace_s: float = 1.0

    def __init__(self, keys: Sequence[Hashable]) -> None:
        self._keys = keys
        self._came: dict[Any, tuple[Any, BaseException | None]] = {}
        self._failed_at: float | None = None
        self._wakers: list[Callable[[], object]] = []
        self._wakes_at_each = False

    def take(self, key: Hashable, value: Any, error: BaseException | None) -> None:
        """Takes what came for a key; the first counts. From any thread."""
        came = (value, error)
        if self._came.setdefault(key, came) is not came:
            return
        if error is not None:
            self._failed_at = self._failed_at or _now()
        if self._wakers and (self._wakes_at_each or self.done()):
            for wake in tuple(self._wakers):
                wake()

    @abstractmethod
    def check(self, waiting: bool) -> None:
        """Raises if nothing can come any more, or nothing that came may be read.

        Asked before anything is read, and, with `waiting`, before each sleep of who waits, at least once a
        second: there a backend whose answers come only on request asks for them.
        """

    def done(self) -> bool:
        """Whether every rank has answered, or one has failed."""
        return len(self._came) >= len(self._keys) or self._failed_at is not None

    def _missing(self) -> list[Any]:
        came = self._came
        return [key for key in self._keys if key not in came]

    def _errors(self) -> dict[Any, BaseException]:
        # Not by `_failed_at`: what came shows a moment before that does.
        return {key: error for key, (_, error) in list(self._came.items()) if error is not None}

    # --- waiting, told apart from sleeping -----------------------------------------------------------------

    def _until_decided(self, deadline: Deadline) -> Pauses[None]:
        """Until all have come, or one has failed and the others have had their grace, or the time is over."""
        while len(self._came) < len(self._keys):
            left = deadline.left
            if self._failed_at is not None:
                left = self._grace_left() if left is None else min(left, self._grace_left())
            if left == 0:
                return
            yield self._pause(left)

    def _pause(self, left: float | None) -> float:
        self.check(waiting=True)
        return _LOOK_S if left is None else min(_LOOK_S, left)

    def _grace_left(self) -> float:
        return 0.0 if self._failed_at is None else max(0.0, self._failed_at + self.grace_s - _now())

    def _sleeping(self, steps: Pauses[T]) -> T:
        """What the steps come to, in a thread that sleeps in between."""
        news: SimpleQueue[None] | None = None
        wake: Callable[[], object] = bool
        try:
            while True:
                pause = next(steps)
                if news is None:
                    # What came before somebody could be woken shows at the next look.
                    news = SimpleQueue()
                    wake = partial(news.put, None)
                    self._wakers.append(wake)
                    continue
                with suppress(Empty):
                    news.get(timeout=pause)
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            if news is not None:
                self._wakers.remove(wake)

    async def _awaiting(self, steps: Pauses[T]) -> T:
        """What the steps come to, in a task that sleeps in between."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            # Who waited may be gone, and the loop with it.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(news.set)

        self._wakers.append(wake)
        try:
            while True:
                news.clear()
                pause = next(steps)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await news.wait()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            self._wakers.remove(wake)


class Call(Arrivals):
    """One call under way: what a backend's `_send` returns.

    The backend reports `answered(rank, value)` or `failed(rank, error)` once for each called rank, from any
    thread, and supplies `futures`, `error` and `check`. All waiting is done here.

    Args:
        plan: what was sent.
        group: name of the group, for messages.
        options: those of the call: when it gives up, and whether its progress is shown.

    Attributes:
        deadline: what is left of the time that the call has.
        grace_s: seconds that other ranks get to answer after a first one failed.
        seconds: rank -> seconds from sending to its answer.
        stamps: rank -> what it reported of its times, where the group is traced.
        traced: what a trace knows of the call, if there is one.
    """

    traced: TracedCall | None = None

    def __init__(self, plan: CallPlan, group: str, options: CallOptions = DEFAULT_OPTIONS) -> None:
        super().__init__(plan.called_ranks)
        self.plan: CallPlan = plan
        self.group: str = group
        self.deadline: Deadline = Deadline(options.timeout_s)
        self.sent_at: float = _now()
        self.seconds: dict[int, float] = {}
        self.stamps: dict[int, Any] = {}
        self._told = False
        self._progress: Progress | None = None
        # Who gets futures does not wait here, so that nothing would be heard of.
        if options.progress and options.blocking is not False:
            self._progress = Progress(plan.method, plan.called_ranks, self._came)
            self._wakers.append(self._progress.update)
            self._wakes_at_each = True

    # --- what a backend reports and supplies ---------------------------------------------------------------

    def answered(self, rank: int, value: Any) -> None:
        """Takes a rank's answer; what a rank says first counts."""
        self.seconds.setdefault(rank, _now() - self.sent_at)
        self.take(rank, value, None)

    def failed(self, rank: int, error: BaseException) -> None:
        """Takes what a rank raised, or how it ended."""
        self.seconds.setdefault(rank, _now() - self.sent_at)
        self.take(rank, None, error)

    @abstractmethod
    def futures(self) -> list[Any]:
        """What the caller of a non-blocking call gets for each of `plan.fetched_ranks`, in that order."""

    @abstractmethod
    def error(self, errors: Mapping[Any, BaseException], silent: Sequence[Any]) -> BaseException:
        """What the caller is told of these failures; breaks the group where a rank died or is silent."""

    def late(self, limit_s: float, silent: Sequence[Any]) -> TimeoutError:
        """What the caller is told when the time is over; stops what the silent ranks do, where it can."""
        return CallTimeout(self.group, self.plan.method, limit_s, silent)

    def read(self, rank: int, value: Any) -> Any:
        """What a rank answered, as the caller gets it; in the caller's own thread."""
        return value

    def reported(self) -> Callable[[], Mapping[int, Stamps]]:
        """What gives `stamps` later, as far as they are there, without the call."""
        return self.stamps.copy

    def data_future(self) -> DataProtoFuture[Any]:
        """What the caller of a non-blocking call of a batch mode gets.

        Padding is taken off by the workers; `plan.collect.collect` joins the parts and restores the order of
        a balanced call. A backend that can tell how many rows an answer has, without fetching it, overrides
        this to say so.
        """
        collect, aligned = self.plan.collect.collect, self.plan.order is None
        return DataProtoFuture(collect, self.futures(), row_aligned=aligned)

    # --- what a group asks ---------------------------------------------------------------------------------

    def wait(self, timeout_s: float | None = None) -> list[Any]:
        """Waits for all called ranks; the answers of `plan.fetched_ranks`, in that order.

        Args:
            timeout_s: seconds to wait from now; None takes the call's own limit.

        Raises:
            WorkerGroupError: a rank failed.
            CallTimeout: not all ranks answered in time; they go on, and may be waited for again.
        """
        return self._sleeping(self._all_answers(None if timeout_s is None else Deadline(timeout_s)))

    def trace(self, traced: TracedCall) -> None:
        """Has the call tell of its times."""
        self.traced = traced
        traced.sent(self.sent_at, self.seconds, self.reported())

    def collect(self, answers: list[Any]) -> Any:
        """The result that the answers make."""
        try:
            result = self.plan.collect.collect(answers)
        except Exception as error:
            self._end(error)
            raise
        self._end()
        return result

    async def wait_async(self, timeout_s: float | None = None) -> list[Any]:
        """As `wait`, while the event loop goes on; no thread is held, and cancelling it lets go at once."""
        return await self._awaiting(self._all_answers(None if timeout_s is None else Deadline(timeout_s)))

    def stream(self) -> AnswerStream[Any]:
        """`(rank, answer)` of `plan.fetched_ranks` as they come, padding taken off; fails as `wait` does."""
        self._wakes_at_each = True
        return AnswerStream(self)

    def _all_answers(self, asked: Deadline | None) -> Pauses[list[Any]]:
        deadline = self.deadline if asked is None else asked
        self.check(waiting=False)
        yield from self._until_decided(deadline)
        if self.traced is not None:
            self.traced.collecting()
        self._raise_unless_answered(deadline, decides=asked is None)
        came, read = self._came, self.read
        answers = [read(rank, came[rank][0]) for rank in self.plan.fetched_ranks]
        if self.traced is not None:
            self.traced.read(answers)
        return answers

    def _until_decided(self, deadline: Deadline) -> Pauses[None]:
        try:
            yield from super()._until_decided(deadline)
        finally:
            if self._progress is not None:
                self._progress.stop()

    def _next_answer(self, num_seen: int) -> Pauses[tuple[int, int, Any] | None]:
        """How many have been seen then, and the next answer; None after the last."""
        deadline, fetched = self.deadline, self.plan.fetched_ranks
        self.check(waiting=False)
        while True:
            came = list(self._came.items())
            if num_seen < len(came):
                rank, (value, error) = came[num_seen]
                if error is not None:
                    break
                num_seen += 1
                if rank in fetched:
                    answer = self.plan.collect.part(fetched.index(rank), self.read(rank, value))
                    if self.traced is not None:
                        self.traced.read([answer])
                    return num_seen, rank, answer
            elif num_seen == len(self._keys) or (left := deadline.left) == 0:
                break
            else:
                yield self._pause(left)
        yield from self._until_decided(deadline)
        self._raise_unless_answered(deadline, decides=True)
        self._end()
        return None

    def _raise_unless_answered(self, deadline: Deadline, decides: bool) -> None:
        """Raise for failures, and for what is not there in time.

        Args:
            decides: whether the time was the call's own. Who asked for another wait hears only that it is
                over, until the silent ranks have had their grace and it shows what a failure means.
        """
        errors, silent = self._errors(), self._missing()
        if errors and (decides or not silent or not self._grace_left()):
            found: BaseException = self.error(errors, silent)
        elif silent:
            found = self.late(deadline.limit or 0.0, silent)
            if not decides:
                raise found
        else:
            return
        self._told = True
        self._end(found)
        raise found

    def _end(self, error: BaseException | None = None) -> None:
        if self.traced is not None:
            self.traced.ended(error)

    def __del__(self) -> None:
        if getattr(self, "_failed_at", None) is None or self._told:
            return
        name = f"group {self.group!r}, method {self.plan.method!r}"
        rank, error = next(iter(self._errors().items()))
        _log.error("%s failed on rank %s, and nobody read it: %r", name, rank, error)


class AnswerStream(Generic[R_co]):
    """`(rank, answer)` as the answers come: a plain iterator, and one for `async for`."""

    def __init__(self, call: Call) -> None:
        self._call, self._num_seen = call, 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[int, R_co]:
        found = self._call._sleeping(self._call._next_answer(self._num_seen))
        if found is None:
            raise StopIteration
        self._num_seen, rank, answer = found
        return rank, answer

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> tuple[int, R_co]:
        found = await self._call._awaiting(self._call._next_answer(self._num_seen))
        if found is None:
            raise StopAsyncIteration
        self._num_seen, rank, answer = found
        return rank, answer


class CallFuture(Generic[T]):
    """A call under way: `result(timeout)` waits for it, `await future` leaves the event loop free meanwhile.

    The result, or the failure, is kept and given again. A cancelled `await` lets go at once, and the call
    goes on.
    """

    _value: T

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call
        self._collecting = Lock()

    def result(self, timeout: float | None = None) -> T:
        """The result of the call.

        Args:
            timeout: seconds to wait from now; None takes the call's own `timeout_s`, counted from its start.

        Raises:
            WorkerGroupError: a worker failed.
            CallTimeout: no result in time; a later `result` may still get it.
        """
        call = self._call
        return self._value if call is None else self._collected(call, call.wait(timeout))

    def done(self) -> bool:
        """Whether `result` would return without waiting, as far as the group can tell."""
        call = self._call
        return call is None or call.done()

    def __await__(self) -> Generator[Any, None, T]:
        return self._awaited().__await__()

    async def _awaited(self) -> T:
        call = self._call
        return self._value if call is None else self._collected(call, await call.wait_async())

    def _collected(self, call: Call, outputs: list[Any]) -> T:
        with self._collecting:
            if self._call is not None:
                self._value = call.collect(outputs)
                self._call = None
        return self._value

    def __reduce_ex__(self, _: SupportsIndex) -> NoReturn:
        """Refuses: the answers come to this process.

        Raises:
            NotPicklableError: always.
        """
        raise NotPicklableError("the future of a call", "call result() and send the value")
