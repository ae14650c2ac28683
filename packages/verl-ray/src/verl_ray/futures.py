"""Results that stay with the workers: what a non-blocking call of a batch mode returns, and how it is handed
on.

Each part is one rank's answer, its row count is a second value of the same call. The driver fetches neither;
the worker that gets a piece of the future learns the counts and fetches only the parts that its rows overlap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from verl_dispatch.collectors import BatchCollector
from verl_dispatch.plan import CallPlan
from verl_protocol import DataProtoFuture

from verl_ray.direct_refs import get_answers
from verl_ray.failures import survey
from verl_ray.sealed import Arrived, SealedFuture, opened

if TYPE_CHECKING:
    from verl_ray.crew import Crew
    from verl_ray.executor import Pending

__all__ = ["AnswerPart", "BatchFuture", "data_future", "fetch_answers"]


class AnswerPart:
    """One rank's answer, or its row count, as a part of a `DataProtoFuture`.

    In the driver it knows the workers that make it, and is refused once they have been restarted. It is not
    there before `unread` are: the same call on ranks whose answers nobody reads, but which must not fail. A
    copy that was sent elsewhere is a bare reference.
    """

    __slots__ = ("_generation", "crew", "method", "rank", "ref", "unread")

    def __init__(
        self,
        ref: Any,
        rank: int = 0,
        crew: Crew | None = None,
        generation: int = 0,
        method: str = "",
        unread: tuple[AnswerPart, ...] = (),
    ) -> None:
        self.ref, self.rank, self.method, self.unread = ref, rank, method, unread
        # Keeps the workers alive until they have made it, also where their group has been dropped.
        self.crew, self._generation = crew, generation

    @property
    def fresh_ref(self) -> Any:
        """The reference.

        Raises:
            StaleFutureError: the workers were restarted since.
        """
        if self.crew is not None:
            self.crew.check_generation(self.method, self._generation)
        return self.ref

    def result(self, timeout: float | None = None) -> Any:
        """The value.

        Raises:
            StaleFutureError: the group was restarted since.
            TimeoutError: it was not there in time.
        """
        return opened(fetch_answers([self], timeout)[0])

    def __await__(self) -> Any:
        if self.crew is None:
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
    for crew in {id(part.crew): part.crew for part in parts if part.crew is not None}.values():
        failure = _failure(crew, [part for part in parts if part.crew is crew])
        if failure is not None:
            return failure
    return None


def _failure(crew: Crew, parts: Sequence[AnswerPart]) -> Exception | None:
    """The error of the call that failed among those that made these parts; None if they are fine by now."""
    failed = survey([part.ref for part in parts], crew.grace_s).errors
    if not failed:
        return None
    method = parts[min(failed)].method
    call = [part for part in parts if part.method == method]
    found = survey([part.ref for part in call], crew.grace_s)
    return crew.failure(method, [part.rank for part in call], found, crew.generation)


def _unread_beside(parts: Sequence[Any]) -> list[AnswerPart]:
    """The unread answers of these parts; those of one call share them."""
    calls = {id(part.unread): part.unread for part in parts if isinstance(part, AnswerPart)}
    return list({id(part): part for unread in calls.values() for part in unread}.values())


def data_future(
    crew: Crew, plan: CallPlan, pendings: Sequence[Pending], behind: Sequence[AnswerPart] = ()
) -> DataProtoFuture[Any]:
    """The future of a batch mode's result.

    Args:
        behind: answers of earlier calls that nobody reads, and without which this result is not there.
    """

    def part(pending: Pending, ref: Any, unread: tuple[AnswerPart, ...] = ()) -> AnswerPart:
        return AnswerPart(ref, pending.rank, crew, pending.generation, plan.method, unread)

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
