"""Ranks that run one after the other, in the thread of the caller."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from verl_dispatch.local_answer import LocalCall
from verl_dispatch.local_rank import LocalRank, ReadOnlyCopies, failure_of
from verl_dispatch.plan import CallPlan
from verl_dispatch.process_group import LonelyProcessGroup, ProcessGroup
from verl_dispatch.rank_environment import RankEnvironment
from verl_dispatch.rank_info import RankInfo

__all__ = ["TurnEngine"]

_REASON = (
    "the ranks of this in-process group run one after the other; "
    "make the group with concurrent=True to give each rank a thread"
)


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
                except (Exception, SystemExit) as error:
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
