"""Planners: one pure function per mode, from the arguments of a call to one explicit call per rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from operator import index
from typing import Any, ClassVar, TypeAlias

from verl_protocol import DataProtoFuture
from verl_protocol.errors import InvalidTypeError

from verl_dispatch.errors import CallOptionError, InvalidModeError
from verl_dispatch.methods.functions import (
    NdCollect,
    NdDispatch,
    dispatch_direct_rollout_method,
    function_first,
    plan_one_to_one,
)
from verl_dispatch.methods.registered import RegisteredMethod
from verl_dispatch.methods.registry import (
    PREDEFINED_PAIRS,
    check_execute_mode,
    check_pair,
    mode_name,
    rank_selector,
)
from verl_dispatch.modes import Broadcast, Execute, unwrapped
from verl_dispatch.planning.batches import is_batch
from verl_dispatch.planning.collectors import (
    LIST,
    SINGLE,
    BatchCollector,
    CollectKind,
    DictCollector,
    TrimmedListCollector,
    in_input_order,
    trimmed,
)
from verl_dispatch.planning.layout import RowLayout
from verl_dispatch.planning.mesh import mesh_of
from verl_dispatch.planning.options import CallOptions, call_scope
from verl_dispatch.planning.plan import CallPlan, RankCall
from verl_dispatch.planning.split import SplitArguments, SplitList, split_batches, split_entries

__all__ = ["CallContext", "CustomCollector", "Planner", "choose_planner", "plan_custom"]


# --- Modes of the user's own: what their functions return is checked, then treated like everything else ---


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
        InvalidModeError: it returned nothing that a call per worker can be made of.
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


def _bad_result(mode: str, problem: str) -> InvalidModeError:
    return InvalidModeError(
        f"dispatch_fn of mode {mode} must return (args, kwargs) with one entry per worker in every list, "
        f"or a CallPlan: {problem}"
    )


def _checked_plan(context: CallContext, plan: CallPlan) -> CallPlan:
    called = plan.called_ranks
    world = range(context.group.world_size)
    if not called or len(set(called)) < len(called) or any(rank not in world for rank in called):
        problem = f"the plan calls ranks {list(called)}, the group has ranks 0..{len(world) - 1}"
        raise _bad_result(context.mode, problem)
    calls = tuple(sorted(plan.calls, key=lambda call: call.rank))
    fetched = plan.fetched_ranks or tuple(call.rank for call in calls)
    if not set(fetched) <= set(called):
        raise _bad_result(context.mode, f"the plan fetches ranks {list(fetched)}, but calls {list(called)}")
    return plan.changed(calls=calls, fetched_ranks=fetched)


def _checked_pair(mode: str, result: Any) -> tuple[Sequence[Any], Mapping[str, Any]]:
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise _bad_result(mode, f"it returned {type(result).__name__}")
    args, kwargs = result
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise _bad_result(mode, f"it returned ({type(args).__name__}, {type(kwargs).__name__})")
    return args, kwargs


def _rank_zero_plan(args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallPlan:
    return CallPlan((RankCall(0, tuple(args), dict(kwargs)),), fetched_ranks=(0,))


def _plan_of_lists(
    context: CallContext, args: Sequence[Any], kwargs: Mapping[str, Any], layout: RowLayout | None
) -> CallPlan:
    size = context.group.world_size
    for label, entries in [
        *((f"argument {place}", entry) for place, entry in enumerate(args)),
        *kwargs.items(),
    ]:
        if not isinstance(entries, (list, tuple)):
            raise _bad_result(context.mode, f"{label} is {type(entries).__name__}, not a list")
        if len(entries) != size:
            raise _bad_result(context.mode, f"{label} has {len(entries)} entries for {size} workers")
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


# --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class CallContext:
    """Where a call is planned: the group, the method, and what the caller asked for."""

    group: Any
    method: RegisteredMethod
    options: CallOptions
    mode: str
    read_only: bool

    @classmethod
    def of(cls, group: Any, method: RegisteredMethod, options: CallOptions) -> CallContext:
        """The context of all calls of one method with these options."""
        read_only = method.options.read_only if options.read_only is None else options.read_only
        return cls(group, method, options, mode_name(method.dispatch_mode), read_only)


_new_tuple = tuple.__new__
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = Mapping[str, Any]
Planner: TypeAlias = Callable[[CallContext, Args, Kwargs], CallPlan]


@lru_cache(maxsize=64)
def all_ranks(world_size: int) -> tuple[int, ...]:
    """Ranks 0 to world_size - 1."""
    return tuple(range(world_size))


def plan_rank_zero(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """The arguments as given, to rank 0."""
    args, kwargs = _all_unwrapped(args, kwargs)
    return CallPlan(
        (RankCall(0, args, kwargs),),
        context.method.name,
        context.mode,
        context.group.world_size,
        (0,),
        SINGLE,
    )


def plan_one_to_all(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """The same arguments to every rank."""
    world_size = context.group.world_size
    args, kwargs = _all_unwrapped(args, kwargs)
    ranks = all_ranks(world_size)
    # The tuple is made directly: a call on many workers makes many.
    calls = tuple([_new_tuple(RankCall, (rank, args, kwargs, None, 0)) for rank in ranks])
    return CallPlan(
        calls, context.method.name, context.mode, world_size, ranks, LIST, None, context.read_only
    )


def plan_all_to_all(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """One list entry per rank; batches by rows."""
    method, options = context.method, context.options
    if options.balance is not None:
        raise CallOptionError(
            "balance", "ALL_TO_ALL gives a list of answers, whose rows have no input order to restore"
        )
    split = split_batches(context.group.world_size, args, kwargs, method.labels, options, takes_entries=True)
    plan = _plan_of_split(context, split)
    if split.layout is None or not split.layout.changes_answers:
        return plan
    return plan.changed(collect=TrimmedListCollector(method.name, plan.fetched_ranks, split.layout))


def plan_one_to_one_call(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """Only the ranks that the arguments name."""
    plan = plan_one_to_one(context.group.world_size, args, kwargs, context.method.labels)
    return _named(context, plan)


def plan_dp_compute(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """One list entry per rank."""
    return _plan_of_split(
        context, split_entries(context.group.world_size, args, kwargs, context.method.labels)
    )


def plan_metric(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """Batches by rows; the answers stay as they are."""
    split = split_batches(context.group.world_size, args, kwargs, context.method.labels, context.options)
    return _plan_of_split(context, split)


def plan_batches(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """Batches by rows; the answers are joined."""
    split = split_batches(context.group.world_size, args, kwargs, context.method.labels, context.options)
    return _joined(context, _plan_of_split(context, split), split.layout)


def plan_batches_with_function(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """A function to every rank, then batches by rows; the answers are joined."""
    world_size, labels = context.group.world_size, context.method.labels
    with call_scope(labels, context.options):
        function, args, kwargs = function_first(world_size, args, kwargs)
    split = split_batches(world_size, args, kwargs, labels.after(1), context.options)
    whole = SplitArguments(([function] * world_size, *split.args), split.kwargs, split.layout)
    return _joined(context, _plan_of_split(context, whole), split.layout)


def plan_direct(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
    """Refuses."""
    with call_scope(context.method.labels, context.options):
        dispatch_direct_rollout_method(context.group)
    raise NotImplementedError(context.method.name)


def _no_batch(method: str, mesh: str) -> InvalidTypeError:
    return InvalidTypeError(
        f"{method!r} splits batches over mesh {mesh!r} and needs at least one batch "
        "(DataProto, TensorDict or DataProtoFuture) among its arguments, got none"
    )


def plan_mesh(mesh_name: str) -> Planner:
    """Batches by rows over the dp ranks of a mesh; the answering ranks' answers are joined in dp order."""

    def plan(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
        mesh = mesh_of(context.group, mesh_name)
        if not args and not kwargs:
            raise _no_batch(context.method.name, mesh_name)
        context.method.check_binding(args, kwargs)
        split = split_batches(mesh.dp_size, args, kwargs, context.method.labels, context.options)
        if not split.num_batches:
            raise _no_batch(context.method.name, mesh_name)
        spread = _plan_of_split(context, split, mesh.dp_ranks)
        joined = BatchCollector(context.method.name, mesh.answering_ranks, split.layout)
        return spread.changed(fetched_ranks=mesh.answering_ranks, collect=joined)

    return plan


_PLANNERS: dict[str, Planner] = {
    "RANK_ZERO": plan_rank_zero,
    "ONE_TO_ALL": plan_one_to_all,
    "ALL_TO_ALL": plan_all_to_all,
    "DP_COMPUTE": plan_dp_compute,
    "DP_COMPUTE_PROTO": plan_batches,
    "DP_COMPUTE_PROTO_WITH_FUNC": plan_batches_with_function,
    "DP_COMPUTE_METRIC": plan_metric,
    "ONE_TO_ONE": plan_one_to_one_call,
    "DIRECT_ROLLOUT_METHOD": plan_direct,
}
_TAKES_ROW_OPTIONS = {plan_all_to_all, plan_batches, plan_batches_with_function, plan_metric}


def choose_planner(
    context: CallContext, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> Planner:
    """The planner of a method whose mode has these functions now.

    Raises:
        InvalidModeError: execute mode and dispatch mode make no sense together.
        CallOptionError: an option that this mode cannot honour.
    """
    execute = context.options.execute_mode or context.method.execute_mode
    check_execute_mode(execute)
    check_pair(context.method.dispatch_mode, execute)
    base = _predefined(dispatch_fn, collect_fn)
    if base is None:
        return _custom_planner(dispatch_fn, collect_fn, execute)
    _check_row_options(context, base, execute)
    planner = base if isinstance(dispatch_fn, NdDispatch) else _checked(base)
    if execute is Execute.ALL:
        return planner
    if execute is Execute.RANK_ZERO:
        return _checked(plan_rank_zero)
    return _selected(planner, execute)


def _predefined(dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]) -> Planner | None:
    if isinstance(dispatch_fn, NdDispatch) and collect_fn == NdCollect(dispatch_fn.mesh_name):
        return plan_mesh(dispatch_fn.mesh_name)
    for name, pair in PREDEFINED_PAIRS.items():
        if pair[0] is dispatch_fn and pair[1] is collect_fn:
            return _PLANNERS[name]
    return None


def _custom_planner(
    dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any], execute: Execute
) -> Planner:
    def plan(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
        to_rank_zero = execute is Execute.RANK_ZERO
        custom = plan_custom(context, dispatch_fn, collect_fn, args, kwargs, to_rank_zero=to_rank_zero)
        return _named(context, custom)

    return plan if execute in (Execute.ALL, Execute.RANK_ZERO) else _selected(plan, execute)


def _checked(planner: Planner) -> Planner:
    def plan(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
        context.method.check_binding(args, kwargs)
        return planner(context, args, kwargs)

    return plan


def _selected(planner: Planner, execute: Execute) -> Planner:
    """The same calls, but only those of the ranks that a registered execute mode names."""

    def plan(context: CallContext, args: Args, kwargs: Kwargs) -> CallPlan:
        whole = planner(context, args, kwargs)
        if any(call.rows is not None for call in whole.calls):
            raise CallOptionError(
                f"execute_mode={execute!r}",
                "the call splits a batch by rows, and rows of the other ranks would be lost",
            )
        ranks = _ranks_of(execute, whole.world_size, context.method.name)
        calls = tuple(call for call in whole.calls if call.rank in ranks)
        called = tuple(call.rank for call in calls)
        return whole.changed(calls=calls, fetched_ranks=called, collect=DictCollector(called))

    return plan


def _ranks_of(execute: Execute, world_size: int, method: str) -> frozenset[int]:
    selector = rank_selector(execute)
    given: Any = selector(world_size) if selector else None
    try:
        ranks = [-1 if isinstance(rank, bool) else index(rank) for rank in given]
    except TypeError:
        ranks = []
    if not ranks or len(set(ranks)) < len(ranks) or not set(ranks) <= set(range(world_size)):
        raise InvalidModeError(
            f"execute mode {execute.name} of {method!r}: select_ranks({world_size}) gave {given!r}, expected "
            f"at least one rank, each of 0..{world_size - 1} and named once"
        )
    return frozenset(ranks)


def _check_row_options(context: CallContext, planner: Planner, execute: Execute) -> None:
    splits = planner in _TAKES_ROW_OPTIONS or context.mode.startswith("nd(")
    if context.options.splits and not (splits and execute is Execute.ALL):
        problem = f"mode {context.mode} of {context.method.name!r} splits no batches"
        raise CallOptionError(context.options.splits, problem)


def _all_unwrapped(args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    for value in args:
        if type(value) is Broadcast:
            args = tuple([unwrapped(value) for value in args])
            break
    if kwargs:
        kwargs = {name: unwrapped(value) for name, value in kwargs.items()}
    return args, kwargs


def _plan_of_split(
    context: CallContext, split: SplitArguments, part_of_rank: tuple[int, ...] | None = None
) -> CallPlan:
    world_size = context.group.world_size
    ranks = all_ranks(world_size)
    part_of_rank = part_of_rank or ranks
    parts = {part: split.part(part) for part in dict.fromkeys(part_of_rank)}
    rows, pad = (split.layout.rows, split.layout.pad) if split.layout else (None, None)
    calls = tuple(
        [
            RankCall(rank, *parts[part], rows[part] if rows else None, pad[part] if pad else 0)
            for rank, part in zip(ranks, part_of_rank, strict=True)
        ]
    )
    order = split.layout.order if split.layout else None
    return CallPlan(
        calls, context.method.name, context.mode, world_size, ranks, LIST, order, context.read_only
    )


def _joined(context: CallContext, plan: CallPlan, layout: RowLayout | None) -> CallPlan:
    return plan.changed(collect=BatchCollector(context.method.name, plan.fetched_ranks, layout))


def _named(context: CallContext, plan: CallPlan) -> CallPlan:
    return plan.changed(
        method=context.method.name,
        mode=context.mode,
        world_size=context.group.world_size,
        read_only=context.read_only,
    )
