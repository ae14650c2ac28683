"""Modes of the user's own: what their functions return is checked, then treated like everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from verl_protocol import DataProtoFuture

from verl_dispatch.answer_rows import in_input_order, trimmed
from verl_dispatch.batches import is_batch
from verl_dispatch.call_scope import call_scope
from verl_dispatch.collectors import CollectKind
from verl_dispatch.errors import CallOptionError, DispatchResultError
from verl_dispatch.layout import RowLayout
from verl_dispatch.plan import CallPlan, RankCall
from verl_dispatch.split import SplitList

if TYPE_CHECKING:
    from verl_dispatch.planners import CallContext

__all__ = ["CustomCollector", "plan_custom"]


@contextmanager
def _noted(function: str, method: str) -> Iterator[None]:
    """Has an error of the user's function say which one it was."""
    try:
        yield
    except Exception as error:
        error.add_note(f"in the {function} of the custom mode of method {method!r}")
        raise


@dataclass(frozen=True, slots=True)
class CustomCollector:
    """Calls the user's `collect_fn(group, outputs)`; padding and order of batches split for it are undone.

    With `single`, only rank 0 was called and `collect_fn` gets its answer itself.
    """

    group: Any
    collect_fn: Callable[..., Any]
    method: str
    ranks: tuple[int, ...]
    layout: RowLayout | None = None
    single: bool = False
    kind: ClassVar[CollectKind] = "custom"

    def collect(self, outputs: Sequence[Any]) -> Any:
        """What `collect_fn` makes of the answers, in input order."""
        if self.layout is None:
            return self._made_of(outputs)
        result = self._made_of(trimmed(self.method, self.ranks, self.layout, outputs))
        return in_input_order(result, self.layout.order) if is_batch(result) else result

    def arrange(self, futures: Sequence[Any]) -> Any:
        """What `collect_fn` makes of the futures; the workers have taken the padding off."""
        result = self._made_of(futures)
        order = self.layout.order if self.layout else None
        if order is None or not isinstance(result, DataProtoFuture):
            return result
        return DataProtoFuture(_InInputOrder(order), [result])

    def _made_of(self, outputs: Sequence[Any]) -> Any:
        with _noted("collect_fn", self.method):
            return self.collect_fn(self.group, outputs[0] if self.single else list(outputs))

    def part(self, index: int, output: Any) -> Any:
        """One answer, without padding rows."""
        if self.layout is None:
            return output
        return self.layout.trim(self.method, self.ranks[index], index).apply(output)

    def after_worker_trims(self) -> CustomCollector:
        """The same, without padding to take off."""
        return self if self.layout is None else replace(self, layout=self.layout.without_padding())


@dataclass(frozen=True, slots=True)
class _InInputOrder:
    order: tuple[int, ...]

    def __call__(self, values: Sequence[Any]) -> Any:
        return in_input_order(values[0], self.order)


def plan_custom(
    context: CallContext,
    dispatch_fn: Callable[..., Any],
    collect_fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    to_rank_zero: bool,
) -> CallPlan:
    """The calls that the user's `dispatch_fn` asks for.

    Raises:
        DispatchResultError: it returned nothing that a call per worker can be made of.
    """
    scoped = call_scope(context.method.labels, context.options)
    with _noted("dispatch_fn", context.method.name), scoped as scope:
        result = dispatch_fn(context.group, *args, **kwargs)
    if context.options.splits and not scope.asked:
        problem = f"the dispatch_fn of {context.method.name!r} calls no function here that splits batches"
        raise CallOptionError(context.options.splits, problem)
    if isinstance(result, CallPlan):
        plan, layout = _checked_plan(context, result), None
    else:
        lists, named = _checked_pair(context.mode, result)
        layout = _layout_among([*lists, *named.values()])
        plan = (
            _rank_zero_plan(lists, named) if to_rank_zero else _plan_of_lists(context, lists, named, layout)
        )
    if layout is not None and not layout.changes_answers:
        layout = None
    single = to_rank_zero and not isinstance(result, CallPlan)
    name, ranks = context.method.name, plan.fetched_ranks
    return plan.changed(
        collect=CustomCollector(context.group, collect_fn, name, ranks, layout, single),
        order=layout.order if layout else None,
    )


def _checked_plan(context: CallContext, plan: CallPlan) -> CallPlan:
    called = plan.called_ranks
    world = range(context.group.world_size)
    if not called or len(set(called)) < len(called) or any(rank not in world for rank in called):
        problem = f"the plan calls ranks {list(called)}, the group has ranks 0..{len(world) - 1}"
        raise DispatchResultError(context.mode, problem)
    calls = tuple(sorted(plan.calls, key=lambda call: call.rank))
    fetched = plan.fetched_ranks or tuple(call.rank for call in calls)
    if not set(fetched) <= set(called):
        raise DispatchResultError(
            context.mode, f"the plan fetches ranks {list(fetched)}, but calls {list(called)}"
        )
    return plan.changed(calls=calls, fetched_ranks=fetched)


def _checked_pair(mode: str, result: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise DispatchResultError(mode, f"it returned {type(result).__name__}")
    args, kwargs = result
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise DispatchResultError(mode, f"it returned ({type(args).__name__}, {type(kwargs).__name__})")
    return args, kwargs


def _rank_zero_plan(args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallPlan:
    return CallPlan((RankCall(0, tuple(args), dict(kwargs)),), fetched_ranks=(0,))


def _plan_of_lists(
    context: CallContext, args: Sequence[Any], kwargs: Mapping[str, Any], layout: RowLayout | None
) -> CallPlan:
    size = context.group.world_size
    for label, entries in [
        *((f"argument {index}", entry) for index, entry in enumerate(args)),
        *kwargs.items(),
    ]:
        if not isinstance(entries, (list, tuple)):
            raise DispatchResultError(context.mode, f"{label} is {type(entries).__name__}, not a list")
        if len(entries) != size:
            raise DispatchResultError(context.mode, f"{label} has {len(entries)} entries for {size} workers")
    calls = [
        RankCall(
            rank,
            tuple([entries[rank] for entries in args]),
            {name: entries[rank] for name, entries in kwargs.items()},
            layout.rows[rank] if layout else None,
            layout.pad[rank] if layout else 0,
        )
        for rank in range(size)
    ]
    return CallPlan(tuple(calls), fetched_ranks=tuple(range(size)))


def _layout_among(entries: Sequence[Any]) -> RowLayout | None:
    layouts = [entry.layout for entry in entries if isinstance(entry, SplitList) and entry.layout is not None]
    changing = [layout for layout in layouts if layout.changes_answers]
    return next(iter(changing or layouts), None)
