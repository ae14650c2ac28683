"""ONE_TO_ONE: each argument says which rank gets what, and only those ranks are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any

from verl_dispatch.call_scope import Labels, current_labels
from verl_dispatch.collectors import LIST, DictCollector
from verl_dispatch.errors import EntryCountError, RankSetError
from verl_dispatch.markers import Broadcast
from verl_dispatch.plan import CallPlan

__all__ = ["collect_one_to_one", "dispatch_one_to_one", "plan_one_to_one"]

EXPECTED = "{rank: value}, or a list with one entry per worker"


def dispatch_one_to_one(group: Any, *args: Any, **kwargs: Any) -> CallPlan:
    """Each argument is `{rank: value}`, or a list with one entry per worker.

    Raises:
        RankSetError: arguments that name different ranks, ranks outside the world, or none at all.
        EntryCountError: a list of another length.
    """
    return plan_one_to_one(group.world_size, args, kwargs, current_labels())


def collect_one_to_one(group: Any, output: Any) -> Any:
    """The answers as they are."""
    return output


def plan_one_to_one(
    world_size: int, args: Sequence[Any], kwargs: Mapping[str, Any], labels: Labels
) -> CallPlan:
    """One call for each rank that the arguments name."""
    values = [*args, *kwargs.values()]
    named = {
        label: _by_rank(labels.method, label, value, world_size)
        for label, value in zip(labels.all(args, kwargs), values, strict=True)
        if not isinstance(value, Broadcast)
    }
    ranks = _common_ranks(labels.method, named, world_size)
    entries = iter(named.values())
    columns = [value if isinstance(value, Broadcast) else next(entries) for value in values]
    calls = {rank: _call(rank, columns, len(args), list(kwargs)) for rank in ranks}
    as_dict = any(isinstance(value, Mapping) for value in values)
    return CallPlan.of(calls).changed(collect=DictCollector(ranks) if as_dict else LIST)


def _by_rank(method: str, label: str, value: Any, world_size: int) -> Mapping[int, Any]:
    if isinstance(value, Mapping):
        return {_as_int(rank): entry for rank, entry in value.items()}
    if not isinstance(value, (list, tuple)):
        raise RankSetError(method, f"{label} must be {EXPECTED}, got {type(value).__name__}")
    if len(value) != world_size:
        raise EntryCountError(label, world_size, len(value))
    return dict(enumerate(value))


def _common_ranks(method: str, named: Mapping[str, Mapping[int, Any]], world_size: int) -> tuple[int, ...]:
    if not named:
        raise RankSetError(method, f"no argument names any rank; give at least one as {EXPECTED}")
    (first_label, first), *others = named.items()
    for label, entries in others:
        if set(entries) != set(first):
            raise RankSetError(
                method,
                f"{first_label} names ranks {_shown(first)}, but {label} names ranks {_shown(entries)}",
            )
    outside = [rank for rank in first if isinstance(rank, bool) or not _in_world(rank, world_size)]
    if outside or not first:
        raise RankSetError(
            method, f"{first_label} names ranks {_shown(first)}, but the group has ranks 0..{world_size - 1}"
        )
    return tuple(sorted(first))


def _as_int(rank: Any) -> Any:
    """The rank as a plain number; numpy's numbers are ranks too."""
    return int(rank) if type(rank) is not bool and isinstance(rank, Integral) else rank


def _in_world(rank: object, world_size: int) -> bool:
    return isinstance(rank, int) and 0 <= rank < world_size


def _shown(entries: Mapping[int, Any]) -> list[Any]:
    return sorted(entries, key=lambda rank: (not isinstance(rank, int), str(rank)))


def _call(
    rank: int, columns: Sequence[Any], num_args: int, names: Sequence[str]
) -> tuple[Sequence[Any], dict[str, Any]]:
    values = [column.value if isinstance(column, Broadcast) else column[rank] for column in columns]
    return values[:num_args], dict(zip(names, values[num_args:], strict=True))
