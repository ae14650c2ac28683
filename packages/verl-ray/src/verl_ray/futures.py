"""Results that stay with the workers: what a non-blocking call of a batch mode returns, and how it is handed
on.

Each part is one rank's answer, its row count is a second value of the same call. The driver fetches neither;
the worker that gets a piece of the future learns the counts and fetches only the parts that its rows overlap.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ray
from verl_dispatch.collectors import BatchCollector
from verl_dispatch.plan import CallPlan
from verl_protocol import DataProtoFuture

if TYPE_CHECKING:
    from verl_ray.crew import Crew
    from verl_ray.executor import Pending

__all__ = ["AnswerPart", "data_future"]


class AnswerPart:
    """One rank's answer, or its row count, as a part of a `DataProtoFuture`.

    In the driver it knows the workers that make it, and is refused once they have been restarted. A copy
    that was sent elsewhere is a bare reference.
    """

    __slots__ = ("_crew", "_generation", "_method", "ref")

    def __init__(self, ref: Any, crew: Crew | None = None, generation: int = 0, method: str = "") -> None:
        self.ref = ref
        self._crew = None if crew is None else weakref.ref(crew)
        self._generation, self._method = generation, method

    def check_fresh(self) -> None:
        """Refuse a result of workers that are no more.

        Raises:
            StaleFutureError: the group was restarted since.
        """
        crew = None if self._crew is None else self._crew()
        if crew is not None:
            crew.check_generation(self._method, self._generation)

    def result(self, timeout: float | None = None) -> Any:
        """The value.

        Raises:
            StaleFutureError: the group was restarted since.
            TimeoutError: it was not there in time.
        """
        self.check_fresh()
        return ray.get(self.ref, timeout=timeout)

    def __await__(self) -> Any:
        self.check_fresh()
        return self.ref.__await__()

    def __reduce__(self) -> tuple[Any, ...]:
        self.check_fresh()
        return AnswerPart, (self.ref,)


def data_future(crew: Crew, plan: CallPlan, pendings: Sequence[Pending]) -> DataProtoFuture[Any]:
    """The future of a batch mode's result."""
    by_rank = {pending.rank: pending for pending in pendings}
    answers = [by_rank[rank] for rank in plan.fetched_ranks]
    return DataProtoFuture(
        plan.collect.collect,
        [AnswerPart(each.ref, crew, each.generation, plan.method) for each in answers],
        row_counts=[AnswerPart(each.rows_ref, crew, each.generation, plan.method) for each in answers],
        row_aligned=_joins_in_order(plan),
    )


def _joins_in_order(plan: CallPlan) -> bool:
    """Whether the result is the answers' rows, one rank after the other."""
    collect = plan.collect
    return isinstance(collect, BatchCollector) and (
        collect.layout is None or not collect.layout.changes_answers
    )
