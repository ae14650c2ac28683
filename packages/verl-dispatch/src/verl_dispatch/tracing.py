"""Times of calls, stage by stage and rank by rank; off unless a `with group.trace() as ...` is open."""

from __future__ import annotations

import time
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from verl_dispatch.group_method import GroupMethod

__all__ = ["CallRecord", "CallTimer", "CallTrace", "current_timer"]


@dataclass(slots=True)
class CallTimer:
    """Taken along by a traced call: backends say when each rank has answered.

    Attributes:
        started: `time.perf_counter()` when the call was sent.
        answered: rank -> seconds from sending to its answer.
        bytes_in: bytes of the answers, where the backend knows better than a walk over them.
    """

    started: float = 0.0
    answered: dict[int, float] = field(default_factory=dict)
    bytes_in: int | None = None

    def rank_answered(self, rank: int) -> None:
        """Notes that this rank's answer is there, or its failure."""
        self.answered.setdefault(rank, time.perf_counter() - self.started)


_TIMER: ContextVar[CallTimer | None] = ContextVar("verl_dispatch_timer", default=None)


def current_timer() -> CallTimer | None:
    """The timer of the traced call that is running in this context, or None."""
    return _TIMER.get()


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Where the time of one call went, in seconds, and how many tensor bytes travelled.

    Attributes:
        method: name of the method.
        dispatch_s: planning.
        put_s: handing the arguments to the backend, which may wait for the row counts of futures.
        wait_s: waiting for the answers, fetching included.
        collect_s: putting the answers together.
        bytes_out: bytes of arguments; what several ranks share counts once.
        bytes_in: bytes of fetched answers.
        per_rank_s: for each called rank the time from sending to its answer.
        ranks: the called ranks, in the order of `per_rank_s`.
    """

    method: str
    dispatch_s: float
    put_s: float
    wait_s: float
    collect_s: float
    bytes_out: int
    bytes_in: int
    per_rank_s: tuple[float, ...]
    ranks: tuple[int, ...]

    @property
    def slowest_rank(self) -> int:
        """The rank that took longest."""
        return max(zip(self.per_rank_s, self.ranks, strict=True))[1]

    @property
    def total_s(self) -> float:
        """The whole call."""
        return self.dispatch_s + self.put_s + self.wait_s + self.collect_s

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, and `slowest_rank`."""
        return {**asdict(self), "slowest_rank": self.slowest_rank}


class CallTrace:
    """The records of the blocking calls made while `with group.trace() as trace:` is open."""

    def __init__(self, recorders: list[CallTrace]) -> None:
        self.calls: list[CallRecord] = []
        self._recorders = recorders

    def __enter__(self) -> Self:
        self._recorders.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._recorders.remove(self)


def traced_call(
    group: Any, method: GroupMethod[..., Any, Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A blocking call whose stages are timed."""
    timer = CallTimer()
    token = _TIMER.set(timer)
    try:
        return _run(group, method, args, kwargs, timer)
    finally:
        _TIMER.reset(token)


def _run(
    group: Any,
    method: GroupMethod[..., Any, Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    timer: CallTimer,
) -> Any:
    from verl_dispatch.plan_facts import bytes_of_answers, bytes_of_calls

    begin = time.perf_counter()
    plan = method._usable_plan(args, kwargs)
    timer.started = time.perf_counter()
    pendings = group._send(plan, method._awaited)
    sent = time.perf_counter()
    outputs = group._wait(plan, pendings, method._options.timeout_s)
    waited = time.perf_counter()
    result = plan.collect.collect(outputs)
    ended = time.perf_counter()
    record = CallRecord(
        method=plan.method,
        dispatch_s=timer.started - begin,
        put_s=sent - timer.started,
        wait_s=waited - sent,
        collect_s=ended - waited,
        bytes_out=bytes_of_calls(plan.calls),
        bytes_in=bytes_of_answers(outputs) if timer.bytes_in is None else timer.bytes_in,
        per_rank_s=tuple(timer.answered.get(rank, waited - timer.started) for rank in plan.called_ranks),
        ranks=plan.called_ranks,
    )
    for trace in group._recorders:
        trace.calls.append(record)
    return result
