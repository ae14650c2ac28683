"""A registered method as a group offers it: call, submit, stream, plan, options."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Generator, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from functools import cached_property
from threading import Lock
from typing import Any, Generic, Self, TypeVar, Unpack, overload

from verl_dispatch.methods.planners import CallPlanner
from verl_dispatch.methods.registered import RegisteredMethod
from verl_dispatch.methods.registry import DispatchMode
from verl_dispatch.methods.static import GP, D_co, G_co, R_co
from verl_dispatch.modes import Execute
from verl_dispatch.planning import batches
from verl_dispatch.planning.collectors import BatchCollector
from verl_dispatch.planning.options import DEFAULT_OPTIONS, CallOptions, OptionChanges
from verl_dispatch.planning.plan import CallPlan, with_worker_trims

__all__ = ["CallFuture", "CallRecord", "CallTimer", "CallTrace", "GroupMethod", "current_timer"]


# --- Times of calls, stage by stage and rank by rank; off unless a `with group.trace() as ...` is open ----


@dataclass(slots=True)
class CallTimer:
    """Taken along by a traced call: backends say when each rank has answered.

    Attributes:
        started: `time.perf_counter()` when the call was sent.
        answered: rank -> seconds from sending to its answer.
        bytes_in: bytes of the answers, where the backend knows better than a walk over them.
    """

    started: float = 0.0
    answered: dict[int, float] = field(default_factory=dict)
    bytes_in: int | None = None

    def rank_answered(self, rank: int) -> None:
        """Notes that this rank's answer is there, or its failure."""
        self.answered.setdefault(rank, time.perf_counter() - self.started)


_TIMER: ContextVar[CallTimer | None] = ContextVar("verl_dispatch_timer", default=None)


def current_timer() -> CallTimer | None:
    """The timer of the traced call that is running in this context, or None."""
    return _TIMER.get()


@dataclass(frozen=True, slots=True)
class CallRecord:
    """Where the time of one call went, in seconds, and how many tensor bytes travelled.

    Attributes:
        method: name of the method.
        dispatch_s: planning.
        put_s: handing the arguments to the backend, which may wait for the row counts of futures.
        wait_s: waiting for the answers, fetching included.
        collect_s: putting the answers together.
        bytes_out: bytes of arguments; what several ranks share counts once.
        bytes_in: bytes of fetched answers.
        per_rank_s: for each called rank the time from sending to its answer.
        ranks: the called ranks, in the order of `per_rank_s`.
    """

    method: str
    dispatch_s: float
    put_s: float
    wait_s: float
    collect_s: float
    bytes_out: int
    bytes_in: int
    per_rank_s: tuple[float, ...]
    ranks: tuple[int, ...]

    @property
    def slowest_rank(self) -> int:
        """The rank that took longest."""
        return max(zip(self.per_rank_s, self.ranks, strict=True))[1]

    @property
    def total_s(self) -> float:
        """The whole call."""
        return self.dispatch_s + self.put_s + self.wait_s + self.collect_s

    def as_dict(self) -> dict[str, Any]:
        """All fields by name, and `slowest_rank`."""
        return {**asdict(self), "slowest_rank": self.slowest_rank}


class CallTrace:
    """The records of the blocking calls made while `with group.trace() as trace:` is open."""

    def __init__(self, recorders: list[CallTrace]) -> None:
        self.calls: list[CallRecord] = []
        self._recorders = recorders

    def __enter__(self) -> Self:
        self._recorders.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._recorders.remove(self)


def traced_call(
    group: Any, method: GroupMethod[..., Any, Any, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """A blocking call whose stages are timed."""
    timer = CallTimer()
    token = _TIMER.set(timer)
    try:
        return _run(group, method, args, kwargs, timer)
    finally:
        _TIMER.reset(token)


def _run(
    group: Any,
    method: GroupMethod[..., Any, Any, Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    timer: CallTimer,
) -> Any:
    from verl_dispatch.planning.plan import bytes_of_answers, bytes_of_calls

    begin = time.perf_counter()
    plan = method._usable_plan(args, kwargs)
    timer.started = time.perf_counter()
    pendings = group._send(plan, method._awaited)
    sent = time.perf_counter()
    outputs = group._wait(plan, pendings, method._options.timeout_s)
    waited = time.perf_counter()
    result = plan.collect.collect(outputs)
    ended = time.perf_counter()
    record = CallRecord(
        method=plan.method,
        dispatch_s=timer.started - begin,
        put_s=sent - timer.started,
        wait_s=waited - sent,
        collect_s=ended - waited,
        bytes_out=bytes_of_calls(plan.calls),
        bytes_in=bytes_of_answers(outputs) if timer.bytes_in is None else timer.bytes_in,
        per_rank_s=tuple(timer.answered.get(rank, waited - timer.started) for rank in plan.called_ranks),
        ranks=plan.called_ranks,
    )
    for trace in group._recorders:
        trace.calls.append(record)
    return result


# --------------------------------------------------------------------------------------------------------


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
        self._planner = CallPlanner(group, method, options)
        self._blocking = method.blocking if options.blocking is None else options.blocking
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
        return f"<{self.__name__}{self.__signature__} of {self._group!r}, {self._planner.mode}>"

    def _later(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plan = with_worker_trims(self._usable_plan(args, kwargs))
        # Says that the caller gets futures: others may read the answers, so a backend can prepare them for
        # that.
        pendings = self._group._send(plan, self._options.changed(blocking=False))
        if isinstance(plan.collect, BatchCollector):
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
        return self._planner.plan(args, kwargs)

    @staticmethod
    def _parts(plan: CallPlan, answers: Iterator[tuple[int, Any]]) -> Iterator[tuple[int, Any]]:
        index = {rank: at for at, rank in enumerate(plan.fetched_ranks)}
        for rank, answer in answers:
            yield rank, plan.collect.part(index[rank], answer)
