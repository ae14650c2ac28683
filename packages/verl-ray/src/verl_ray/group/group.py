"""The worker group on Ray: starts actors on the slots of a pool, calls them as one, and ends them."""

from __future__ import annotations

import copy
import math
import secrets
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, SupportsIndex, TypeVar, overload

from verl_dispatch.errors import CallTimeout, WorkerGroupError, maybe
from verl_dispatch.groups.group import WorkerGroup
from verl_dispatch.methods.static import GroupWorker
from verl_dispatch.planning.options import DEFAULT_OPTIONS, CallOptions, Labels
from verl_dispatch.planning.plan import CallPlan, Scatter, refuse_unpicklable
from verl_dispatch.workers.observed import RecordWhen, pickled
from verl_dispatch.workers.roles import roles_of
from verl_protocol.arguments import flag, seconds, text
from verl_protocol.errors import InvalidTypeError, InvalidValueError

from verl_ray.calls.call import RayCall
from verl_ray.calls.makers import refuse_retired
from verl_ray.calls.metrics import CallMetrics
from verl_ray.errors import unusable
from verl_ray.group.attach import attach
from verl_ray.group.executor import Executor
from verl_ray.group.launch import LaunchSpec, runtime_env_of
from verl_ray.group.worker_set import Death, Watch, WorkerSet, attached
from verl_ray.pools.pool import RayResourcePool
from verl_ray.wire.message import check_picklable
from verl_ray.wire.refs import cloud_dumps
from verl_ray.wire.store import RAY_STORE
from verl_ray.worker.actor import RayClassWithInitArgs
from verl_ray.worker.rendezvous import asked_rendezvous

if TYPE_CHECKING:
    from ray import ObjectRef
    from verl_dispatch.groups.bound_method import GroupMethod
    from verl_dispatch.methods.static import A, D, G, Method, P, R, X
    from verl_dispatch.modes import Ref


V = TypeVar("V")
AnyGroup = TypeVar("AnyGroup", bound="RayWorkerGroup[Any]")


class RayWorkerGroup(WorkerGroup[GroupWorker, "ObjectRef[Any]"]):
    """One actor per slot of a pool, called as one object.

    All workers start at the same time, and the constructor returns when every worker's own constructor has.
    Use it as a context manager, or call `shutdown()`.

    Calls reach each worker in the order in which they were sent, and a worker runs one at a time, also async
    methods. Those run on an event loop beside the main thread, which serves their background tasks between
    calls too. `update_options({"max_concurrency": n})` allows n at a time, in no particular order. A group
    can be called from several threads.

    Args:
        resource_pool: where the workers run, one per slot.
        ray_cls_with_init: the worker class and its constructor's arguments.
        bin_pack: put the workers of one entry of `process_on_nodes` on one node; False only tries to. None:
            on one node, unless the pool is reserved in another way already.
        name_prefix: name of the group in messages and in the workers' names; random by default.
        detached: the workers outlive this driver; needs a detached pool.
        worker_names: attach to running workers by name, see `from_detached`.
        worker_handles: attach to running workers by handle, see `from_detached`.
        ray_wait_register_center_timeout: seconds allowed for start-up, from the request to the last
            constructor.
        use_gpu: False keeps the pool's accelerators from the workers.
        device_name: torch device that says which accelerator a pool with `use_gpu` means. None: what the pool
            says, else "cuda".
        worker_env: environment variables for every worker, set before its process starts.
        forward_env: names, or patterns such as `NCCL_*`, of this process's variables for every worker.
        master_addr: where the ranks meet, with `master_port`; by default rank 0's node and a free port.
        master_port: see `master_addr`.
        master_port_range: `(first, stop)` to choose the port from.
        profile_steps: with `worker_nsight_options`: run the workers under Nsight Systems.
        worker_nsight_options: options of Ray's `nsight` plugin, used when `profile_steps` is given.
        wait: False returns at once; the first call waits for the workers.
        on_restart: called with the group after each `restart()`, to give the new workers their state.
        remote: whether large columns of answers stay in the store, as with `register(..., remote=True)`.
        metrics: count calls in metrics of Ray, which its dashboard shows: `verl_calls`, `verl_failed_calls`,
            `verl_call_bytes_out`, `verl_call_bytes_in` and `verl_call_seconds`.

    Raises:
        TypeError: an unknown keyword.
        ValueError: parameters that contradict each other.
        WorkerClassError: a worker method named like something that the group needs.
        ResourceUnavailable: the pool or the cluster has no room.
        WorkerGroupError: a worker's constructor failed, or the worker died; no worker is left running.
        StartTimeout: not all workers were up in time; likewise.

    >>> from verl_dispatch import Dispatch, register
    >>> class Greeter:
    ...     def __init__(self, name: str) -> None:
    ...         self.name = name
    ...     @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    ...     def greet(self, word: str) -> str:
    ...         return f"{word}, {self.name}"
    >>> with RayResourcePool([2], use_gpu=False) as pool:  # doctest: +SKIP
    ...     with RayWorkerGroup(pool, RayClassWithInitArgs(Greeter, "Ada")) as group:
    ...         group.greet("Hello")
    ['Hello, Ada', 'Hello, Ada']
    """

    _grace_s: ClassVar[float] = 2.0
    """Seconds that the other ranks get to answer after a first one failed, before the failure is raised."""

    _recording: tuple[str, RecordWhen] | None = None

    def __init__(
        self,
        resource_pool: RayResourcePool | None = None,
        ray_cls_with_init: RayClassWithInitArgs[GroupWorker] | None = None,
        bin_pack: bool | None = None,
        name_prefix: str | None = None,
        detached: bool = False,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[Any] | None = None,
        ray_wait_register_center_timeout: float = 300,
        *,
        use_gpu: bool | None = None,
        device_name: str | None = None,
        worker_env: Mapping[str, str] | None = None,
        forward_env: Iterable[str] | None = None,
        master_addr: str | None = None,
        master_port: int | str | None = None,
        master_port_range: tuple[int, int] | None = None,
        profile_steps: Sequence[int] | None = None,
        worker_nsight_options: Mapping[str, Any] | None = None,
        wait: bool = True,
        on_restart: Callable[[Any], object] | None = None,
        remote: bool = False,
        metrics: bool = False,
        **unknown: Never,
    ) -> None:
        if not isinstance(ray_cls_with_init, RayClassWithInitArgs):
            raise _no_template(ray_cls_with_init, unknown)
        for name in unknown:
            raise _unknown_keyword(name, ray_cls_with_init.user_class)
        attaches = worker_names is not None or worker_handles is not None
        if not (isinstance(resource_pool, RayResourcePool) or (attaches and resource_pool is None)):
            expected = "a RayResourcePool, or worker_names or worker_handles"
            raise unusable("resource_pool", resource_pool, expected)
        if attaches:
            _refuse_start_options(
                worker_names=worker_names if worker_handles is not None else None,
                resource_pool=resource_pool,
                bin_pack=bin_pack,
                detached=detached or None,
                use_gpu=use_gpu,
                device_name=device_name,
                worker_env=worker_env,
                forward_env=forward_env,
                master_addr=master_addr,
                master_port=master_port,
                master_port_range=master_port_range,
                profile_steps=profile_steps,
                worker_nsight_options=worker_nsight_options,
                wait=None if wait is True else wait,
            )
        if not (on_restart is None or callable(on_restart)):
            raise unusable("on_restart", on_restart, "a function of the group")
        super().__init__(resource_pool)
        self._registered_methods(ray_cls_with_init.user_class)
        self._keeps_order = not ray_cls_with_init.interleaves()
        self.name_prefix: str = text("name_prefix", name_prefix or f"group_{secrets.token_hex(3)}")
        self.answers_stay_remote: bool = flag("remote", remote)
        if flag("metrics", metrics):
            self._observers.append(CallMetrics())
        self.is_detached: bool = flag("detached", detached)
        self._on_restart, wait = on_restart, flag("wait", wait)
        self._template: RayClassWithInitArgs[Any] = ray_cls_with_init
        limit = seconds("ray_wait_register_center_timeout", ray_wait_register_center_timeout, above_zero=True)
        timeout_s = math.inf if limit is None else limit
        if resource_pool is None:
            worker_set = attach(self.name_prefix, worker_names, worker_handles, ray_cls_with_init, timeout_s)
            self._adopt(worker_set, ray_cls_with_init.user_class, None)
            return
        spec = LaunchSpec(
            name=self.name_prefix,
            pool=resource_pool,
            template=ray_cls_with_init,
            rendezvous=asked_rendezvous(master_addr, master_port, master_port_range),
            strategy=None if bin_pack is None else "STRICT_PACK" if flag("bin_pack", bin_pack) else "PACK",
            device_name=device_name,
            detached=self.is_detached,
            use_gpu=None if use_gpu is None else flag("use_gpu", use_gpu),
            timeout_s=timeout_s,
            grace_s=self._grace_s,
            runtime_env=runtime_env_of(
                ray_cls_with_init, worker_env, forward_env, profile_steps, worker_nsight_options
            ),
        )
        self._adopt(WorkerSet(spec.name, spec), ray_cls_with_init.user_class, None)
        self._start(wait)

    def _start(self, wait: bool) -> None:
        try:
            self._worker_set.start()
            if wait:
                self._worker_set.ready()
        except BaseException:
            self._worker_set.close()
            raise

    def _adopt(self, worker_set: WorkerSet, user_class: type, role: str | None) -> None:
        """Work on these workers: on all of each, or on one role of it."""
        self._worker_set, self._known_generation = worker_set, worker_set.generation
        self._executor = Executor(worker_set, user_class, role)
        self._world_size = worker_set.world_size
        self._bind_worker_method(user_class if role is None else roles_of(user_class)[role])

    # --- what the base asks of a backend -------------------------------------------------------------------

    def _store(self) -> Any:
        return RAY_STORE

    def _send(self, plan: CallPlan, options: CallOptions) -> RayCall:
        refuse_retired(plan.calls)
        try:
            return self._executor.send(plan, options, self._is_traced)
        except (WorkerGroupError, CallTimeout):
            raise
        except Exception:
            method = self._methods.get(plan.method)
            labels = Labels(plan.method) if method is None else method._method.labels
            refuse_unpicklable(labels, plan.calls, check_picklable)
            raise

    def _record(self, where: tuple[str, RecordWhen] | None) -> None:
        template = self._template
        made_from = (template.user_class, template.args, template.kwargs)
        told = b"" if where is None else pickled(made_from, template.user_class, cloud_dumps)
        self._check_usable("record")
        # Sent past the observers: traces and metrics are of the user's calls.
        calls, ranks, *_ = Scatter.of_all((where, told), {}, self.world_size)
        self._send(CallPlan(calls, "_verl_record", fetched_ranks=ranks), DEFAULT_OPTIONS).wait()
        self._recording = where

    def _check_usable(self, method: str) -> None:
        self._worker_set.check_usable(method)
        if self._known_generation != self._worker_set.generation:
            # What earlier workers said about their meshes says nothing about these.
            self._known_generation = self._worker_set.generation
            self.forget_meshes()

    # --- workers -------------------------------------------------------------------------------------------

    @classmethod
    def from_detached(
        cls,
        name_prefix: str | None = None,
        worker_names: Sequence[str] | None = None,
        worker_handles: Sequence[Any] | None = None,
        ray_cls_with_init: RayClassWithInitArgs[GroupWorker] | None = None,
    ) -> Self:
        """Attach to workers that run already. Shutting this group down only lets go of them.

        Detached workers whose driver has ended can be restarted here, on their slots, if they were attached
        to by names; whoever else holds the group finds them dead then. `destroy_detached` frees the slots.

        Args:
            name_prefix: name of this group in messages.
            worker_names: all workers of a group, in any order: each is asked for its rank.
            worker_handles: any workers, in this order; one may come more than once.
            ray_cls_with_init: the template that the workers were started from, with the constructor's
                arguments if they are to be restarted.

        Raises:
            AttachError: a name is unknown, a rank is missing or comes twice, or a worker does not answer.
        """
        if worker_names is None and worker_handles is None:
            raise unusable("worker_names", None, "the names of the workers, or worker_handles")
        return cls(
            ray_cls_with_init=ray_cls_with_init,
            name_prefix=name_prefix,
            worker_names=worker_names,
            worker_handles=worker_handles,
        )

    @property
    def workers(self) -> list[Any]:
        """The actor handles in rank order: `h.method.remote(...)` reaches the worker's own method."""
        self._worker_set.ready()
        return list(self._worker_set.handles)

    @property
    def worker_names(self) -> list[str]:
        """The actors' names in rank order."""
        return list(self._worker_set.names)

    @property
    def master_address(self) -> str:
        """Where the ranks meet for torch.distributed."""
        return str(self._worker_set.rank_info(0).master_addr)

    @property
    def master_port(self) -> str:
        """The port where the ranks meet."""
        return str(self._worker_set.rank_info(0).master_port)

    @property
    def generation(self) -> int:
        """How many times the workers have been restarted."""
        return self._worker_set.generation

    def startup_report(self) -> dict[str, Any]:
        """Seconds that each stage of the last start took: `placement_s`, `processes_s`, `imports_s`,
        `init_s` and more.

        Empty for a group that was attached to.
        """
        return self._worker_set.startup_times()

    # --- roles ---------------------------------------------------------------------------------------------

    def _roles(self) -> Mapping[str, type]:
        return roles_of(self._template.user_class)

    def _view(self, role: str, cls: type) -> Self:
        facts = {"resource_pool": self.resource_pool, "is_detached": self.is_detached}
        view = _group_on(type(self), self._worker_set, self._template, role, self._facts() | facts)
        view._observers += [each for each in self._observers if isinstance(each, CallMetrics)]
        return view

    def __reduce_ex__(self, _: SupportsIndex) -> tuple[Any, ...]:
        """As a group that is attached to the same workers, and does not own them; see `from_detached`."""
        bare: Any = copy.copy(self._template)
        bare.args, bare.kwargs = (), {}
        return _attached, (type(self), self._worker_set.attachment(), bare, self._role, self._facts())

    def _facts(self) -> dict[str, Any]:
        return {"name_prefix": self.name_prefix, "answers_stay_remote": self.answers_stay_remote}

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
        ) -> GroupMethod[P, R, G, list[ObjectRef[A]]]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, Ref[A], Literal[False]], /
        ) -> GroupMethod[P, R, G, ObjectRef[A]]: ...
        @overload
        def bind(
            self, method: Method[GroupWorker, P, R, G, D, Literal[False]], /
        ) -> GroupMethod[P, R, G, D]: ...
        def bind(self, method: Any, /) -> Any: ...
        @overload
        def role(self, name: str, cls: type[V]) -> RayWorkerGroup[V]: ...
        @overload
        def role(self, name: str, cls: None = None) -> RayWorkerGroup[Any]: ...
        def role(self, name: str, cls: type[Any] | None = None) -> Any: ...

    # --- health and end ------------------------------------------------------------------------------------

    def watch(self, on_death: Callable[[Death], object] | None = None, every_s: float | None = None) -> Watch:
        """Notice deaths also while nobody calls: the group refuses calls from then on, and `on_death` is
        told once.

        The thread is a daemon; it ends with `stop()`, with the group's shutdown, or when the group is gone.

        Args:
            on_death: called in the watching thread with a `Death`.
            every_s: seconds between two looks; one by default.
        """
        if not (on_death is None or callable(on_death)):
            raise unusable("on_death", on_death, "a function of a Death")
        worker_set = weakref.ref(self._worker_set)

        def tell(death: Death) -> None:
            watched = worker_set()
            if watched is not None:
                watched.mark_broken("watch", death.ranks, death.generation)
            if on_death is not None:
                on_death(death)

        looks = seconds("every_s", 1.0 if every_s is None else every_s, above_zero=True)
        watch = Watch(lambda: _living(worker_set()), tell, threading.TIMEOUT_MAX if looks is None else looks)
        self._worker_set.watches.append(watch)
        return watch

    def start_worker_aliveness_check(self, every_n_seconds: float | None = 1) -> Watch:
        """Watch the workers and make calls fail once one of them has died. Nothing is ever killed."""
        return self.watch(every_s=every_n_seconds)

    def restart(self) -> None:
        """End all workers and start them anew: same slots, ranks and constructor arguments, new port, next
        generation. Slots on a node that was lost are replaced by others.

        What earlier workers knew is gone, meshes included; futures of earlier generations are refused. Then
        `on_restart` is called. If it fails, the group stays broken and may be restarted again.

        Raises:
            NotTheOwnerError: a view of a role, or a group that was attached to; see `from_detached`.
            WorkerGroupError: the group was shut down, or a worker could not start.
            ResourceUnavailable: a node was lost, and there is no room elsewhere.
        """
        self._refuse_view("restart")
        self._worker_set.restart()
        self.forget_meshes()
        if self._recording is not None:
            self._record(self._recording)
        if self._on_restart is not None:
            try:
                self._on_restart(self)
            except BaseException:
                self._worker_set.mark_broken("on_restart", (), self.generation)
                raise

    def shutdown(self) -> None:
        """End the workers and give the place on the pool back. Safe to call twice.

        A group that was attached to only lets go of its workers.

        Raises:
            NotTheOwnerError: a view of a role.
        """
        self._refuse_view("shutdown")
        self._worker_set.close()


def _group_on(
    kind: type[AnyGroup],
    worker_set: WorkerSet,
    template: RayClassWithInitArgs[Any],
    role: str | None,
    facts: Mapping[str, Any],
) -> AnyGroup:
    """A group that neither starts nor owns its workers, or the view of one role of theirs."""
    group = kind.__new__(kind)
    WorkerGroup.__init__(group, None)
    group._template, group._role = template, role
    group.is_detached, group._on_restart = False, None
    vars(group).update(facts)
    group._adopt(worker_set, template.user_class, role)
    return group


def _attached(kind: type[AnyGroup], attachment: tuple[Any, ...], *group: Any) -> AnyGroup:
    """What a pickled or copied group is read back as."""
    return _group_on(kind, attached(*attachment), *group)


def _refuse_start_options(**given: Any) -> None:
    """Refuse what says how workers are to be started, or found, for those that are given in another way."""
    for name, value in given.items():
        if value is not None:
            way = "worker_handles" if name == "worker_names" else "worker_names or worker_handles"
            raise unusable(name, value, f"none: {way} says which workers, and those run already")


def _no_template(given: object, unknown: Mapping[str, object]) -> InvalidValueError:
    cls = given.__name__ if isinstance(given, type) else "WorkerClass"
    arguments = ", ".join([cls, *(f"{name}={value!r}" for name, value in unknown.items())])
    way = f"RayWorkerGroup(RayResourcePool([2]), RayClassWithInitArgs({arguments}))"
    return unusable("ray_cls_with_init", given, f"a RayClassWithInitArgs, as in {way}")


def _unknown_keyword(name: str, user_class: Any) -> InvalidTypeError:
    known = list(signature(RayWorkerGroup).parameters)[:-1]
    hint = maybe(name, known, "did you mean")
    if name in signature(user_class.__init__).parameters:
        hint = f"; the constructor's go to RayClassWithInitArgs({user_class.__name__}, {name}=...)"
    return InvalidTypeError(
        f"RayWorkerGroup got an unexpected keyword argument {name!r}{hint}; known: {', '.join(sorted(known))}"
    )


def _living(worker_set: WorkerSet | None) -> tuple[int, Mapping[int, Any]] | None:
    if worker_set is None or worker_set.closed:
        return None
    return worker_set.generation, dict(enumerate(worker_set.handles))
