"""One call under way on an in-process group, and the futures of its answers."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from verl_protocol import DataProtoFuture
from verl_protocol.arguments import seconds
from verl_protocol.batch.apart import stored
from verl_protocol.columns.reading import InProcessStore
from verl_protocol.futures.any_batch import Pending, is_proto
from verl_protocol.futures.parts import Deadline, Steps, until_done

from verl_dispatch.errors import CallTimeout, WorkerFailure, WorkerGroupError, _ranks, given_to
from verl_dispatch.groups.call import Call, Pauses
from verl_dispatch.local.copies import PrivateFuture
from verl_dispatch.planning.batches import answered_rows
from verl_dispatch.planning.options import DEFAULT_OPTIONS, CallOptions
from verl_dispatch.planning.plan import CallPlan, arguments_of

T = TypeVar("T")
_PACKAGE = os.path.dirname(__file__)


@dataclass(slots=True, eq=False)
class LocalLife:
    """What calls know about their group: how often it was restarted, and what has broken it.

    Calls do not hold the group itself, so that a group nobody uses any more is collected.
    """

    generation: int = 0
    broken: str = ""

    def break_off(self, cause: str, ranks: Sequence[int]) -> None:
        """Have calls refused from now on; the first cause counts."""
        self.broken = self.broken or f"{cause} on {_ranks(ranks)}"


ANSWERS = InProcessStore()
"""Where columns of answers lie that stay remote; an answer is a copy that nobody else has."""


class LocalCall(Call):
    """A call that was sent to some ranks of an in-process group.

    Args:
        life: what becomes of the group.
        plan: what was sent.
        group: name of the group, for messages.
        options: see `Call`.

    Attributes:
        is_timed: whether the ranks tell their times.
        overdue: ranks that took longer than the call allows, where they take turns and are not interrupted.
    """

    def __init__(
        self, life: LocalLife, plan: CallPlan, group: str, options: CallOptions = DEFAULT_OPTIONS
    ) -> None:
        super().__init__(plan, group, options)
        self.life: LocalLife = life
        self.generation: int = life.generation
        self.is_timed = False
        self.overdue: list[int] = []
        self._unfilled: dict[int, LocalFuture] = {}
        self._unread: tuple[int, ...] = ()
        self._told_readers: list[WorkerGroupError] = []

    # --- what the ranks report -----------------------------------------------------------------------------

    def failed(self, rank: int, error: BaseException) -> None:
        """Takes what a rank raised; what ends the rank breaks the group."""
        super().failed(rank, error)
        if isinstance(error, SystemExit):
            self._break_off([rank])

    def cut_off(self, reason: str) -> None:
        """Has the ranks that are still silent fail: the group was shut down, or restarted."""
        self._told = self._told or self._failed_at is None
        for rank in self.plan.called_ranks:
            super().failed(rank, RuntimeError(reason))

    def take(self, key: Any, value: Any, error: BaseException | None) -> None:
        """Takes what came from a rank, also for the future of its answer."""
        if self.plan.remote and error is None and is_proto(value):
            origin = (self.group, self.plan.method, key, self.generation)
            value = stored(value, ANSWERS, origin)
        super().take(key, value, error)
        if self._unfilled:
            # What nobody reads may be the last that all the others wait for.
            self._fulfil(list(self._unfilled) if key in self._unread else [key])

    # --- what the caller gets ------------------------------------------------------------------------------

    def futures(self) -> list[LocalFuture]:
        """One future per fetched rank."""
        made = {rank: LocalFuture(self, rank) for rank in self.plan.fetched_ranks}
        self._unfilled = dict(made)
        self._fulfil(made)
        return list(made.values())

    def _fulfil(self, ranks: Iterable[Any]) -> None:
        """Fill the futures of those of these ranks that have answered, once all have that nobody reads."""
        came, unread = self._came, self._unread
        if not all(rank in came for rank in unread):
            return
        for rank in ranks:
            # Whoever takes the future out fills it: a rank that answers, or the caller who comes after it.
            if rank not in came or (future := self._unfilled.pop(rank, None)) is None:
                continue
            ended = {each: came[each][1] for each in (rank, *unread)}
            if errors := {each: error for each, error in ended.items() if error is not None}:
                future.set_exception(self._told_earlier(errors) or self._failure(errors))
            else:
                future.set_result(came[rank][0])

    def data_future(self) -> DataProtoFuture[Any]:
        """The future of a batch, which knows how many rows each answer has once it is there.

        Where columns stay remote it does not: each reader then gets what names the columns of all rows.
        It fails like the call, also where a rank did whose answer is not read: one of several replicas.
        """
        fetched = self.plan.fetched_ranks
        self._unread = tuple([rank for rank in self.plan.called_ranks if rank not in fetched])
        futures, collect = self.futures(), self.plan.collect.collect
        counts = None if self.plan.remote else list(map(AnswerRows, futures))
        aligned = self.plan.order is None
        made = LocalBatchFuture(collect, futures, row_counts=counts, row_aligned=aligned)
        made._call = self
        return made

    def _failure_of_all(self) -> Pauses[WorkerGroupError]:
        """What the reader of one failed answer is told: all that failed, as who waits for the call is."""
        yield from self._until_decided(Deadline(None))
        found = self.error(self._errors(), self._missing())
        self._told_readers.append(found)
        return found

    def error(self, errors: Mapping[int, BaseException], silent: Sequence[int]) -> WorkerGroupError:
        """The failures of these ranks, or of a call that made their future; silent ranks break the group."""
        if silent:
            self._break_off(list(errors))
        return (None if silent else self._told_earlier(errors)) or self._failure(errors, silent)

    def check(self, waiting: bool) -> None:
        """Refuse what was sent before a restart.

        Raises:
            WorkerGroupError: the group was restarted since.
            CallTimeout: ranks that took turns took too long.
        """
        if self.generation != self.life.generation:
            reason = (
                f"sent to generation {self.generation} of the group, which has been restarted since "
                f"(now {self.life.generation}); call the method again"
            )
            raise WorkerGroupError(self.group, self.plan.method, reason=reason)
        if self.overdue and self._failed_at is None:
            raise CallTimeout(self.group, self.plan.method, self.deadline.limit or 0.0, self.overdue)

    def _break_off(self, ranks: Sequence[int]) -> None:
        if self.generation == self.life.generation:
            self.life.break_off(f"an earlier failure in '{self.plan.method}'", ranks)

    def _told_earlier(self, errors: Mapping[int, BaseException]) -> WorkerGroupError | None:
        """The failure of a call whose future these ranks were given, if none of them failed otherwise."""
        given = {call.rank: arguments_of(call) for call in self.plan.calls}
        found = [_failure_among(given[rank], error) for rank, error in errors.items()]
        if (first := found[0]) is None or None in found:
            return None
        told = WorkerGroupError(first.group, first.method, first.errors, first.unanswered_ranks)
        told.__cause__ = first.__cause__
        return given_to(told, self.plan.method, self.group)

    def _failure(self, errors: Mapping[int, BaseException], silent: Sequence[int] = ()) -> WorkerGroupError:
        failures = {rank: failure_of(rank, error) for rank, error in errors.items()}
        told = WorkerGroupError(self.group, self.plan.method, failures, silent)
        told.__cause__ = next(iter(errors.values()), None)
        return told


class LocalFuture(PrivateFuture):
    """The answer of one rank to a non-blocking call."""

    def __init__(self, call: LocalCall, rank: int) -> None:
        super().__init__()
        self._call, self._rank = call, rank
        # A call that was sent runs to its end: it can no longer be cancelled.
        self.set_running_or_notify_cancel()

    def shared_result(self, timeout: float | None = None) -> Any:
        """The rank's answer; `result` gives a copy of it.

        Raises:
            WorkerGroupError: the rank failed, or the group was restarted since.
            CallTimeout: no answer in time.
        """
        call, limit = self._call, seconds("timeout", timeout)
        call.check(waiting=False)
        try:
            return super().shared_result(limit)
        except TimeoutError:
            silent = [rank for rank in (self._rank, *call._unread) if rank not in call._came]
            raise CallTimeout(call.group, call.plan.method, limit or 0.0, silent) from None
        except WorkerGroupError:
            call._told = True
            raise


class LocalBatchFuture(DataProtoFuture[Any]):
    """The batch that the ranks of one call answer; a failure of it names all ranks that failed."""

    _call: LocalCall

    def _run(self, steps: Steps[T], timeout: float | None = None, fetch: Any = None) -> T:
        try:
            return super()._run(steps, timeout, fetch)
        except WorkerGroupError as error:
            if not error.errors:
                raise
            raise self._call._sleeping(self._call._failure_of_all()) from error.__cause__

    async def _run_async(self, steps: Steps[T], timeout: float | None = None, fetch: Any = None) -> T:
        try:
            return await super()._run_async(steps, timeout, fetch)
        except WorkerGroupError as error:
            if not error.errors:
                raise
            raise await self._call._awaiting(self._call._failure_of_all()) from error.__cause__


@dataclass(frozen=True, slots=True)
class AnswerRows(Pending):
    """How many rows an answer has, once it is there."""

    answer: LocalFuture

    def get(self, timeout: float | None = None, fetch: object = None) -> int:
        """The number of rows; 0 for an answer that has none."""
        return answered_rows(self.answer.shared_result(timeout)) or 0

    async def aget(self, timeout: float | None = None, fetch: object = None) -> int:
        """The number of rows, awaited."""
        await until_done(self.answer, Deadline(timeout))
        return self.get(0)


def _failure_among(values: Iterable[Any], error: BaseException) -> WorkerGroupError | None:
    """The error, if it is that of an answer which one of the values is made of."""
    if not isinstance(error, WorkerGroupError):
        return None
    for value in values:
        if isinstance(value, DataProtoFuture) and _failure_among(value.futures, error):
            return error
        if isinstance(value, LocalFuture) and value.done():
            told = value.exception(), *value._call._told_readers
            if any(error is each for each in told):
                return error
    return None


def failure_of(rank: int, error: BaseException) -> WorkerFailure:
    """What is told about an exception: where it ran, and its traceback from the user's code on."""
    frames = users_frames(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, frames))
    return WorkerFailure(rank, socket.gethostname(), os.getpid(), error, text)


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """The frames of a traceback from the user's code on."""
    first = frames
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return first if frames is None else frames
