"""A registered method as a group offers it: call, submit, stream, plan, options."""

from __future__ import annotations

import inspect
from functools import update_wrapper
from typing import Any, Generic, Self, Unpack, overload

from verl_protocol import DataProtoFuture

from verl_dispatch.groups.call import AnswerStream, Call, CallFuture
from verl_dispatch.methods.planners import CallPlanner
from verl_dispatch.methods.registered import RegisteredMethod
from verl_dispatch.methods.registry import DispatchMode
from verl_dispatch.methods.static import GP, D_co, G_co, R_co
from verl_dispatch.modes import Execute
from verl_dispatch.planning import batches
from verl_dispatch.planning.collectors import BatchCollector
from verl_dispatch.planning.options import DEFAULT_OPTIONS, CallOptions, OptionChanges
from verl_dispatch.planning.plan import CallPlan, with_worker_trims


class GroupMethod(Generic[GP, R_co, G_co, D_co]):
    """One registered method, bound to a group.

    Calling it does what `register` said about blocking; `call` always waits, `submit` and `stream` never do,
    `plan` sends nothing. `options` gives the same method with other options. Signature, docstring and modes
    are those of the worker's method.

    Attributes:
        dispatch_mode: the mode given to `register`.
        execute_mode: which ranks run the method.
        blocking: whether a plain call waits for its result.
        signature: the worker method's, without `self`.
    """

    def __init__(self, group: Any, method: RegisteredMethod, options: CallOptions = DEFAULT_OPTIONS) -> None:
        self._group = group
        self._method = method
        self._options = options
        self._planner = CallPlanner(group, method, options)
        self._by_blocking: dict[bool | None, CallOptions] = {}
        self.dispatch_mode: DispatchMode = method.dispatch_mode
        self.execute_mode: Execute = options.execute_mode or method.execute_mode
        self.blocking: bool = method.blocking if options.blocking is None else options.blocking
        self.signature: inspect.Signature = method.signature
        update_wrapper(self, method.function, updated=())
        self.__name__: str = method.name
        self.__signature__: inspect.Signature = method.signature

    def __call__(self, /, *args: GP.args, **kwargs: GP.kwargs) -> D_co:
        """Runs the method on the workers; waits for the result unless registered with `blocking=False`."""
        given: Any = self.call(*args, **kwargs) if self.blocking else self._later(args, kwargs)
        result: D_co = given
        return result

    def call(self, /, *args: GP.args, **kwargs: GP.kwargs) -> G_co:
        """Runs the method and waits for its result.

        Raises:
            WorkerGroupError: a worker failed, or the group is broken or shut down.
            CallTimeout: no result within `timeout_s`.
        """
        sent = self._sent(args, kwargs, blocking=True)
        result: G_co = sent.collect(sent.wait())
        return result

    def submit(self, /, *args: GP.args, **kwargs: GP.kwargs) -> CallFuture[G_co]:
        """Starts the method and returns a future of its result: `result(timeout)`, or `await` it."""
        return CallFuture(self._sent(args, kwargs, blocking=None))

    def stream(self, /, *args: GP.args, **kwargs: GP.kwargs) -> AnswerStream[R_co]:
        """Starts the method and gives `(rank, answer)` as the answers come, padding taken off.

        For `for` and for `async for`. A time limit counts from here, not from the first look.
        """
        return self._sent(args, kwargs, blocking=None).stream()

    def _sent(self, args: tuple[Any, ...], kwargs: dict[str, Any], blocking: bool | None) -> Call:
        """A call that the caller waits for at once, gets futures of (False), or asks for later (None)."""
        if blocking not in self._by_blocking:
            self._by_blocking[blocking] = self._options.changed(blocking=blocking)
        # Who else reads the futures knows of no padding.
        plan = self._plan_of_futures if blocking is False else self._planner.plan
        sent: Call = self._group._started(self._method.name, plan, args, kwargs, self._by_blocking[blocking])
        return sent

    def _plan_of_futures(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
        return with_worker_trims(self._planner.plan(args, kwargs))

    def plan(self, /, *args: GP.args, **kwargs: GP.kwargs) -> CallPlan:
        """What a call with these arguments would do; nothing is sent, unless a mesh is not known yet."""
        return self._planner.plan(args, kwargs)

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
            InvalidModeError: an execute mode that does not go with the dispatch mode.
        """
        changed: GroupMethod[GP, R_co, G_co, D_co] = GroupMethod(
            self._group, self._method, self._options.changed(**changes)
        )
        changed._planner.spec()
        return changed

    def __repr__(self) -> str:
        return f"<{self.__name__}{self.__signature__} of {self._group!r}, {self._planner.mode}>"

    def _later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sent = self._sent(args, kwargs, blocking=False)
        collect = sent.plan.collect
        is_batch = isinstance(collect, BatchCollector)
        result: Any = sent.data_future() if is_batch else collect.arrange(sent.futures())
        if isinstance(result, DataProtoFuture) and self._options.auto_padding is None:
            values = [value for value in (*args, *kwargs.values()) if batches.is_splittable(value)]
            if any(map(batches.wants_padding, values)):
                batches.ask_for_padding(result)
        return result
