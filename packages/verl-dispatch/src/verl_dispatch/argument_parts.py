"""What the worker does with its arguments before the method runs, and with the answer after it.

Most parts arrive ready. Two kinds are finished at the worker: futures, so that only the rows needed are
fetched and only where they are needed; and padded parts of calls whose answers the driver never sees.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

from verl_protocol import DataProtoFuture
from verl_protocol.errors import UnevenChunksError

from verl_dispatch.batches import is_batch
from verl_dispatch.collectors import LIST
from verl_dispatch.future_parts import FuturePart, LazyPart, told_of_call
from verl_dispatch.layout import RowTrim
from verl_dispatch.plan import CallPlan, RankCall

__all__ = ["PaddedPart", "with_worker_trims"]


@dataclass(frozen=True, slots=True)
class PaddedPart:
    """A part of a batch with padding rows at its end, whose answer is trimmed at the worker."""

    value: Any
    trim: RowTrim


_UNRESOLVED = (DataProtoFuture, PaddedPart, FuturePart)
Trim: TypeAlias = RowTrim | LazyPart
Resolved: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Trim | None]


def has_unresolved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is still to be finished at the worker: a future, or a padded part."""
    for value in args:
        if isinstance(value, _UNRESOLVED):
            return True
    return bool(kwargs) and any(isinstance(value, _UNRESOLVED) for value in kwargs.values())


def resolve_parts(args: tuple[Any, ...], kwargs: dict[str, Any], materialize: bool) -> Resolved:
    """The arguments as the method wants them, and how its answer is to be trimmed."""
    trims: list[Trim] = []
    values = tuple([_resolve(value, materialize, trims) for value in args])
    named = {name: _resolve(value, materialize, trims) for name, value in kwargs.items()}
    return values, named, trims[0] if trims else None


async def resolve_parts_async(args: tuple[Any, ...], kwargs: dict[str, Any], materialize: bool) -> Resolved:
    """`resolve_parts` that awaits futures instead of blocking the event loop."""
    trims: list[Trim] = []
    values = tuple([await _resolve_async(value, materialize, trims) for value in args])
    named = {name: await _resolve_async(value, materialize, trims) for name, value in kwargs.items()}
    return values, named, trims[0] if trims else None


def trim_answer(answer: Any, trim: Trim | None) -> Any:
    """The answer without the rows that padding caused."""
    return answer if trim is None else trim.apply(answer)


def _resolve(value: Any, materialize: bool, trims: list[Trim]) -> Any:
    if isinstance(value, FuturePart):
        return _resolve_part(value, materialize, trims)
    if isinstance(value, PaddedPart):
        trims.append(value.trim)
        return value.value
    if not materialize or not isinstance(value, DataProtoFuture):
        return value
    try:
        return value.get()
    except UnevenChunksError as error:
        raise told_of_call(value, error) from None


async def _resolve_async(value: Any, materialize: bool, trims: list[Trim]) -> Any:
    if isinstance(value, FuturePart) and materialize:
        return await asyncio.to_thread(_resolve_part, value, materialize, trims)
    if isinstance(value, DataProtoFuture) and materialize:
        try:
            return await value
        except UnevenChunksError as error:
            raise told_of_call(value, error) from None
    return _resolve(value, materialize, trims)


def _resolve_part(part: FuturePart, materialize: bool, trims: list[Trim]) -> Any:
    if not materialize:
        lazy = LazyPart(part)
        trims.append(lazy)
        return lazy.future()
    value, trim = part.resolve()
    if trim is not None:
        trims.append(trim)
    return value


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
