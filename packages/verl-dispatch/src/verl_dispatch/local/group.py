"""The in-process backend: a group whose workers live in the caller's own process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from verl_protocol.arguments import flag, text, whole_number

from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.groups.group import WorkerGroup
from verl_dispatch.local.call import LocalCall, LocalLife
from verl_dispatch.local.copies import SnapshotStore
from verl_dispatch.local.engines import LocalRank, ReadOnlyCopies, ThreadEngine, TurnEngine
from verl_dispatch.methods.static import GroupWorker
from verl_dispatch.planning.options import CallOptions
from verl_dispatch.planning.plan import CallPlan, RankCall
from verl_dispatch.workers.observed import Recorder, RecordWhen, pickled
from verl_dispatch.workers.rank import RankInfo, free_port
from verl_dispatch.workers.roles import roles_of

if TYPE_CHECKING:
    from verl_protocol.columns.remote import Store

    from verl_dispatch.groups.bound_method import GroupMethod
    from verl_dispatch.groups.pool import ClassWithInitArgs
    from verl_dispatch.methods.static import A, D, G, Method, P, R, X
    from verl_dispatch.modes import Ref


V = TypeVar("V")


class LocalWorkerGroup(WorkerGroup[GroupWorker, "Future[Any]"]):
    """A group without a cluster: the same modes, checks, errors and isolation, in this process.

    Ranks run one after the other in the calling thread, so that a breakpoint in a worker method works;
    each sees torchrun's variables in `os.environ` while it runs (a process has them once: where several
    groups take turns in threads of their own, only `self.rank` and its like are right; a child process
    gets them if it is started with `env=os.environ`). Calls of a rank never
    overlap and keep their order, async methods and calls of several threads too. With `concurrent=True`
    each rank has a thread and ranks can meet through `Worker.process_group()`; the environment then
    stays as it is. Arguments and answers are copied, as on a cluster; functions pass as they are, with
    what they close over, and what a process has once, such as torch's default random generator, ranks
    share.

    Args:
        cls: the worker class, or an object with `cls`, `args` and `kwargs` such as `ClassWithInitArgs`.
        world_size: number of workers.
        *args: for the worker's constructor.
        concurrent: give each rank a thread.
        name_prefix: name of the group in messages and in `WG_PREFIX`.
        remote: whether large columns of answers stay in a store, as with `register(..., remote=True)`.
        **kwargs: for the worker's constructor.

    Raises:
        WorkerGroupError: a constructor failed; it names the ranks.
        WorkerClassError: a registered method is named like something the group needs.

    Example:
        >>> from verl_dispatch import Dispatch, Worker, register
        >>> class Greeter(Worker):
        ...     @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        ...     def greet(self, name: str) -> str:
        ...         return f"{name} from {self.rank} of {self.world_size}"
        >>> with LocalWorkerGroup(Greeter, 2) as group:
        ...     group.greet("hello")
        ['hello from 0 of 2', 'hello from 1 of 2']
    """

    # The constructor's arguments are checked where the group has no options of its own among them.
    @overload
    def __init__(
        self, cls: Callable[P, GroupWorker], world_size: int, *args: P.args, **kwargs: P.kwargs
    ) -> None: ...
    @overload
    def __init__(
        self,
        cls: type[GroupWorker] | ClassWithInitArgs[GroupWorker],
        world_size: int,
        *args: Any,
        concurrent: bool,
        name_prefix: str = ...,
        remote: bool = ...,
        **kwargs: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        cls: type[GroupWorker] | ClassWithInitArgs[GroupWorker],
        world_size: int,
        *args: Any,
        name_prefix: str,
        remote: bool = ...,
        **kwargs: Any,
    ) -> None: ...
    @overload
    def __init__(
        self,
        cls: type[GroupWorker] | ClassWithInitArgs[GroupWorker],
        world_size: int,
        *args: Any,
        remote: bool,
        **kwargs: Any,
    ) -> None: ...
    def __init__(  # type: ignore[misc]
        self,
        cls: Any,
        world_size: int,
        *args: Any,
        concurrent: bool = False,
        name_prefix: str = "",
        remote: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        cls, args, kwargs = _unpacked(cls, args, kwargs)
        self._world_size = whole_number("world_size", world_size, 1)
        concurrent = flag("concurrent", concurrent)
        self.name_prefix: str = text("name_prefix", name_prefix)
        if "\0" in name_prefix:
            raise ValueError(f"name_prefix must not have a null character, got {name_prefix!r}")
        self.answers_stay_remote: bool = flag("remote", remote)
        for each in (cls, *roles_of(cls).values()):
            self._registered_methods(each)
        self._name = name_prefix or f"{type(self).__name__}[{cls.__name__}]"
        self._state = LocalState(self._name, name_prefix, cls, self._world_size, args, kwargs, concurrent)
        self._generation_seen = 0
        self._state.build()
        self._bind_worker_method(cls)

    _name: str = ""
    _way_to_workers = (
        "it belongs to the program that made it; roles that call each other share a process: "
        "create_colocated_worker_raw_cls, then get_fused_worker_by_name in the worker"
    )

    if TYPE_CHECKING:
        # As in the base, with the types of this backend: of an answer to come, and of the group itself.
        @overload
        def bind(self, method: str, /) -> GroupMethod[..., Any, Any, Any]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, Any, Literal[True]], /
        ) -> GroupMethod[P, R, G, G]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, X, Literal[False]], /
        ) -> GroupMethod[P, R, G, X]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, list[Ref[A]], Literal[False]], /
        ) -> GroupMethod[P, R, G, list[Future[A]]]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, Ref[A], Literal[False]], /
        ) -> GroupMethod[P, R, G, Future[A]]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, D, Literal[False]], /
        ) -> GroupMethod[P, R, G, D]: ...
        def bind(self, method: Any, /) -> Any: ...
        @overload
        def role(self, name: str, cls: type[V]) -> LocalWorkerGroup[V]: ...
        @overload
        def role(self, name: str, cls: None = None) -> LocalWorkerGroup[Any]: ...
        def role(self, name: str, cls: type[Any] | None = None) -> Any: ...

    # --- what the base asks of a backend -------------------------------------------------------------------

    def _send(self, plan: CallPlan, options: CallOptions) -> LocalCall:
        call = LocalCall(self._state.life, plan, self._name, options)
        call.is_timed = self._is_traced
        self._state.run(call, self._role)
        return call

    def _record(self, where: tuple[str, RecordWhen] | None) -> None:
        self._check_usable("record")
        self._state.record(where)

    def _store(self) -> Store:
        return SnapshotStore()

    def _check_usable(self, method: str) -> None:
        state = self._state
        if state.closed or state.life.broken:
            state.refuse(self._name, method)
        if self._generation_seen != state.life.generation:
            self._generation_seen = state.life.generation
            self.forget_meshes()

    def start_worker_aliveness_check(self, every_n_seconds: float = 1) -> None:
        """Does nothing: workers in this process cannot die unseen."""

    # --- life ----------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """How often the group has been restarted."""
        return self._state.life.generation

    @property
    def workers(self) -> list[Any]:
        """The workers themselves, in rank order, for a look inside."""
        workers = [rank.worker for rank in self._state._engine.ranks]
        if self._role is None:
            return workers
        return [worker.role_worker(self._role) for worker in workers]

    @property
    def worker_names(self) -> list[str]:
        """A name for each worker, in rank order."""
        return [f"{self._name}:{rank}" for rank in range(self.world_size)]

    @property
    def master_address(self) -> str:
        """The address that workers see as MASTER_ADDR."""
        return _HOST

    @property
    def master_port(self) -> str:
        """The port that workers see as MASTER_PORT; another one in each generation."""
        return self._state.master_port

    def startup_report(self) -> dict[str, float | int]:
        """Seconds that the start took, stage by stage, and which rank took longest."""
        state = self._state
        slowest = max(range(self._world_size), key=state.build_s.__getitem__)
        init_s = max(state.build_s) if state.concurrent else sum(state.build_s)
        return {"placement_s": 0.0, "actors_s": 0.0, "init_s": init_s, "slowest_rank": slowest}

    def restart(self) -> None:
        """Build all workers anew from the same class and arguments; old futures and meshes are dropped.

        Raises:
            NotTheOwnerError: this is a spawned view.
        """
        self._refuse_view("restart")
        self._state.restart()
        self._generation_seen = self._state.life.generation
        self.forget_meshes()

    def shutdown(self) -> None:
        """End the workers; calls are refused from now on. Calling it again does nothing.

        Raises:
            NotTheOwnerError: this is a spawned view.
        """
        self._refuse_view("shutdown")
        self._state.close()

    # --- roles in one process ------------------------------------------------------------------------------

    def _roles(self) -> Mapping[str, type]:
        return roles_of(self._state.cls)

    def _view(self, role: str, cls: type) -> Self:
        view = object.__new__(type(self))
        WorkerGroup.__init__(view)
        view._world_size, view.name_prefix, view._name = self._world_size, role, f"{self._state.name}.{role}"
        view._state, view._role, view._generation_seen = self._state, role, self._generation_seen
        view.answers_stay_remote = self.answers_stay_remote
        view._bind_worker_method(cls)
        return view


def _unpacked(
    given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[type, tuple[Any, ...], dict[str, Any]]:
    if isinstance(given, type):
        return given, args, kwargs
    cls = getattr(given, "cls", None)
    if not isinstance(cls, type):
        raise TypeError(f"cls must be a class, or an object with cls, args and kwargs, got {given!r}")
    return cls, (*given.args, *args), {**given.kwargs, **kwargs}


# --- What a group and the views spawned from it share: workers, generation, failure ---------------------


_HOST = "127.0.0.1"


@dataclass(eq=False)
class LocalState:
    """The workers of one group, through all its generations."""

    name: str
    prefix: str
    cls: type
    world_size: int
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    concurrent: bool
    life: LocalLife = field(default_factory=LocalLife)
    master_port: str = ""
    build_s: Sequence[float] = ()
    closed: bool = False
    _turn: threading.RLock = field(default_factory=threading.RLock)
    _recording: tuple[str, RecordWhen] | None = None
    _engine: TurnEngine | ThreadEngine = field(init=False)
    _finalizer: weakref.finalize[..., Any] = field(init=False)

    def build(self) -> None:
        """Make the workers of this generation.

        Raises:
            WorkerGroupError: a constructor failed; nothing is left running.
        """
        size, self.master_port = self.world_size, str(free_port(_HOST))
        place = (_HOST, self.master_port, self.prefix, "local")
        infos = [RankInfo(rank, size, rank, size, *place) for rank in range(size)]
        self._engine = ThreadEngine(infos, self.name) if self.concurrent else TurnEngine(infos)
        self._finalizer = weakref.finalize(self, self._engine.close, "the group was collected as garbage")
        self._finalizer.atexit = False
        calls = tuple([RankCall(rank, self.args, self.kwargs) for rank in range(self.world_size)])
        call = LocalCall(self.life, CallPlan(calls, "__init__", world_size=self.world_size), self.name)
        try:
            cls = self.cls
            self._engine.start(call, lambda rank, each: rank.build(cls, each.args, each.kwargs))
            call.wait()
        except BaseException:
            self.close()
            raise
        self.build_s = [call.seconds[rank] for rank in range(self.world_size)]
        self.record(self._recording)

    def record(self, where: tuple[str, RecordWhen] | None) -> None:
        """Have the ranks of this generation, and of those to come, record their calls, or stop."""
        self._recording = where
        made_from = b"" if where is None else pickled((self.cls, self.args, self.kwargs), self.cls)
        for rank in self._engine.ranks:
            rank.recorder = None if where is None else Recorder(*where, made_from, rank.info)

    def run(self, call: LocalCall, role: str | None) -> None:
        """Start a call, or run it where ranks take turns."""
        method = call.plan.method
        copies = ReadOnlyCopies() if call.plan.read_only else None
        run = partial(LocalRank.run, method=method, role=role, read_only=copies, sent=call)
        if self.concurrent:
            self._engine.start(call, run)
            return
        with self._turn:
            if self.closed:
                self.refuse(call.group, method)
            try:
                self._engine.start(call, run)
            except BaseException as error:
                silent = call._missing()
                self.life.break_off(f"an interruption of '{method}' by {type(error).__name__}", silent)
                raise

    def refuse(self, name: str, method: str) -> None:
        """Say why a call on a group that is shut down or broken cannot be.

        Raises:
            WorkerGroupError: it is.
        """
        if self.closed:
            raise WorkerGroupError(name, method, reason="the group was shut down; make a new one")
        if self.life.broken:
            ways = "restart() builds its workers anew, shutdown() ends it"
            raise WorkerGroupError(name, method, reason=f"the group is broken by {self.life.broken}; {ways}")

    def restart(self) -> None:
        """Replace all workers by new ones, made from the same class and arguments."""
        if self.closed:
            self.refuse(self.name, "restart")
        self._engine.close("the group was restarted")
        self._finalizer.detach()
        self.life.generation += 1
        self.life.broken = ""
        self.build()

    def close(self) -> None:
        """End the workers; calls are refused from now on."""
        if not self.closed:
            self.closed = True
            self._finalizer.detach()
            self._engine.close("the group was shut down")
