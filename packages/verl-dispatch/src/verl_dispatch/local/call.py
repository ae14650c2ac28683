"""One call under way on an in-process group, and the answer that each called rank gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, overload

from verl_dispatch.errors import WorkerFailure, WorkerGroupError, _ranks
from verl_dispatch.groups.bound_method import CallTimer
from verl_dispatch.local.copies import PrivateFuture
from verl_dispatch.planning.batches import answered_rows

__all__ = ["AnswerRows", "LocalAnswer", "LocalCall", "LocalFuture", "LocalLife"]


class LocalFuture(PrivateFuture):
    """The answer of one rank to a non-blocking call."""

    def __init__(self, call: LocalCall) -> None:
        super().__init__()
        self._call = call
        # A call that was sent runs to its end: it can no longer be cancelled.
        self.set_running_or_notify_cancel()

    def shared_result(self, timeout: float | None = None) -> Any:
        """The rank's answer; `result` gives a copy of it.

        Raises:
            WorkerGroupError: the rank failed, or the group was restarted since.
            TimeoutError: no answer in time.
        """
        self._call.check_generation()
        return super().shared_result(timeout)


@dataclass(frozen=True, slots=True)
class AnswerRows:
    """How many rows an answer has, once it is there."""

    answer: LocalFuture

    def result(self, timeout: float | None = None) -> int:
        """The number of rows; 0 for an answer that has none."""
        return answered_rows(self.answer.shared_result(timeout)) or 0


class LocalAnswer:
    """What one rank answers: a value or a failure, once it is done.

    It does not know its call: without a cycle between the two a small call leaves nothing to the collector.
    """

    __slots__ = ("done", "failure", "rank", "seconds", "timer", "value", "watchers")

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.done = False
        self.value: Any = None
        self.failure: WorkerFailure | None = None
        self.seconds = 0.0
        self.timer: CallTimer | None = None
        self.watchers: Sequence[LocalFuture] = ()


@dataclass(slots=True, eq=False)
class LocalLife:
    """What calls know about their group: how often it was restarted, and where to wait for news.

    Calls do not hold the group itself, so that a group nobody uses any more is collected.
    """

    generation: int = 0
    broken: str = ""
    changed: threading.Condition = field(default_factory=threading.Condition)

    def break_off(self, cause: str, ranks: Sequence[int]) -> None:
        """Have calls refused from now on; the first cause counts."""
        self.broken = self.broken or f"{cause} on {_ranks(ranks)}"


class LocalCall(Sequence[LocalAnswer]):
    """A call that was sent to some ranks: their answers, of which it knows how many are there.

    As a sequence it is what `LocalWorkerGroup` hands around as the pendings of a plan.
    """

    __slots__ = (
        *("answers", "changed", "failed", "generation", "life", "method", "name", "ranks", "timeout_s"),
        "__weakref__",
    )

    def __init__(
        self,
        life: LocalLife,
        name: str,
        method: str,
        ranks: Sequence[int],
        timeout_s: float | None = None,
    ) -> None:
        self.life = life
        self.timeout_s = timeout_s
        self.name = name
        self.method = method
        self.generation = life.generation
        self.changed = life.changed
        self.ranks = ranks
        self.answers = [LocalAnswer(rank) for rank in ranks]
        self.failed = False

    @overload
    def __getitem__(self, index: int) -> LocalAnswer: ...
    @overload
    def __getitem__(self, index: slice) -> list[LocalAnswer]: ...
    def __getitem__(self, index: int | slice) -> LocalAnswer | list[LocalAnswer]:
        return self.answers[index]

    def __len__(self) -> int:
        return len(self.answers)

    def future_of(self, answer: LocalAnswer) -> LocalFuture:
        """A future of one rank's answer."""
        future = LocalFuture(self)
        with self.changed:
            if not answer.done:
                answer.watchers = (*answer.watchers, future)
                return future
        self._fulfil(future, answer)
        return future

    def report_to(self, timer: CallTimer) -> None:
        """Tell the timer of a traced call when each rank has answered."""
        with self.changed:
            for answer in self.answers:
                if answer.done:
                    # Where ranks take turns the wait for the others is not this rank's time.
                    timer.answered.setdefault(answer.rank, answer.seconds)
                else:
                    answer.timer = timer

    def _fulfil(self, future: LocalFuture, answer: LocalAnswer) -> None:
        if answer.failure is None:
            future.set_result(answer.value)
        else:
            future.set_exception(self.error({answer.rank: answer.failure}))

    def fail(self, answer: LocalAnswer, failure: WorkerFailure) -> None:
        """Take a rank's failure; one that ends the rank breaks the group."""
        answer.failure = failure
        self.failed = True
        if isinstance(failure.cause, SystemExit):
            self.break_off([answer.rank])

    def break_off(self, ranks: Sequence[int]) -> None:
        """Have the group refuse calls from now on, because of these ranks."""
        if self.generation == self.life.generation:
            self.life.break_off(f"an earlier failure in '{self.method}'", ranks)

    def settle(self, answer: LocalAnswer, value: Any, failure: WorkerFailure | None) -> None:
        """Take a rank's answer; the first one counts."""
        with self.changed:
            if answer.done:
                return
            if failure is not None:
                self.fail(answer, failure)
            answer.value, answer.done = value, True
            watchers, answer.watchers = answer.watchers, ()
            self.changed.notify_all()
        if answer.timer is not None:
            answer.timer.rank_answered(answer.rank)
        for future in watchers:
            self._fulfil(future, answer)

    def wait(self, timeout_s: float | None, grace_s: float) -> None:
        """Wait until all ranks have answered, one has failed and the grace is over, or the time is."""
        timeout_s = _bounded(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self.changed:
            self.changed.wait_for(self._is_decided, timeout_s)
            if not self.is_done() and self.failed:
                left = grace_s if deadline is None else min(grace_s, max(0.0, deadline - time.monotonic()))
                self.changed.wait_for(self.is_done, left)

    def wait_for_any(self, answers: Sequence[LocalAnswer], timeout_s: float | None) -> bool:
        """Wait until one of these ranks has answered, or any rank has failed; False if the time is over."""
        with self.changed:
            return self.changed.wait_for(
                lambda: any(answer.done for answer in answers) or self.failed, _bounded(timeout_s)
            )

    def is_done(self) -> bool:
        """Whether every called rank has answered."""
        return all(answer.done for answer in self.answers)

    def _is_decided(self) -> bool:
        return self.failed or self.is_done()

    def failures(self) -> dict[int, WorkerFailure]:
        """The failures so far, by rank."""
        return {answer.rank: answer.failure for answer in self.answers if answer.failure is not None}

    def silent_ranks(self) -> list[int]:
        """Ranks that have not answered."""
        return [answer.rank for answer in self.answers if not answer.done]

    def slow_ranks(self) -> list[int]:
        """Ranks that took longer than the call allows."""
        limit = self.timeout_s
        return [] if limit is None else [answer.rank for answer in self.answers if answer.seconds > limit]

    def error(self, failures: dict[int, WorkerFailure], silent: Sequence[int] = ()) -> WorkerGroupError:
        """What the caller is told about these failures."""
        error = WorkerGroupError(self.name, self.method, failures, silent)
        error.__cause__ = next((failure.cause for failure in failures.values()), None)
        return error

    def check_generation(self) -> None:
        """Refuse what was sent before a restart.

        Raises:
            WorkerGroupError: the group was restarted since.
        """
        if self.generation != self.life.generation:
            reason = (
                f"sent to generation {self.generation} of the group, which has been restarted since "
                f"(now {self.life.generation}); call the method again"
            )
            raise WorkerGroupError(self.name, self.method, reason=reason)


def _bounded(timeout_s: float | None) -> float | None:
    """What a lock can wait; more than that, and infinity, is without end."""
    return None if timeout_s is None or timeout_s >= threading.TIMEOUT_MAX else timeout_s
