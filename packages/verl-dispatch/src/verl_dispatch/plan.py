"""What a call will do, as a value: one explicit call per rank, who answers, how answers are put together.

A plan is made without any I/O, shown by `group.method.plan(...)`, and carried out by a backend.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from verl_dispatch.collectors import LIST, Collector

__all__ = ["CallPlan", "RankCall", "SharedObject"]

NO_KWARGS: Mapping[str, Any] = {}


class _RankFields(NamedTuple):
    rank: int
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = NO_KWARGS
    rows: int | None = None
    pad: int = 0


class RankCall(_RankFields):
    """The call that one rank gets; a tuple, because a call on many workers makes many of them.

    Attributes:
        rank: who is called.
        args: positional arguments, ready to pass.
        kwargs: keyword arguments, ready to pass.
        rows: rows of the split batches that this rank gets, padding included; None when nothing was split or
            a future does not know its rows yet.
        pad: how many of `rows`, the last ones, are padding.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankCall) and same_value(_call_facts(self), _call_facts(other))

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True)
class SharedObject:
    """One object that several ranks of a plan get: a backend stores it once, if it is large."""

    value: Any
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """One call on a group, spelled out.

    A custom `dispatch_fn` may return one that calls only some ranks: `CallPlan.of({rank: (args, kwargs)})`.

    Attributes:
        calls: one entry per called rank, in rank order.
        method: name of the method.
        mode: name of the dispatch mode.
        world_size: number of workers in the group.
        fetched_ranks: ranks whose answers are fetched, in the order in which `collect` takes them.
        collect: puts the answers together; `collect.collect(answers)`.
        order: with balanced rows, the input row at each position of the parts laid end to end; else None.
        read_only: workers may share one read-only copy of what several ranks get.

    Example:
        >>> plan = CallPlan.of({1: ((7,), {}), 0: ((8,), {})})
        >>> [(call.rank, call.args) for call in plan.calls], plan.fetched_ranks
        ([(0, (8,)), (1, (7,))], (0, 1))
    """

    calls: tuple[RankCall, ...]
    method: str = ""
    mode: str = ""
    world_size: int = 0
    fetched_ranks: tuple[int, ...] = ()
    collect: Collector = LIST
    order: tuple[int, ...] | None = None
    read_only: bool = False

    @classmethod
    def of(cls, calls: Mapping[int, tuple[Sequence[Any], Mapping[str, Any]]]) -> CallPlan:
        """A plan that calls these ranks with these `(args, kwargs)` and fetches all answers in rank order."""
        ranked = sorted(calls.items())
        return cls(
            calls=tuple(RankCall(rank, tuple(args), dict(kwargs)) for rank, (args, kwargs) in ranked),
            fetched_ranks=tuple(rank for rank, _ in ranked),
        )

    @property
    def called_ranks(self) -> tuple[int, ...]:
        """Ranks that are called, in the order of `calls`."""
        return tuple([call.rank for call in self.calls])

    @property
    def fetches_all(self) -> bool:
        """Whether every called rank answers, in the order of `calls`."""
        return self.fetched_ranks == self.called_ranks

    @property
    def pad(self) -> int:
        """Padding rows over all ranks."""
        return sum(call.pad for call in self.calls)

    @property
    def shared(self) -> dict[int, SharedObject]:
        """Objects that more than one rank gets, by `id`: arguments, and values of `meta_info`."""
        from verl_dispatch.plan_facts import shared_objects

        return shared_objects(self.calls)

    def nbytes(self) -> tuple[int, ...]:
        """Tensor and array bytes among each called rank's arguments, in the order of `calls`."""
        from verl_dispatch.plan_facts import bytes_of_call

        return tuple(bytes_of_call(call) for call in self.calls)

    def changed(self, **changes: Any) -> CallPlan:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallPlan) and same_value(_plan_facts(self), _plan_facts(other))

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RankCall]:
        return iter(self.calls)

    def __str__(self) -> str:
        from verl_dispatch.plan_facts import plan_table

        return plan_table(self)


def _call_facts(call: RankCall) -> tuple[Any, ...]:
    return call.rank, call.args, dict(call.kwargs), call.rows, call.pad


def _plan_facts(plan: CallPlan) -> tuple[Any, ...]:
    calls = [_call_facts(call) for call in plan.calls]
    return (
        plan.method,
        plan.mode,
        plan.world_size,
        plan.fetched_ranks,
        plan.collect,
        plan.order,
        plan.read_only,
        calls,
    )


def same_value(one: object, other: object) -> bool:
    """Total equality: tensors, arrays, NaN and batches compared by value, never ambiguous."""
    from verl_protocol.equality import equal

    return equal(one, other)
