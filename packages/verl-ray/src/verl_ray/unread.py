"""Ranks whose answers nobody reads: their failures show all the same, also to a caller who only hands a
future on.

In a mesh one rank of several answers for a shard of the rows, and the others are only waited for. A future
knows them; so does the call that the future is handed to, which succeeds only if they did.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from verl_dispatch.errors import CallTimeout
from verl_dispatch.plan import CallPlan
from verl_protocol import DataProtoFuture

from verl_ray.failures import has_failed
from verl_ray.future_needs import futures_of
from verl_ray.futures import AnswerPart, fetch_answers

__all__ = ["await_unread", "still_open", "still_running", "unread_behind"]


def unread_behind(plan: CallPlan) -> tuple[AnswerPart, ...]:
    """The answers that nobody reads of the calls whose futures this plan hands on."""
    found: dict[int, AnswerPart] = {}
    for part in _parts_handed_on(plan):
        found |= {id(each): each for each in part.unread}
    return tuple(found.values())


def still_open(parts: Sequence[AnswerPart]) -> tuple[AnswerPart, ...]:
    """Those that may still fail, or have failed: in a chain of futures the others need not be remembered."""
    running = set(still_running(parts))
    return tuple(part for part in parts if part in running or has_failed(part.ref))


def still_running(parts: Sequence[AnswerPart]) -> list[AnswerPart]:
    """Those that are not there yet."""
    if not parts:
        return []
    refs = [part.ref for part in parts]
    waiting = set(ray.wait(refs, num_returns=len(refs), timeout=0, fetch_local=False)[1])
    return [part for part in parts if part.ref in waiting]


def await_unread(plan: CallPlan, timeout_s: float | None, begun_at: float) -> None:
    """Wait until all answers that nobody reads are there, behind the futures of this plan.

    Args:
        timeout_s: seconds that the call of the plan may take; None sets no limit.
        begun_at: when the wait for it began, on the clock of `time.monotonic`.

    Raises:
        WorkerGroupError: a rank failed in the call that made the future.
        CallTimeout: a rank had not answered in time.
    """
    parts = unread_behind(plan)
    if not parts:
        return
    left = None if timeout_s is None else max(0.0, begun_at + timeout_s - time.monotonic())
    try:
        fetch_answers(parts, left)
    except GetTimeoutError:
        raise _late(parts, timeout_s or 0.0) from None


def _late(parts: Sequence[AnswerPart], timeout_s: float) -> CallTimeout:
    """The error for the call whose answers are the first that are missing."""
    waiting = still_running(parts)
    first = (waiting or parts)[0]
    ranks = [part.rank for part in waiting if part.crew is first.crew and part.method == first.method]
    name = "" if first.crew is None else first.crew.name
    return CallTimeout(name, first.method, timeout_s, ranks)


def _parts_handed_on(plan: CallPlan) -> Iterator[AnswerPart]:
    for future in futures_of(plan):
        yield from _answer_parts(future.futures)


def _answer_parts(parts: Sequence[Any]) -> Iterator[AnswerPart]:
    for part in parts:
        if isinstance(part, AnswerPart):
            yield part
        elif isinstance(part, DataProtoFuture):
            yield from _answer_parts(part.futures)
