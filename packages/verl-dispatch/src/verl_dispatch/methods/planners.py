"""How the calls of a method are planned: from the arguments of a call to one explicit call per rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import index
from typing import Any

from verl_protocol import DataProtoFuture

from verl_dispatch.errors import CallOptionError, InvalidModeError
from verl_dispatch.methods import registry
from verl_dispatch.methods.registered import RegisteredMethod
from verl_dispatch.modes import Broadcast, Execute
from verl_dispatch.planning import collectors
from verl_dispatch.planning.batches import answered_rows
from verl_dispatch.planning.options import CURRENT_CALL, CallOptions, CallScope
from verl_dispatch.planning.plan import CallPlan, RankCall, Scatter, with_columns


class CallPlanner:
    """Plans the calls of one method of a group, made with these options."""

    def __init__(self, group: Any, method: RegisteredMethod, options: CallOptions) -> None:
        self._group, self._method, self._options = group, method, options
        self._execute = options.execute_mode or method.execute_mode
        self._read_only = method.options.read_only if options.read_only is None else options.read_only
        asked = method.options.remote
        by_default: bool = group.answers_stay_remote if asked is None else asked
        self._remote = by_default if options.remote is None else options.remote
        self._pair: tuple[Any, Any] = (None, None)
        self._spec = registry.RANK_ZERO
        self._scope = CallScope(method.labels, options)
        self._row_options = options.row_options
        self.mode: str = registry.mode_name(method.dispatch_mode)

    def spec(self) -> registry.ModeSpec:
        """The mode as it is now; checked whenever it has changed.

        Raises:
            InvalidModeError: execute mode and dispatch mode make no sense together.
            CallOptionError: an option that this mode cannot honour.
        """
        # The registry may change between calls; whether it has is seen by looking at the two functions.
        found = registry.functions_of(self._method.dispatch_mode)
        pair = found["dispatch_fn"], found["collect_fn"]
        if self._pair != pair:
            self._spec, self._pair = self._checked_spec(), pair
        return self._spec

    def _checked_spec(self) -> registry.ModeSpec:
        registry.check_execute_mode(self._execute)
        registry.check_pair(self._method.dispatch_mode, self._execute)
        spec = registry.spec_of(self._method.dispatch_mode)
        if self._execute is not Execute.ALL and not spec.is_custom:
            # Whole arguments and lists can go to some ranks only, rows cannot.
            refused = self._row_options
            spec = registry.RANK_ZERO if self._execute is Execute.RANK_ZERO else spec
        else:
            refused = tuple(name for name in self._row_options if name not in spec.row_options)
        if refused:
            why = "splits no batches"
            if refused[0] == "balance" and spec.row_options:
                why = "gives a list of answers, whose rows have no input order to restore"
            raise CallOptionError(refused[0], f"mode {self.mode} of {self._method.name!r} {why}")
        return spec

    def plan(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> CallPlan:
        """What a call with these arguments does; pure, unless the workers are to be asked for a mesh."""
        spec = self.spec()
        if not spec.is_custom:
            self._method.check_binding(args, kwargs)
        world_size = self._group.world_size
        reads = rest = self._method.options.reads
        if reads is not None and not spec.is_custom and not self._options.balance:
            # What is not read is not even split; batches inside other arguments show when these are.
            args, kwargs = reads.chosen(args, kwargs)
            rest = reads if any(map(_may_hold_batches, (*args, *kwargs.values()))) else None
        scatter = self._scatter(spec, world_size, args, kwargs)
        plan = CallPlan(
            scatter.calls if rest is None else with_columns(scatter.calls, rest),
            self._method.name,
            self.mode,
            world_size,
            scatter.fetched_ranks,
            self._collector(spec, scatter),
            scatter.layout,
            self._read_only,
            self._remote,
            reads,
            self._method.options.writes,
        )
        return plan if self._execute in (Execute.ALL, Execute.RANK_ZERO) else _selected(plan, self._execute)

    def _scatter(
        self, spec: registry.ModeSpec, world_size: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Scatter | CallPlan:
        scope = self._scope
        if self._row_options:
            # Whether they were asked for is a fact of this call alone.
            scope = CallScope(self._method.labels, self._options)
        token = CURRENT_CALL.set(scope)
        try:
            result = (spec.scatter or spec.dispatch_fn)(self._group, *args, **kwargs)
        except Exception as error:
            if spec.is_custom:
                error.add_note(f"in the dispatch_fn of the custom mode of method {self._method.name!r}")
            raise
        finally:
            CURRENT_CALL.reset(token)
        if not spec.is_custom:
            if isinstance(result, (Scatter, CallPlan)):
                return result
            lists, named = result
            return Scatter.of_lists(lists, named, range(world_size))
        if self._row_options and not scope.asked:
            problem = f"the dispatch_fn of {self._method.name!r} calls no function here that splits batches"
            raise CallOptionError(self._row_options[0], problem)
        to_rank_zero = self._execute is Execute.RANK_ZERO
        return _checked_result(self.mode, result, world_size, to_rank_zero=to_rank_zero)

    def _collector(self, spec: registry.ModeSpec, scatter: Scatter | CallPlan) -> collectors.Collector:
        name, ranks, layout = self._method.name, scatter.fetched_ranks, scatter.layout
        if spec.collector is not None:
            return spec.collector(name, ranks, layout)
        if not spec.is_custom:
            return scatter.collect
        if layout is not None and not layout.changes_answers:
            layout = None
        single = scatter.collect is collectors.SINGLE
        return CustomCollector(name, ranks, layout, self._group, spec.collect_fn, single)


def _may_hold_batches(argument: object) -> bool:
    return isinstance(argument, (list, tuple, Mapping, Broadcast))


# --- execute strategies of the user's own -----------------------------------------------------------------


def _selected(plan: CallPlan, execute: Execute) -> CallPlan:
    """The same calls, but only those of the ranks that a registered execute mode names."""
    if any(call.rows is not None for call in plan.calls):
        raise CallOptionError(
            f"execute_mode={execute!r}",
            "the call splits a batch by rows, and rows of the other ranks would be lost",
        )
    ranks = _ranks_of(execute, plan.world_size, plan.method)
    calls = tuple([call for call in plan.calls if call.rank in ranks])
    called = tuple([call.rank for call in calls])
    return plan.changed(
        calls=calls, fetched_ranks=called, collect=collectors.DictCollector(plan.method, called)
    )


def _ranks_of(execute: Execute, world_size: int, method: str) -> frozenset[int]:
    selector = registry.RANK_SELECTORS.get(execute)
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


# --- dispatch modes of the user's own: what their functions return is checked, then treated like all else -


def _bad_result(mode: str, problem: str) -> InvalidModeError:
    return InvalidModeError(
        f"dispatch_fn of mode {mode} must return (args, kwargs) with one entry per worker in every list, "
        f"or a CallPlan: {problem}"
    )


def _checked_result(mode: str, result: Any, world_size: int, *, to_rank_zero: bool) -> Scatter:
    """The calls that the user's `dispatch_fn` asks for.

    Raises:
        InvalidModeError: it returned nothing that a call per worker can be made of.
    """
    if isinstance(result, Scatter):
        return result
    if isinstance(result, CallPlan):
        return _checked_plan(mode, result, world_size)
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise _bad_result(mode, f"it returned {type(result).__name__}")
    args, kwargs = result
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
        raise _bad_result(mode, f"it returned ({type(args).__name__}, {type(kwargs).__name__})")
    if to_rank_zero:
        return Scatter((RankCall(0, tuple(args), dict(kwargs)),), (0,), collect=collectors.SINGLE)
    labelled = [*((f"argument {place}", entries) for place, entries in enumerate(args)), *kwargs.items()]
    for label, entries in labelled:
        if not isinstance(entries, (list, tuple)):
            raise _bad_result(mode, f"{label} is {type(entries).__name__}, not a list")
        if len(entries) != world_size:
            raise _bad_result(mode, f"{label} has {len(entries)} entries for {world_size} workers")
    return Scatter.of_lists(args, kwargs, range(world_size))


def _checked_plan(mode: str, plan: CallPlan, world_size: int) -> Scatter:
    called = plan.called_ranks
    world = range(world_size)
    if not called or len(set(called)) < len(called) or any(rank not in world for rank in called):
        problem = f"the plan calls ranks {list(called)}, the group has ranks 0..{world_size - 1}"
        raise _bad_result(mode, problem)
    calls = tuple(sorted(plan.calls, key=lambda call: call.rank))
    fetched = plan.fetched_ranks or tuple([call.rank for call in calls])
    if not set(fetched) <= set(called):
        problem = f"the plan fetches ranks {list(fetched)}, but calls {list(called)}"
        raise _bad_result(mode, problem)
    return Scatter(calls, fetched, plan.layout)


@dataclass(frozen=True, slots=True)
class CustomCollector(collectors.Collector):
    """Calls the user's `collect_fn(group, outputs)`; padding and order of batches split for it are undone.

    With `single`, only rank 0 was called and `collect_fn` gets its answer itself.
    """

    group: Any = None
    collect_fn: Callable[..., Any] = list
    single: bool = False

    def collect(self, outputs: Sequence[Any]) -> Any:
        """What `collect_fn` makes of the answers, in input order."""
        if self.layout is None:
            return self._made_of(outputs)
        if self.layout.order is not None:
            silent = [answered_rows(output) is None for output in outputs]
            collectors.check_all_answer(self.method, self.ranks, self.layout, silent)
        result = self._made_of(collectors.trimmed(self.method, self.ranks, self.layout, outputs))
        return collectors.in_input_order(result, self.layout.order)

    def arrange(self, futures: Sequence[Any]) -> Any:
        """What `collect_fn` makes of the futures; the workers have taken the padding off."""
        result = self._made_of(futures)
        order = self.layout.order if self.layout else None
        if order is None or not isinstance(result, DataProtoFuture):
            return result
        return DataProtoFuture(partial(_in_input_order, order), [result])

    def _made_of(self, outputs: Sequence[Any]) -> Any:
        try:
            return self.collect_fn(self.group, outputs[0] if self.single else list(outputs))
        except Exception as error:
            error.add_note(f"in the collect_fn of the custom mode of method {self.method!r}")
            raise


def _in_input_order(order: tuple[int, ...], values: Sequence[Any]) -> Any:
    return collectors.in_input_order(values[0], order)
