"""Calls whose answers the driver never sees: the workers take the padding off themselves."""

from __future__ import annotations

from typing import Any

from verl_dispatch.argument_parts import PaddedPart
from verl_dispatch.batches import is_batch
from verl_dispatch.collectors import LIST
from verl_dispatch.plan import CallPlan, RankCall
from verl_dispatch.row_trim import RowTrim

__all__ = ["with_worker_trims"]


def with_worker_trims(plan: CallPlan) -> CallPlan:
    """The plan of a non-blocking call: every padded call carries the note how its answer is trimmed."""
    if not plan.pad or plan.collect is LIST:
        return plan
    calls = tuple([_with_trim(plan.method, call) if call.pad else call for call in plan.calls])
    return plan.changed(calls=calls, collect=plan.collect.after_worker_trims())


def _with_trim(method: str, call: RankCall) -> RankCall:
    trim = RowTrim(method, call.rank, call.rows or 0, call.pad)
    args, kwargs = list(call.args), dict(call.kwargs)
    _wrap_first_batch(args, kwargs, trim)
    return call._replace(args=tuple(args), kwargs=kwargs)


def _wrap_first_batch(args: list[Any], kwargs: dict[str, Any], trim: RowTrim) -> None:
    for index, value in enumerate(args):
        if is_batch(value):
            args[index] = PaddedPart(value, trim)
            return
    for name, value in kwargs.items():
        if is_batch(value):
            kwargs[name] = PaddedPart(value, trim)
            return
