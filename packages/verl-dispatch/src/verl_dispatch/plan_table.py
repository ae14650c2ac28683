"""A plan as a small table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_dispatch.plan import CallPlan, RankCall

__all__ = ["plan_table"]

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
