"""The base of every worker group: binds registered methods, carries out their plans on a backend."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Self, TypeVar, get_args, overload

from verl_protocol.errors import InvalidArgumentError, InvalidTypeError, InvalidValueError
from verl_protocol.tables import html_table

from verl_dispatch import errors
from verl_dispatch.groups.bound_method import GroupMethod
from verl_dispatch.groups.call import AnswerStream, Call, CallFuture
from verl_dispatch.groups.pool import EndsWithBlock, ResourcePool
from verl_dispatch.groups.trace import CallObserver, Trace, TracedCall
from verl_dispatch.methods.decorator import MAGIC_ATTR
from verl_dispatch.methods.registered import RegisteredMethod, registered_methods
from verl_dispatch.methods.registry import functions_of, get_predefined_execute_fn
from verl_dispatch.methods.static import A, D, G, GroupRef, GroupWorker, Method, P, R, X
from verl_dispatch.modes import Ref
from verl_dispatch.planning.mesh import Mesh, mesh_of
from verl_dispatch.planning.options import DEFAULT_OPTIONS, UNNAMED, CallOptions
from verl_dispatch.planning.plan import CallPlan, Scatter
from verl_dispatch.workers.observed import RecordWhen
from verl_dispatch.workers.roles import bad_roles
from verl_dispatch.workers.worker import Worker

if TYPE_CHECKING:
    from verl_protocol import DataProto
    from verl_protocol.columns.remote import Store


ProtoT = TypeVar("ProtoT", bound="DataProto")


_HANDED_ON = DEFAULT_OPTIONS.changed(blocking=False)


class WorkerGroup(EndsWithBlock, Generic[GroupWorker, GroupRef]):
    """Many workers, called as one: `group.method(...)` for every registered method of the worker class.

    A worker runs one call at a time, in the order in which they were sent, plain methods and async ones
    alike. A backend that does otherwise sets `_keeps_order` to False before it binds; binding then warns of
    a class with methods of both kinds.

    A subclass is a backend. It calls `_bind_worker_method(worker_class)` once it knows its `world_size`, and
    supplies the methods under "what a backend supplies"; everything else is done here. `GroupWorker` is the
    worker class, `GroupRef` what a non-blocking call returns for one worker.
    """

    _world_size: int = 0
    _keeps_order: bool = True
    name_prefix: str = ""
    answers_stay_remote: bool = False
    """Whether `remote=True` is the default of every method that may answer batches."""
    _refusal: ClassVar[str] = ""

    def __init__(self, resource_pool: ResourcePool | None = None) -> None:
        """A group over a pool, or over as many workers as the subclass says in `_world_size`.

        Raises:
            RuntimeError: a program starts it that runs only for the classes it defines.
        """
        if self._refusal:
            raise RuntimeError(self._refusal)
        self.resource_pool = resource_pool
        if resource_pool is not None:
            self._world_size = resource_pool.world_size
        self._dispatch_info: dict[str, Sequence[int]] = {}
        self._collect_info: dict[str, Sequence[bool]] = {}
        self._methods: dict[str, GroupMethod[..., Any, Any, Any]] = {}
        self._observers: list[CallObserver] = []
        self._worker_class: type | None = None

    # --- what a backend supplies ---------------------------------------------------------------------------

    def _send(self, plan: CallPlan, options: CallOptions) -> Call:
        """Starts every call of the plan and returns at once, with what hears the answers: see `Call`.

        The worker runs `getattr(worker, plan.method)(*call.args, **call.kwargs)`; for a registered method
        that is the function made by `register`, which resolves futures and padding by itself. `plan.shared`
        says what to store once. `options.blocking` is True where the caller waits for the answers before it
        does anything else, False where it gets futures of them, which others may read then, and None where
        it asks for them later. `options.timeout_s` is for the `Call`. Nothing is left running when this
        raises.
        """
        raise NotImplementedError

    def _store(self) -> Store:
        """Where the driver's own columns go that are to be read by workers."""
        raise NotImplementedError

    def _check_usable(self, method: str) -> None:
        """Raises WorkerGroupError if the group is shut down or broken by an earlier failure; cheap."""

    def start_worker_aliveness_check(self, every_n_seconds: float = 1) -> Any:
        """Watches the workers and makes calls fail once one of them has died."""
        raise NotImplementedError(f"{type(self).__name__} cannot watch its workers")

    def shutdown(self) -> None:
        """Ends the workers; calls are refused from now on. Calling it again does nothing.

        Raises:
            NotTheOwnerError: this is the view of a role.
        """
        raise NotImplementedError(f"{type(self).__name__} cannot end its workers")

    def _record(self, where: tuple[str, RecordWhen] | None) -> None:
        """Has every worker record its calls with a `Recorder` for this folder and these calls, or stop."""
        raise NotImplementedError(f"{type(self).__name__} cannot record calls")

    def _roles(self) -> Mapping[str, type]:
        """The class of each role that shares the workers; none where they run one class."""
        return {}

    def _view(self, role: str, cls: type) -> Self:
        """A group of the same workers, on which only the methods of one role are bound."""
        raise NotImplementedError(f"{type(self).__name__} has no views of roles")

    # --- life ----------------------------------------------------------------------------------------------

    _role: str | None = None
    """The role whose view this is, if it is one; the group that it came from ends the workers."""

    def __exit__(self, *exc_info: object) -> None:
        if self._role is None:
            self.shutdown()

    def _refuse_view(self, action: str) -> None:
        if self._role is not None:
            # Whoever wrote `Group(...).spawn(...)` holds nothing else; that of the pool ends all its groups.
            can_end = hasattr(self.resource_pool, "shutdown")
            raise errors.NotTheOwnerError(
                f"{action}() on the view of role {self._role!r}: its workers belong to the group that it was "
                f"spawned from; call {action}() there"
                + ", or resource_pool.shutdown(), which ends every group on the pool"
                * can_end
            )

    # --- several roles in one process ----------------------------------------------------------------------

    def spawn(self, prefix_set: Iterable[str]) -> dict[str, Self]:
        """Views of this group for some of its roles: each offers the methods of one role's class.

        Views share workers, failure and generation with this group, which alone restarts and shuts down.

        Raises:
            UnknownRoleError: a role that is not colocated here.
            WorkerClassError: no names of roles.
        """
        if not isinstance(prefix_set, Iterable):
            raise bad_roles(prefix_set, "names of roles", "prefix_set")
        roles = [prefix_set] if isinstance(prefix_set, str) else dict.fromkeys(prefix_set)
        return {role: self.role(role) for role in roles}

    def fuse(self, prefix_set: Iterable[str]) -> None:
        """Makes views of roles attributes of this group: `group.actor.update(...)`.

        Raises:
            UnknownRoleError: a role that is not colocated here.
            WorkerClassError: a role named like something the group needs.
        """
        views = self.spawn(prefix_set)
        for role in views:
            if role in RESERVED_NAMES or hasattr(type(self), role) or role in self._methods:
                expected = "names that the group does not need for itself; spawn gives such a role's view"
                raise bad_roles(role, expected, "prefix_set")
        self.__dict__.update(views)
        self.wg_dict = views

    @overload
    def role(self, name: str, cls: type[Any]) -> Any: ...
    @overload
    def role(self, name: str, cls: None = None) -> Any: ...
    def role(self, name: str, cls: Any = None) -> Any:
        """A view of one role; `cls`, its worker class, tells type checkers its methods.

        Raises:
            UnknownRoleError: a role that is not colocated here.
            InvalidArgumentError: it is of another class.
        """
        classes = self._roles()
        if name not in classes:
            raise errors.UnknownRoleError(name, {role: found.__name__ for role, found in classes.items()})
        if cls is not None and not (isinstance(cls, type) and issubclass(classes[name], cls)):
            held = classes[name].__name__
            raise InvalidArgumentError(
                f"role {name!r} is of class {held}, got cls={cls!r}, expected {held} or a class it derives "
                "from"
            )
        return self._view(name, classes[name])

    # --- calls ---------------------------------------------------------------------------------------------

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return self._world_size

    @property
    def is_usable(self) -> bool:
        """Whether the group takes calls; if not, it is shut down, or broken until `restart()`.

        No worker is asked: a death is known once a call or a watch has met it, and a rank that did not answer
        in time (`CallTimeout`) may still be busy, so that the next call waits for it. A group that is still
        starting is waited for.
        """
        try:
            self._check_usable("is_usable")
        except (errors.WorkerGroupError, errors.CallTimeout):
            return False
        return True

    @property
    def methods(self) -> MethodNames[GroupWorker, GroupRef]:
        """The registered methods as attributes, and nothing else."""
        return MethodNames(self)

    def trace(
        self, path: str | PathLike[str] | None = None, *, also: Iterable[WorkerGroup[Any, Any]] = ()
    ) -> Trace:
        """Times the calls made while the returned context is open: plan, send, the ranks' queue, fetch and
        run, and collect, with bytes.

        Printed, the trace is a table. Where OpenTelemetry's API is installed, its calls are spans too.

        Args:
            path: where to write it at the end, for https://ui.perfetto.dev.
            also: other groups, or views of roles, whose calls it shows too.

        Raises:
            InvalidTypeError: `also` has no groups.

        Example:
            >>> from verl_dispatch import Dispatch, LocalWorkerGroup, register
            >>> class Echo:
            ...     @register(dispatch_mode=Dispatch.ONE_TO_ALL)
            ...     def say(self, word: str) -> str:
            ...         return word
            >>> group = LocalWorkerGroup(Echo, 2)
            >>> with group.trace() as trace:
            ...     _ = group.say("hello")
            >>> [stage.name for stage in trace.calls[0].stages() if stage.rank != 1]
            ['plan', 'send', 'queue', 'fetch', 'run', 'collect']
        """
        groups = (self,) if isinstance(also, WorkerGroup) else (self, *also)
        if isinstance(also, WorkerGroup) or not all(isinstance(each, WorkerGroup) for each in groups):
            raise InvalidTypeError(f"also is {also!r}, expected groups, such as [critic, reference]")
        return Trace(list(dict.fromkeys(groups)), path)

    def record(self, folder: str | PathLike[str], on: RecordWhen = "error") -> AbstractContextManager[object]:
        """Has the workers write calls of registered methods into files, each on its own node, until the
        returned context ends, or the group.

        `python -m verl_dispatch replay FILE --unpickle` builds the worker in one process and runs the call
        there under pdb. A failure says where its file lies. Every call is pickled before it runs, which
        costs its time and memory.

        Args:
            folder: where to write; made where it is missing.
            on: "error" for the calls that fail, "all" for every call, from before it runs.

        Raises:
            NotTheOwnerError: this is the view of a role; its group can record all of them.
            InvalidValueError: another `on`.
            NotPicklableError: the worker's class, or an argument of its constructor, cannot be pickled.
        """
        self._refuse_view("record")
        if on not in get_args(RecordWhen):
            raise InvalidValueError(f"on is {on!r}, expected 'error' or 'all'")
        self._record((str(Path(folder).absolute()), on))
        recording = ExitStack()
        recording.callback(self._stop_recording)
        return recording

    def _stop_recording(self) -> None:
        # The group may have failed or ended meanwhile.
        with suppress(errors.WorkerGroupError):
            self._record(None)

    @property
    def _is_traced(self) -> bool:
        """Whether the ranks are to report their times."""
        return any(isinstance(each, Trace) for each in self._observers)

    def _started(
        self,
        method: str,
        plan: Callable[[tuple[Any, ...], dict[str, Any]], CallPlan],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: CallOptions,
    ) -> Call:
        """Plans and sends a call, and tells those who watch."""
        self._check_usable(method)
        if not self._observers:
            return self._send(plan(args, kwargs), options)
        traced = TracedCall(self._title(), method, self._observers, id(self))
        made = plan(args, kwargs)
        traced.planned(made)
        sent = self._send(made, options)
        sent.trace(traced)
        return sent

    def execute_all_sync(self, method_name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """Runs any method, registered or not, with these arguments on every worker; answers in rank order."""
        sent = self._sent(method_name, self.world_size, args, kwargs, DEFAULT_OPTIONS)
        try:
            answers: list[Any] = sent.collect(sent.wait())
            return answers
        except errors.WorkerGroupError as error:
            if error.errors:
                _note_whole_lists(error, args, kwargs, self.world_size)
            raise

    def execute_all_async(self, method_name: str, *args: Any, **kwargs: Any) -> list[GroupRef]:
        """As `execute_all_sync`, but returns one future per worker at once."""
        return self._sent(method_name, self.world_size, args, kwargs, _HANDED_ON).futures()

    def execute_all(self, method_name: str, *args: Any, **kwargs: Any) -> list[GroupRef]:
        """The same as `execute_all_async`."""
        return self.execute_all_async(method_name, *args, **kwargs)

    def execute_rank_zero_sync(self, method_name: str, *args: Any, **kwargs: Any) -> Any:
        """Runs any method, registered or not, on rank 0; its answer."""
        sent = self._sent(method_name, 1, args, kwargs, DEFAULT_OPTIONS)
        return sent.collect(sent.wait())[0]

    def execute_rank_zero_async(self, method_name: str, *args: Any, **kwargs: Any) -> GroupRef:
        """As `execute_rank_zero_sync`, but returns a future at once."""
        future: GroupRef = self._sent(method_name, 1, args, kwargs, _HANDED_ON).futures()[0]
        return future

    def execute_rank_zero(self, method_name: str, *args: Any, **kwargs: Any) -> GroupRef:
        """The same as `execute_rank_zero_async`."""
        return self.execute_rank_zero_async(method_name, *args, **kwargs)

    def _sent(
        self, method: str, num_ranks: int, args: tuple[Any, ...], kwargs: dict[str, Any], options: CallOptions
    ) -> Call:
        """A call with the same arguments to the first ranks, of any method."""

        def plan(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallPlan:
            calls, ranks, *_ = Scatter.of_all(args, kwargs, num_ranks)
            return CallPlan(calls, method, "", self.world_size, ranks)

        return self._started(method, plan, args, kwargs, options)

    # --- typed verbs: the method is named by the function on the worker class ------------------------------

    def call(
        self, method: Method[GroupWorker, P, Any, G, Any, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> G:
        """Runs a method given as `WorkerClass.method` and waits for its result."""
        result: G = self._bound(method).call(*args, **kwargs)
        return result

    def submit(
        self, method: Method[GroupWorker, P, Any, G, Any, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> CallFuture[G]:
        """Starts a method given as `WorkerClass.method`; a future of its result."""
        return self._bound(method).submit(*args, **kwargs)

    def stream(
        self, method: Method[GroupWorker, P, R, Any, Any, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> AnswerStream[R]:
        """Starts a method given as `WorkerClass.method`; `(rank, answer)` as the answers come."""
        return self._bound(method).stream(*args, **kwargs)

    @overload
    def bind(self, method: str, /) -> GroupMethod[..., Any, Any, Any]: ...
    @overload
    def bind(
        self, method: Method[GroupWorker, P, R, G, Any, Literal[True]], /
    ) -> GroupMethod[P, R, G, G]: ...
    @overload
    def bind(self, method: Method[GroupWorker, P, R, G, X, Literal[False]], /) -> GroupMethod[P, R, G, X]: ...
    @overload
    def bind(
        self, method: Method[GroupWorker, P, R, G, list[Ref[A]], Literal[False]], /
    ) -> GroupMethod[P, R, G, list[GroupRef]]: ...
    @overload
    def bind(
        self, method: Method[GroupWorker, P, R, G, Ref[A], Literal[False]], /
    ) -> GroupMethod[P, R, G, GroupRef]: ...
    @overload
    def bind(self, method: Method[GroupWorker, P, R, G, D, Literal[False]], /) -> GroupMethod[P, R, G, D]: ...
    def bind(self, method: Any, /) -> Any:
        """The bound method for `WorkerClass.method` or a name.

        Raises:
            UnknownMethodError: the group's worker class has no such registered method.
        """
        return self._bound(method)

    def _bound(self, method: Any) -> GroupMethod[..., Any, Any, Any]:
        if isinstance(method, str):
            found, given = self._methods.get(method), method
        else:
            found, given = self._methods.get(_name_of(method)), getattr(method, "__qualname__", repr(method))
            if found is None or method is not found._method.function:
                # A decorator without functools.wraps leaves a method without its name.
                same = (each for each in self._methods.values() if each._method.function is method)
                found = next(same, found if found is not None and self._inherits(method) else None)
        if found is None:
            raise self._unknown(given)
        return found

    def _inherits(self, function: Any) -> bool:
        """Whether it is the worker class's own, or overridden there: what is run is then the override."""
        name = _name_of(function)
        known = (vars(base).get(name) for base in getattr(self._worker_class, "__mro__", ()))
        return any(getattr(each, "__qualname__", None) == function.__qualname__ for each in known)

    @property
    def on(self) -> type[GroupWorker]:
        """The registered methods, for type checkers those of the worker class."""
        methods: Any = MethodNames(self)
        named: type[GroupWorker] = methods
        return named

    def put(self, batch: ProtoT) -> ProtoT:
        """The batch with its large tensor columns stored once, for any number of calls.

        What is stored is a snapshot: later writes into the columns of `batch` do not reach it.

        Raises:
            InvalidTypeError: `batch` is no DataProto.
        """
        from verl_protocol.batch.apart import stored
        from verl_protocol.batch.state import check_batch

        check_batch(batch)
        return stored(batch, self._store())

    # --- meshes --------------------------------------------------------------------------------------------

    def mesh(self, mesh_name: str) -> Mesh:
        """The named mesh as the workers registered it, or as it was added here.

        Raises:
            UnknownMeshError: nobody registered it.
            MeshError: the table is no valid mesh.
        """
        return mesh_of(self, mesh_name)

    def add_mesh(self, mesh: Mesh) -> None:
        """Makes a mesh known without asking the workers; replaces one of the same name.

        Raises:
            MeshError: it is of another number of ranks than the group has workers.
        """
        Mesh.from_registration(mesh.name, mesh.dp_ranks, mesh.collects, self.world_size)
        self._dispatch_info[mesh.name] = list(mesh.dp_ranks)
        self._collect_info[mesh.name] = list(mesh.collects)

    def forget_meshes(self, *mesh_names: str) -> None:
        """Drops what is known about these meshes, or about all; the next call asks the workers again."""
        for name in mesh_names or tuple(self._dispatch_info):
            self._dispatch_info.pop(name, None)
            self._collect_info.pop(name, None)

    def _registered_meshes(self) -> Sequence[Mapping[str, Mapping[str, Any]]]:
        """What every worker says about all its meshes, in rank order."""
        if self._worker_class is not None and not hasattr(self._worker_class, "get_dispatch_collect"):
            return [{"dispatch_dp_rank": {}, "collect_dp_rank": {}}] * self.world_size
        return self.execute_all_sync("get_dispatch_collect")

    # --- binding -------------------------------------------------------------------------------------------

    def _bind_worker_method(
        self, user_defined_cls: type, func_generator: Callable[..., Callable[..., Any]] | None = None
    ) -> list[str]:
        """Makes every registered method of a worker class callable on this group; returns their names.

        With `func_generator(group, name, dispatch_fn=, collect_fn=, execute_fn=, blocking=)`, what it returns
        is bound instead of a GroupMethod.

        Raises:
            WorkerClassError: a method named like something that the group needs.
        """
        self._worker_class = user_defined_cls
        found = self._registered_methods(user_defined_cls)
        if not self._keeps_order:
            warn_of_mixed_order(user_defined_cls, found)
        for name, method in found.items():
            bound: GroupMethod[..., Any, Any, Any] = GroupMethod(self, method)
            self._methods[name] = bound
            function = bound if func_generator is None else self._generated(func_generator, method)
            # A group subclass that defines the name itself means to be asked first.
            if not hasattr(type(self), name):
                self.__dict__[name] = function
        return list(found)

    @classmethod
    def _registered_methods(cls, user_defined_cls: type) -> dict[str, RegisteredMethod]:
        """The registered methods of a worker class, checked; a backend asks before it starts anything."""
        # What `__init__` sets is private too, whatever the subclass; an empty group tells.
        private = {name for name in (*dir(cls), *vars(WorkerGroup())) if name.startswith("_")}
        return registered_methods(user_defined_cls, RESERVED_NAMES | private)

    def _generated(self, func_generator: Callable[..., Callable[..., Any]], method: RegisteredMethod) -> Any:
        pair = functions_of(method.dispatch_mode)
        execute_fn = getattr(self, get_predefined_execute_fn(method.execute_mode)["execute_fn_name"])
        return func_generator(self, method.name, **pair, execute_fn=execute_fn, blocking=method.blocking)

    # Any: with fused roles an attribute may also be a group.
    def __getattr__(self, name: str) -> Any:
        # Only what is nowhere else comes here: private names must stay plain AttributeErrors while a group is
        # built.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise self._unknown(name)

    def _unknown(self, name: str) -> errors.UnknownMethodError:
        known = [each for each in self.__dict__.get("_methods", ()) if not each.startswith("_")]
        # What every worker has is of no help to who looks for a method of their own.
        own = [each for each in known if not hasattr(Worker, each)]
        way = self._way_to(name.rpartition(".")[2])
        return errors.UnknownMethodError(self._label(), name, own, errors.maybe(name, known), way)

    def _way_to(self, name: str) -> str:
        """Where a name is that is no registered method of the class; empty where it is nowhere."""
        worker_class = self.__dict__.get("_worker_class")
        found = getattr(worker_class, name, None)
        if worker_class is not None and callable(found) and not hasattr(found, MAGIC_ATTR):
            return (
                f"{worker_class.__name__} has it, but without @register; decorate it, or run it with "
                f"group.execute_all_sync({name!r}, ...)"
            )
        if hasattr(GroupMethod, name):
            return f"{name!r} is of each method: group.method.{name}"
        classes = self._roles() if self._role is None and worker_class else {}
        # Elsewhere `actor_update` is how the group of all roles spells `update` of the role `actor`.
        roles = [
            role
            for role, cls in classes.items()
            if hasattr(getattr(cls, name.removeprefix(f"{role}_"), None), MAGIC_ATTR)
        ]
        return f"call it on the view of its role ({', '.join(roles)}), which spawn gives" if roles else ""

    def __reduce_ex__(self, _: Any) -> tuple[Any, ...]:
        """Refuses: a group is a part of the program that made it.

        Raises:
            NotPicklableError: always.
        """
        raise errors.NotPicklableError(repr(self), self._way_to_workers)

    _way_to_workers: ClassVar[str] = (
        "it belongs to the program that made it; another program, or a worker, reaches the workers of a "
        "detached group with from_detached(worker_names=...)"
    )

    def _label(self) -> str:
        worker = self.__dict__.get("_worker_class")
        return f"{type(self).__name__}[{worker.__name__ if worker else '?'}]"

    def _title(self) -> str:
        """A short name for tables."""
        worker = self.__dict__.get("_worker_class")
        return f"{worker.__name__ if worker else '?'} {self.name_prefix}".strip()

    def __repr__(self) -> str:
        prefix = f" {self.name_prefix!r}" if self.name_prefix else ""
        return f"<{self._label()}{prefix} of {self.world_size}>"

    def _repr_html_(self) -> str:
        own = [method for method in self._methods.values() if not hasattr(Worker, method.__name__)]
        rows = [(method.__name__, str(method.signature), method._planner.mode) for method in own]
        return html_table(["method", "arguments", "mode"], rows, repr(self))


RESERVED_NAMES = frozenset(
    [
        *(name for name in vars(WorkerGroup) if not name.startswith("_")),
        # What backends add, and what is set for one group only.
        *("from_detached", "generation", "is_detached", "master_address", "master_port", "resource_pool"),
        *("restart", "startup_report", "watch", "worker_names", "workers"),
    ]
)
"""Names that every group needs for itself; a worker method of such a name cannot be registered."""


def _name_of(method: Any) -> str:
    return str(getattr(method, "__name__", ""))


class MethodNames(Generic[GroupWorker, GroupRef]):
    """The registered methods of a group as attributes: `group.methods.update(...)`."""

    def __init__(self, group: WorkerGroup[GroupWorker, GroupRef]) -> None:
        self._group = group

    def __getattr__(self, name: str) -> GroupMethod[..., Any, Any, Any]:
        if name == "_group":  # copy and pickle ask before it is there
            raise AttributeError(name)
        return self._group.bind(name)

    def __dir__(self) -> list[str]:
        return sorted(self._group._methods)

    def __iter__(self) -> Iterator[GroupMethod[..., Any, Any, Any]]:
        return iter(self._group._methods.values())


def _note_whole_lists(
    error: errors.WorkerGroupError, args: tuple[Any, ...], kwargs: Mapping[str, Any], world_size: int
) -> None:
    """Has a failure say of lists as long as the group that they were not split: other calls do split them."""
    for label, value in zip(UNNAMED.all(args, kwargs), (*args, *kwargs.values()), strict=True):
        if isinstance(value, (list, tuple)) and len(value) == world_size:
            error.add_note(
                f"every worker got the whole of {label}, a {type(value).__name__} with one entry for each of "
                f"the {world_size} workers: execute_all gives everyone the same arguments; to give each "
                "worker its own entry register the method with Dispatch.ALL_TO_ALL and call group.method(...)"
            )


def warn_of_mixed_order(cls: type, found: Mapping[str, RegisteredMethod]) -> None:
    """Warns of a class with plain and async methods, on a backend that runs calls side by side."""
    own = [method for name, method in found.items() if not hasattr(Worker, name)]
    asynchronous = [method.name for method in own if method.is_async]
    plain = [method.name for method in own if not method.is_async]
    if asynchronous and plain:
        warnings.warn(errors.MixedOrderWarning(cls.__qualname__, asynchronous, plain), stacklevel=4)
