"""What a plan tells about itself: objects that several ranks get, bytes that travel, a table of its calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from verl_protocol import DataProtoFuture
from verl_protocol.kinds import is_proto, is_tensor
from verl_protocol.wire import nbytes_of

from verl_dispatch.argument_parts import PaddedPart
from verl_dispatch.future_parts import FuturePart
from verl_dispatch.plan import CallPlan, RankCall, SharedObject

__all__ = [
    "arguments_of",
    "bytes_of_answers",
    "bytes_of_call",
    "bytes_of_calls",
    "inner_of",
    "plan_table",
    "shared_objects",
]


_BULKY_LENGTH = 1024


def shared_objects(calls: Sequence[RankCall]) -> dict[int, SharedObject]:
    """Objects that more than one of these calls carries, by `id`; the calls keep them alive."""
    # Where all ranks get the same arguments, their calls hold the very same containers.
    alike: dict[tuple[int, int], list[RankCall]] = {}
    for call in calls:
        alike.setdefault((id(call.args), id(call.kwargs)), []).append(call)
    ranks: dict[int, list[int]] = {}
    values: dict[int, Any] = {}
    for group in alike.values():
        for value in {id(value): value for value in _objects_of(group[0])}.values():
            values[id(value)] = value
            ranks.setdefault(id(value), []).extend(call.rank for call in group)
    return {
        key: SharedObject(values[key], tuple(sorted(found))) for key, found in ranks.items() if len(found) > 1
    }


def arguments_of(call: RankCall) -> Iterator[Any]:
    """Its arguments; replicas of one padded part have notes of their own, but the same batch."""
    for value in (*call.args, *call.kwargs.values()):
        yield value.value if isinstance(value, PaddedPart) else value


def _objects_of(call: RankCall) -> Iterator[Any]:
    for value in arguments_of(call):
        yield value
        yield from inner_of(value)


def inner_of(value: Any) -> Iterator[Any]:
    """What is worth storing once within an argument: values of the `meta_info` that all parts have."""
    if is_proto(value):
        yield from _bulky(value.meta_info)


def _bulky(value: Any) -> Iterator[Any]:
    if type(value) is dict:
        for entry in value.values():
            yield from _bulky(entry)
    elif type(value) in (list, tuple):
        for entry in value:
            yield from _bulky(entry)
    elif (
        is_tensor(value)
        or isinstance(value, np.ndarray)
        or (isinstance(value, (bytes, str)) and len(value) >= _BULKY_LENGTH)
    ):
        yield value


def bytes_of_call(call: RankCall) -> int:
    """Tensor and array bytes among one call's arguments; a future counts nothing."""
    return bytes_of_calls((call,))


def bytes_of_calls(calls: Sequence[RankCall]) -> int:
    """Tensor and array bytes among the arguments of all calls; what several of them carry counts once."""
    distinct = {id(value): value for call in calls for value in arguments_of(call)}
    return bytes_of_answers(list(distinct.values()))


def bytes_of_answers(values: Sequence[Any]) -> int:
    """Tensor and array bytes among these values."""
    return sum(nbytes_of(value) for value in values if not isinstance(value, (DataProtoFuture, FuturePart)))


_HEAD = ("rank", "rows", "pad", "bytes", "answers", "arguments")


def plan_table(plan: CallPlan) -> str:
    """One line for the call, one for each called rank, one for what they share."""
    fetched = set(plan.fetched_ranks)
    sizes = plan.nbytes()
    rows = [_row(call, size, call.rank in fetched) for call, size in zip(plan.calls, sizes, strict=True)]
    lines = [f"{plan.method or 'call'}: {plan.mode or 'custom'} over {plan.world_size} workers"]
    lines += _aligned([_HEAD, *rows])
    shared = plan.shared
    if shared:
        kinds = ", ".join(type(entry.value).__name__ for entry in shared.values())
        lines.append(f"shared by several ranks: {len(shared)} ({kinds})")
    if plan.order is not None:
        lines.append("rows are reordered to balance the ranks; the answers come back in input order")
    return "\n".join(lines)


def _row(call: RankCall, size: int, answers: bool) -> tuple[str, ...]:
    rows = "-" if call.rows is None else str(call.rows)
    shown = [*map(_shown, call.args), *(f"{name}={_shown(value)}" for name, value in call.kwargs.items())]
    return str(call.rank), rows, str(call.pad), str(size), "yes" if answers else "no", ", ".join(shown)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 20 else value[:17] + "...")
    return type(value).__name__


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(_HEAD) - 1)]
    return [
        "  "
        + "  ".join(
            [*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]
        ).rstrip()
        for row in rows
    ]
