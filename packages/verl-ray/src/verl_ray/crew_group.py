"""The calls of a group on Ray: what `verl_dispatch.WorkerGroup` asks of a backend, carried out on a crew."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from verl_dispatch.options import DEFAULT_OPTIONS, CallOptions
from verl_dispatch.plan import CallPlan
from verl_dispatch.planners import all_ranks
from verl_dispatch.typed_methods import GroupWorker
from verl_dispatch.worker_group import WorkerGroup
from verl_protocol import DataProtoFuture

from verl_ray.actor_class import roles_of
from verl_ray.crew import Crew
from verl_ray.executor import Executor, Pending
from verl_ray.futures import data_future
from verl_ray.retired import refuse_retired
from verl_ray.unread import await_unread, still_open, still_running, unread_behind

if TYPE_CHECKING:
    from ray import ObjectRef

__all__ = ["CrewGroup"]

_HANDED_ON = DEFAULT_OPTIONS.changed(blocking=False)


class CrewGroup(WorkerGroup[GroupWorker, "ObjectRef[Any]"]):
    """A worker group on a crew, or on one role of it; how the crew comes about is a subclass's business."""

    _crew: Crew
    _executor: Executor
    _known_generation: int

    def _adopt(self, crew: Crew, user_class: type, role: str | None) -> None:
        """Work on this crew: on all of each worker, or on one role of it."""
        self._crew, self._known_generation = crew, crew.generation
        self._executor = Executor(crew, user_class, role)
        self._world_size = crew.world_size
        self._bind_worker_method(user_class if role is None else roles_of(user_class)[role])

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> list[ObjectRef[Any]]:
        """Runs any method, registered or not, with the same arguments on every worker; an ObjectRef each."""
        plan = self._raw_plan(method_name, all_ranks(self.world_size), args, kwargs)
        return self._futures(plan, self._send(plan, _HANDED_ON))

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> ObjectRef[Any]:
        """Runs any method, registered or not, on rank 0; its ObjectRef, at once."""
        plan = self._raw_plan(method_name, (0,), args, kwargs)
        ref: ObjectRef[Any] = self._futures(plan, self._send(plan, _HANDED_ON))[0]
        return ref

    def _send(self, plan: CallPlan, options: CallOptions) -> Sequence[Pending]:
        refuse_retired(plan.calls)
        return self._executor.send(plan, options)

    def _wait(self, plan: CallPlan, pendings: Sequence[Pending], timeout_s: float | None) -> list[Any]:
        begun_at = time.monotonic()
        answers = self._executor.wait(plan, pendings, timeout_s)
        await_unread(plan, timeout_s, begun_at)
        return answers

    def _stream(
        self, plan: CallPlan, pendings: Sequence[Pending], timeout_s: float | None
    ) -> Iterator[tuple[int, Any]]:
        begun_at = time.monotonic()
        yield from self._executor.stream(plan, pendings, timeout_s)
        await_unread(plan, timeout_s, begun_at)

    def _done(self, plan: CallPlan, pendings: Sequence[Pending]) -> bool:
        return self._executor.done(pendings) and not still_running(unread_behind(plan))

    def _futures(self, plan: CallPlan, pendings: Sequence[Pending]) -> list[Any]:
        by_rank = {pending.rank: pending.ref for pending in pendings}
        return [by_rank[rank] for rank in plan.fetched_ranks]

    def _data_future(self, plan: CallPlan, pendings: Sequence[Pending]) -> DataProtoFuture:
        return data_future(self._crew, plan, pendings, still_open(unread_behind(plan)))

    def _check_usable(self, method: str) -> None:
        self._crew.check_usable(method)
        if self._known_generation != self._crew.generation:
            # What earlier workers said about their meshes says nothing about these.
            self._known_generation = self._crew.generation
            self.forget_meshes()
