"""A registered method as a group offers it: call, submit, stream, plan, options."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from verl_dispatch import batches
from verl_dispatch.argument_parts import with_worker_trims
from verl_dispatch.method import RegisteredMethod
from verl_dispatch.modes import Execute
from verl_dispatch.options import DEFAULT_OPTIONS, CallOptions, OptionChanges
from verl_dispatch.plan import CallPlan
from verl_dispatch.planners import CallContext, Planner, choose_planner
from verl_dispatch.registry import DispatchMode, functions_of
from verl_dispatch.tracing import traced_call
from verl_dispatch.typed_methods import GP, D_co, G_co, R_co

__all__ = ["CallFuture", "GroupMethod"]


T = TypeVar("T")
_UNSET: Any = object()


class CallFuture(Generic[T]):
    """A call under way: `result(timeout)` waits for it, `await future` leaves the event loop free meanwhile.

    The result, or the failure, is kept and given again.
    """

    def __init__(self, group: Any, plan: CallPlan, pendings: Sequence[Any], timeout_s: float | None) -> None:
        self._group = group
        self._plan = plan
        self._pendings = pendings
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._value: Any = _UNSET

    def result(self, timeout: float | None = None) -> T:
        """The result of the call.

        Args:
            timeout: seconds to wait; None takes the call's own `timeout_s`.

        Raises:
            WorkerGroupError: a worker failed.
            CallTimeout: no result in time; a later `result` may still get it.
        """
        with self._lock:
            if self._value is _UNSET:
                limit = self._timeout_s if timeout is None else timeout
                outputs = self._group._wait(self._plan, self._pendings, limit)
                self._value = self._plan.collect.collect(outputs)
                self._pendings = ()
        value: T = self._value
        return value

    def done(self) -> bool:
        """Whether `result` would return without waiting, as far as the group can tell."""
        return self._value is not _UNSET or bool(self._group._done(self._plan, self._pendings))

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.to_thread(self.result).__await__()


class GroupMethod(Generic[GP, R_co, G_co, D_co]):
    """One registered method, bound to a group.

    Calling it does what `register` said about blocking; `call` always waits, `submit` and `stream` never do,
    `plan` sends nothing. `options` gives the same method with other options. Signature, docstring and modes
    are those of the worker's method.
    """

    def __init__(self, group: Any, method: RegisteredMethod, options: CallOptions = DEFAULT_OPTIONS) -> None:
        self._group = group
        self._method = method
        self._options = options
        self._context = CallContext.of(group, method, options)
        self._blocking = method.blocking if options.blocking is None else options.blocking
        self._dispatch_fn: Callable[..., Any] | None = None
        self._collect_fn: Callable[..., Any] | None = None
        self._planner: Planner | None = None
        self.__name__ = method.name
        self.__qualname__ = method.function.__qualname__
        self.__module__ = method.function.__module__
        self.__doc__ = method.function.__doc__
        self.__wrapped__ = method.function
        self.__signature__ = method.signature

    def __call__(self, /, *args: GP.args, **kwargs: GP.kwargs) -> D_co:
        """Runs the method on the workers; waits for the result unless registered with `blocking=False`."""
        result: D_co
        if self._blocking:
            result = self.call(*args, **kwargs)  # type: ignore[assignment]
            return result
        result = self._later(args, kwargs)
        return result

    def call(self, /, *args: GP.args, **kwargs: GP.kwargs) -> G_co:
        """Runs the method and waits for its result.

        Raises:
            WorkerGroupError: a worker failed, or the group is broken or shut down.
            CallTimeout: no result within `timeout_s`.
        """
        group = self._group
        result: G_co
        if group._recorders:
            result = traced_call(group, self, args, kwargs)
            return result
        plan = self._usable_plan(args, kwargs)
        outputs = group._wait(plan, group._send(plan, self._awaited), self._options.timeout_s)
        result = plan.collect.collect(outputs)
        return result

    @cached_property
    def _awaited(self) -> CallOptions:
        """The options of a call whose answers the caller waits for at once."""
        return self._options.changed(blocking=True)

    @cached_property
    def _asked_for_later(self) -> CallOptions:
        return self._options.changed(blocking=None)

    def submit(self, /, *args: GP.args, **kwargs: GP.kwargs) -> CallFuture[G_co]:
        """Starts the method and returns a future of its result: `result(timeout)`, or `await` it."""
        plan = self._usable_plan(args, kwargs)
        pendings = self._group._send(plan, self._asked_for_later)
        return CallFuture(self._group, plan, pendings, self._options.timeout_s)

    def stream(self, /, *args: GP.args, **kwargs: GP.kwargs) -> Iterator[tuple[int, R_co]]:
        """Starts the method and gives `(rank, answer)` as the answers come, padding taken off."""
        plan = self._usable_plan(args, kwargs)
        pendings = self._group._send(plan, self._asked_for_later)
        return self._parts(plan, self._group._stream(plan, pendings, self._options.timeout_s))

    def plan(self, /, *args: GP.args, **kwargs: GP.kwargs) -> CallPlan:
        """What a call with these arguments would do; nothing is sent, unless a mesh is not known yet."""
        return self._plan(args, kwargs)

    # Who runs the method and whether the call waits decide its types, which are then not known.
    @overload
    def options(self, **changes: Unpack[OptionChanges]) -> Self: ...
    @overload
    def options(
        self, *, blocking: bool | None, execute_mode: None = None, **changes: Unpack[OptionChanges]
    ) -> GroupMethod[GP, R_co, G_co, Any]: ...
    @overload
    def options(
        self, *, execute_mode: Execute, blocking: bool | None = None, **changes: Unpack[OptionChanges]
    ) -> GroupMethod[..., Any, Any, Any]: ...
    def options(self, **changes: Any) -> Any:
        """The same method with options changed: see `CallOptions`.

        Raises:
            CallOptionError: an unknown option, or a value that it cannot have.
            RefusedPairError: an execute mode that does not go with the dispatch mode.
        """
        changed: GroupMethod[GP, R_co, G_co, D_co] = GroupMethod(
            self._group, self._method, self._options.changed(**changes)
        )
        pair = functions_of(self._method.dispatch_mode)
        choose_planner(changed._context, pair["dispatch_fn"], pair["collect_fn"])
        return changed

    @property
    def dispatch_mode(self) -> DispatchMode:
        """The mode given to `register`."""
        return self._method.dispatch_mode

    @property
    def execute_mode(self) -> Execute:
        """Which ranks run the method."""
        return self._options.execute_mode or self._method.execute_mode

    @property
    def blocking(self) -> bool:
        """Whether a plain call waits for its result."""
        return self._blocking

    @property
    def signature(self) -> inspect.Signature:
        """The worker method's signature, without `self`."""
        return self._method.signature

    def __repr__(self) -> str:
        return f"<{self.__name__}{self.__signature__} of {self._group!r}, {self._context.mode}>"

    def _later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = with_worker_trims(self._usable_plan(args, kwargs))
        # Says that the caller gets futures: others may read the answers, so a backend can prepare them for
        # that.
        pendings = self._group._send(plan, self._options.changed(blocking=False))
        if plan.collect.kind == "batch":
            result: Any = self._group._data_future(plan, pendings)
        else:
            result = plan.collect.arrange(self._group._futures(plan, pendings))
        if batches.is_future(result) and self._padding_asked(args, kwargs):
            batches.ask_for_padding(result)
        return result

    def _padding_asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        values = [value for value in (*args, *kwargs.values()) if batches.is_splittable(value)]
        return self._options.auto_padding is None and any(map(batches.wants_padding, values))

    def _usable_plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
        self._group._check_usable(self._method.name)
        return self._plan(args, kwargs)

    def _plan(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
        # The registry may change between calls; whether it has is seen by looking at the two functions.
        pair = functions_of(self._method.dispatch_mode)
        dispatch_fn, collect_fn = pair["dispatch_fn"], pair["collect_fn"]
        planner = self._planner
        if planner is None or self._dispatch_fn is not dispatch_fn or self._collect_fn is not collect_fn:
            planner = self._planner = choose_planner(self._context, dispatch_fn, collect_fn)
            self._dispatch_fn, self._collect_fn = dispatch_fn, collect_fn
        return planner(self._context, args, kwargs)

    @staticmethod
    def _parts(plan: CallPlan, answers: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        index = {rank: at for at, rank in enumerate(plan.fetched_ranks)}
        for rank, answer in answers:
            yield rank, plan.collect.part(index[rank], answer)
