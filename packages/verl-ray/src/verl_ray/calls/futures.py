"""Results that stay with the workers: what a non-blocking call of a batch mode returns, and how it is handed
on.

Each part is one rank's answer, its row count is a second value of the same call. The driver fetches neither;
the worker that gets a piece of the future learns the counts and fetches only the parts that its rows overlap.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from verl_dispatch.planning.collectors import BatchCollector
from verl_dispatch.planning.parts import FuturePart
from verl_dispatch.planning.plan import CallPlan, arguments_of
from verl_protocol import DataProtoFuture
from verl_protocol.futures.parts import Cut, Deadline, overlaps, span_of, values_of

from verl_ray.calls.failures import has_failed
from verl_ray.wire.refs import get_answers, transport_of
from verl_ray.wire.sealed import Arrived, SealedFuture, is_one_whole_part, opened

__all__ = [
    "AnswerPart",
    "BatchFuture",
    "data_future",
    "fetch_answers",
    "futures_of",
    "is_direct",
    "knows_row_counts",
    "learn_row_counts",
    "needed_parts",
    "whole_part",
]


class Makers(Protocol):
    """The workers that make an answer: what a future needs to know of a group."""

    name: str

    def check_generation(self, method: str, generation: int) -> None:
        """Refuse what an earlier generation made."""

    def failure(
        self, method: str, ranks: Sequence[int], refs: Sequence[Any], generation: int
    ) -> Exception | None:
        """The error of a call that failed on one of these ranks; None if none has failed."""


class AnswerPart:
    """One rank's answer, or its row count, as a part of a `DataProtoFuture`.

    In the driver it knows the workers that make it, and is refused once they have been restarted. It is not
    there before `unread` are: the same call on ranks whose answers nobody reads, but which must not fail. A
    copy that was sent elsewhere is a bare reference.
    """

    __slots__ = ("_generation", "made_by", "method", "rank", "ref", "unread")

    def __init__(
        self,
        ref: Any,
        rank: int = 0,
        made_by: Makers | None = None,
        generation: int = 0,
        method: str = "",
        unread: tuple[AnswerPart, ...] = (),
    ) -> None:
        self.ref, self.rank, self.method, self.unread = ref, rank, method, unread
        # Keeps the workers alive until they have made it, also where their group has been dropped.
        self.made_by, self._generation = made_by, generation

    @property
    def fresh_ref(self) -> Any:
        """The reference.

        Raises:
            StaleFutureError: the workers were restarted since.
        """
        if self.made_by is not None:
            self.made_by.check_generation(self.method, self._generation)
        return self.ref

    def result(self, timeout: float | None = None) -> Any:
        """The value.

        Raises:
            StaleFutureError: the group was restarted since.
            TimeoutError: it was not there in time.
        """
        return opened(fetch_answers([self], timeout)[0])

    def __await__(self) -> Any:
        if self.made_by is None:
            return self.ref.__await__()
        return asyncio.to_thread(self.result).__await__()

    def __reduce__(self) -> tuple[Any, ...]:
        return AnswerPart, (self.fresh_ref, self.rank)


class BatchFuture(SealedFuture):
    """A `DataProtoFuture` whose parts are fetched together, and whose failures are those of a call."""

    def get(self, timeout: float | None = None, fetch: Any = None) -> Any:
        """The batch; see `DataProtoFuture.get`.

        Raises:
            WorkerGroupError: a worker failed.
            StaleFutureError: the group was restarted since.
            TimeoutError: it was not there in time.
        """
        return super().get(timeout, fetch or partial(fetch_answers, timeout=timeout))

    def row_count(self, timeout: float | None = None, fetch: Any = None) -> int:
        """How many rows this has; see `DataProtoFuture.row_count`."""
        return super().row_count(timeout, fetch or partial(fetch_answers, timeout=timeout))


def fetch_answers(parts: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """The values of many parts at once, sealed where they came sealed.

    Raises:
        WorkerGroupError: a worker of a group known here failed.
    """
    fetched = iter(_fetch([part for part in parts if not isinstance(part, Arrived)], timeout))
    return [part if isinstance(part, Arrived) else next(fetched) for part in parts]


def _fetch(parts: Sequence[Any], timeout: float | None) -> list[Any]:
    if not parts:
        return []
    num_read, parts = len(parts), [*parts, *_unread_beside(parts)]
    refs = [part.fresh_ref if isinstance(part, AnswerPart) else part for part in parts]
    try:
        values = get_answers(refs, timeout)
    except RayError as error:
        if isinstance(error, GetTimeoutError) and not isinstance(error, RayTaskError):
            raise
        raise _explained([part for part in parts if isinstance(part, AnswerPart)]) or error from None
    return values[:num_read]


def _explained(parts: Sequence[AnswerPart]) -> Exception | None:
    """The error of the first group known here that failed to make its parts."""
    for made_by in {id(part.made_by): part.made_by for part in parts if part.made_by is not None}.values():
        failure = _failure(made_by, [part for part in parts if part.made_by is made_by])
        if failure is not None:
            return failure
    return None


def _failure(made_by: Makers, parts: Sequence[AnswerPart]) -> Exception | None:
    """The error of the call that failed among those that made these parts; None if they are fine by now."""
    failed = next((part for part in parts if has_failed(part.ref)), None)
    if failed is None:
        return None
    call = [part for part in parts if part.method == failed.method]
    ranks, refs = [part.rank for part in call], [part.ref for part in call]
    return made_by.failure(failed.method, ranks, refs, failed._generation)


def _unread_beside(parts: Sequence[Any]) -> list[AnswerPart]:
    """The unread answers of these parts; those of one call share them."""
    calls = {id(part.unread): part.unread for part in parts if isinstance(part, AnswerPart)}
    return list({id(part): part for unread in calls.values() for part in unread}.values())


def data_future(
    made_by: Makers, plan: CallPlan, pendings: Sequence[Pending], behind: Sequence[AnswerPart] = ()
) -> DataProtoFuture[Any]:
    """The future of a batch mode's result.

    Args:
        behind: answers of earlier calls that nobody reads, and without which this result is not there.
    """

    def part(pending: Pending, ref: Any, unread: tuple[AnswerPart, ...] = ()) -> AnswerPart:
        return AnswerPart(ref, pending.rank, made_by, pending.generation, plan.method, unread)

    by_rank = {pending.rank: pending for pending in pendings}
    answers = [by_rank.pop(rank) for rank in plan.fetched_ranks]
    unread = (*behind, *(part(each, each.ref) for each in by_rank.values()))
    return BatchFuture(
        plan.collect.collect,
        [part(each, each.ref, unread) for each in answers],
        row_counts=[part(each, each.rows_ref) for each in answers],
        row_aligned=_joins_in_order(plan),
    )


def _joins_in_order(plan: CallPlan) -> bool:
    """Whether the result is the answers' rows, one rank after the other."""
    collect = plan.collect
    return isinstance(collect, BatchCollector) and (
        collect.layout is None or not collect.layout.changes_answers
    )


# --- Which parts of a future a worker will want, said by the driver, which has fetched none of them -------


def futures_of(plan: CallPlan) -> list[DataProtoFuture[Any]]:
    """The futures among the arguments; one of the pieces that a future was cut into stands for all."""
    found: dict[int, DataProtoFuture[Any]] = {}
    for call in plan.calls:
        for value in arguments_of(call):
            future = value.future if isinstance(value, FuturePart) else value
            if isinstance(future, DataProtoFuture):
                # All pieces share the lists of parts and of row counts.
                found.setdefault(id(future.futures), future)
    return list(found.values())


def is_direct(future: DataProtoFuture[Any]) -> bool:
    """Whether parts of it stay in the memory of the workers that made them."""
    return any(map(_is_direct_part, future.futures))


def _is_direct_part(part: Any) -> bool:
    if isinstance(part, DataProtoFuture):
        return is_direct(part)
    return isinstance(part, AnswerPart) and transport_of(part.ref) is not None


def learn_row_counts(future: DataProtoFuture[Any]) -> None:
    """Wait for the row counts of the parts, once for all pieces of the future.

    Raises:
        WorkerGroupError: a worker that makes a part failed.
    """
    if future.tells_rows and future.row_counts is not None and not knows_row_counts(future):
        # All pieces share this list.
        future.row_counts[:] = values_of(future.row_counts, Deadline(None), fetch_answers)


def knows_row_counts(future: DataProtoFuture[Any]) -> bool:
    """Whether all row counts are numbers by now."""
    counts = future.row_counts
    return counts is not None and all(isinstance(count, (int, np.integer)) for count in counts)


def whole_part(future: DataProtoFuture[Any]) -> int | None:
    """The index of the part that this piece consists of, if it is one whole part, of which it is known."""
    counts = future.row_counts
    if counts is None or not (future.tells_rows and knows_row_counts(future)):
        return None
    try:
        spans = future._spans(counts)
    except ValueError:
        # The worker will tell what is wrong.
        return None
    return spans[0].part if is_one_whole_part(spans, counts) and spans is not None else None


def needed_parts(future: DataProtoFuture[Any], padded: FuturePart | None = None) -> Collection[int]:
    """Indices of the parts that the rows of a piece lie in.

    While row counts are not known, all parts are taken to have equal rows; no part is named where that says
    nothing.

    Args:
        future: the piece; the whole batch where `padded` says which piece of it is meant.
        padded: the padded part that the worker gets of the batch.
    """
    counts = future.row_counts
    if counts is None or not future.futures:
        return range(len(future.futures))
    if not knows_row_counts(future):
        if not all(isinstance(cut, Cut) for cut in future._cuts):
            return ()
        counts = _equal_counts(future, padded)
    if not any(counts):
        # What has no rows is cut as a whole.
        return range(len(future.futures))
    return {span.part for span in overlaps(counts, *_span(future, padded, counts))}


def _equal_counts(future: DataProtoFuture[Any], padded: FuturePart | None) -> list[int]:
    """The same number for all parts, which divides wherever the future is cut."""
    pieces = [cut.num_pieces for cut in future._cuts if isinstance(cut, Cut)]
    return [math.prod(pieces) * (1 if padded is None else padded.num_parts)] * len(future.futures)


def _span(future: DataProtoFuture[Any], padded: FuturePart | None, counts: Sequence[int]) -> tuple[int, int]:
    try:
        start, stop = span_of(future._cuts, sum(counts))
        if padded is None:
            return start, stop
        first, last = padded.rows_of(stop - start).span(stop - start)
    except ValueError:
        # The worker will tell what is wrong, or that the batch itself allows it.
        return 0, sum(counts)
    return start + first, start + last


@dataclass(frozen=True, slots=True)
class Pending:
    """One rank's call under way.

    Attributes:
        rank: who was called.
        ref: its answer.
        rows_ref: the row count of its answer, where that comes as a value of its own.
        generation: the generation of the workers that it was sent to.
    """

    rank: int
    ref: Any
    rows_ref: Any
    generation: int
