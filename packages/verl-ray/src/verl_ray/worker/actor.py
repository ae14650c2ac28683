"""A worker class with its constructor's arguments and Ray options: what a group starts its actors from."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, overload

import ray
from verl_dispatch.groups.pool import ClassWithInitArgs
from verl_dispatch.methods.registered import RegisteredMethod, registered_methods
from verl_dispatch.methods.static import GroupWorker
from verl_dispatch.workers import roles
from verl_protocol.arguments import mapping
from verl_protocol.errors import InvalidTypeError

from verl_ray.errors import TransportRefusedError, unusable
from verl_ray.worker.environment import merge_settings
from verl_ray.worker.host import Host, hidden_async_methods, runner, runner_name

if TYPE_CHECKING:
    from ray.actor import ActorClass


# --- The actor class behind a user's class: derived from it, same name, one runner per registered method --


ANY_METHOD = "_verl_run_any"
"""The runner for methods that are not registered; role (or None) and name of the method come first."""


CLEAN_UP = "_verl_clean_up"
"""The runner for what a worker has to do before it is ended; there only where its class has such a hook."""

CLEAN_UP_HOOKS = ("__ray_shutdown__", "close")
"""Ray's own hook, which Ray calls too where a worker ends without a kill, or that of in-process groups."""


class Route(NamedTuple):
    """Where a call goes: a method, its role where several share the process, and the runner for it."""

    role: str | None
    method: RegisteredMethod
    runner: str

    @property
    def transport(self) -> str | None:
        """The direct transport that the method asks for its results, if any."""
        asked = self.method.options.tensor_transport
        return None if asked is None else asked.lower()


def user_class_of(cls: Any) -> type:
    """The user's own class, also where `ray.remote` has wrapped it.

    Raises:
        TypeError: neither a class nor an actor class.
    """
    metadata = getattr(cls, "__ray_metadata__", None)
    if metadata is not None:
        modified: type = metadata.modified_class
        original: type = getattr(modified, "__ray_actor_class__", modified)
        return original
    if not isinstance(cls, type):
        raise TypeError(f"cls is {cls!r}, expected a worker class, plain or wrapped by ray.remote")
    return cls


def classes_of(user_class: type) -> tuple[type, ...]:
    """The class itself, then those of its roles."""
    return (user_class, *roles.roles_of(user_class).values())


def routes_of(user_class: type) -> tuple[Route, ...]:
    """A route for every registered method, role by role where the class holds several.

    What the class itself registers can be called on all roles' group; its routes have no role.
    """
    held: list[tuple[str | None, int | None, type]] = [(None, None, user_class)]
    held += [(role, index, cls) for index, (role, cls) in enumerate(roles.roles_of(user_class).items())]
    return tuple(
        Route(role, method, runner_name(index, method.name))
        for role, index, cls in held
        for method in registered_methods(cls).values()
    )


def derive_actor_class(user_class: type, *, interleaves: bool = False) -> type:
    """A class of the same name that waits for its set-up call before the user's constructor runs.

    Args:
        interleaves: whether calls may run at the same time; then async methods make it an asyncio actor.
    """
    is_asyncio = interleaves and roles.has_async_methods(user_class)
    members: dict[str, Any] = {
        "_verl_user_class": user_class,
        "__module__": user_class.__module__,
        "__qualname__": user_class.__qualname__,
        "__doc__": user_class.__doc__,
        ANY_METHOD: runner(ANY_METHOD, _call_any, interleaves=is_asyncio),
    }
    if not is_asyncio:
        members |= hidden_async_methods(user_class)
    if any(roles.clean_up_hook(cls, CLEAN_UP_HOOKS) for cls in classes_of(user_class)):
        members[CLEAN_UP] = runner(CLEAN_UP, _clean_up, CLEAN_UP, interleaves=is_asyncio)
    for route in routes_of(user_class):
        name, role = route.method.name, route.role
        find = partial(_method_of, role=role, method=name)
        members[route.runner] = runner(route.runner, find, name, role, interleaves=is_asyncio)
    metaclass: Any = type(user_class)
    made: type = metaclass(user_class.__name__, (Host, user_class), members)
    return made


def _method_of(worker: Any, role: str | None, method: str) -> Any:
    return getattr(worker, method) if role is None else worker.role_method(role, method)


def _call_any(worker: Any) -> Callable[..., Any]:
    def call(role: str | None, method: str, /, *args: Any, **kwargs: Any) -> Any:
        return _method_of(worker, role, method)(*args, **kwargs)

    return call


def _clean_up(worker: Any) -> Callable[[], Any]:
    # A worker whose constructor has not run has nothing to clean up.
    return lambda: roles.clean_up(worker, CLEAN_UP_HOOKS) if hasattr(worker, "_verl_report") else None


# --- What a group is started from -------------------------------------------------------------------------


P = ParamSpec("P")

_DIRECT = "enable_tensor_transport"


class RayClassWithInitArgs(ClassWithInitArgs[GroupWorker]):
    """A worker class, plain or wrapped by `ray.remote`, with the arguments its constructor will get on every
    rank.

    Args:
        cls: the worker class; options given to `ray.remote` are kept.
        *args: positional arguments of the constructor.
        **kwargs: keyword arguments of the constructor.

    Raises:
        TypeError: `cls` is no class.
        ValueError: a Ray option that no group can honour, such as `name` or `concurrency_groups`.

    >>> class Greeter:
    ...     def __init__(self, name: str) -> None:
    ...         self.name = name
    >>> template = RayClassWithInitArgs(Greeter, "Ada")
    >>> template.update_options({"num_cpus": 1})
    >>> template.cls is Greeter, template.args
    (True, ('Ada',))
    """

    if TYPE_CHECKING:

        @overload
        def __init__(self, cls: ActorClass[GroupWorker], *args: Any, **kwargs: Any) -> None: ...
        @overload
        def __init__(self, cls: Callable[P, GroupWorker], *args: P.args, **kwargs: P.kwargs) -> None: ...

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cls, *args, **kwargs)
        self.user_class: type = user_class_of(cls)
        self._options: dict[str, Any] = {}
        self._additional_resource: dict[str, float] = {}
        self._actor_classes: dict[bool, Any] = {}
        _refuse_options(self.user_class, getattr(cls, "_default_options", {}))

    def update_options(self, options: Mapping[str, Any] | None) -> None:
        """Add options for the actors, the same as `ray.remote` takes; later ones win.

        Raises:
            ValueError: an option that a group cannot honour.
        """
        given = mapping("options", options or {})
        _refuse_options(self.user_class, given)
        self._options.update(given)

    def set_additional_resource(self, additional_resource: Mapping[str, float] | None) -> None:
        """Ask for custom resources beside those of the slot; None for none."""
        self._additional_resource = dict(mapping("additional_resource", additional_resource or {}))

    def user_options(self) -> dict[str, Any]:
        """The user's options: those of `ray.remote`, then `update_options`, then the additional resources."""
        options = {**getattr(self.cls, "_default_options", {}), **self._options}
        # Ray itself puts its groups for system calls there.
        options.pop("concurrency_groups", None)
        options = {key: value for key, value in options.items() if value is not None}
        if self._additional_resource:
            options["resources"] = {**options.get("resources", {}), **self._additional_resource}
        return options

    def interleaves(self) -> bool:
        """Whether a worker runs several calls at a time, in no particular order."""
        return int(self.user_options().get("max_concurrency") or 1) > 1

    def actor_class(self) -> Any:
        """The class that Ray instantiates; made once, so that it is exported once."""
        interleaves = self.interleaves()
        if interleaves not in self._actor_classes:
            remote: Any = ray.remote
            if self.user_options().get(_DIRECT) or any(each.transport for each in routes_of(self.user_class)):
                # Ray then runs the methods beside the main thread; it takes this with the class, not per
                # actor.
                remote = remote(**{_DIRECT: True})
            derived = derive_actor_class(self.user_class, interleaves=interleaves)
            self._actor_classes[interleaves] = remote(derived)
        return self._actor_classes[interleaves]

    def constructor_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the set-up call passes to the constructor; for colocated roles after their specifications."""
        specs = (self.user_class.role_specs,) if issubclass(self.user_class, roles.ColocatedWorker) else ()
        return (*specs, *self.args), dict(self.kwargs)

    def constructions(self) -> tuple[roles.RoleSpec, ...]:
        """What is built in a worker: an object of the class, and one of each role where it holds several."""
        specs = self.user_class.role_specs if issubclass(self.user_class, roles.ColocatedWorker) else ()
        return roles.RoleSpec("", self.user_class, self.args, self.kwargs), *specs

    def check_arguments(self) -> None:
        """Refuse arguments that the constructor, or that of a role, cannot take.

        Raises:
            TypeError: they do not fit.
        """
        for spec in self.constructions():
            try:
                inspect.signature(spec.cls).bind(*spec.args, **spec.kwargs)
            except TypeError as error:
                raise InvalidTypeError(
                    f"ray_cls_with_init has arguments of which no {spec.cls.__name__} can be made: {error}; "
                    "give the template, with its arguments, that the workers were started from"
                ) from None

    def remote(self, options: Mapping[str, Any], label: str = "") -> Any:
        """Start one actor with these options and return its handle at once.

        Args:
            options: for the actor.
            label: what Ray puts before the lines that it prints.
        """
        # Ray pickles the class with the first actor; the roles' arguments come with the set-up call.
        with roles.arguments_apart():
            return self.actor_class().options(**options).remote(label)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_actor_classes": {}}


_BY_THE_POOL = (
    "none: the pool places the workers; get_placement_groups(strategy) and label_selector of RayResourcePool "
    "say where"
)
_NOT_HONOURED = {
    "max_restarts": "none: a worker that Ray restarts comes back without its state, its meshes and its "
    "process group; group.restart() restarts all workers together",
    "name": "none: each worker has a name of its own; name_prefix of RayWorkerGroup begins them",
    "get_if_exists": "none: RayWorkerGroup.from_detached attaches to workers that run already",
    "lifetime": "none: detached=True, for the pool and for RayWorkerGroup, lets workers outlive the driver",
    "scheduling_strategy": _BY_THE_POOL,
    "placement_group": _BY_THE_POOL,
    "placement_group_bundle_index": _BY_THE_POOL,
}
"""Ray options for which a group has a way of its own, and what to write instead."""


def _refuse_options(user_class: type, options: Mapping[str, Any]) -> None:
    for option, expected in _NOT_HONOURED.items():
        if options.get(option):
            raise unusable(f"{option} of the options of {user_class.__name__}", options[option], expected)
    own = [name for name in options.get("concurrency_groups") or () if not name.startswith("_ray_")]
    asked = {"concurrency_groups": own} if own else {}
    for cls in classes_of(user_class):
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            group = getattr(method, "__ray_concurrency_group__", None)
            asked |= {} if group is None else {f"concurrency_group of {cls.__name__}.{name}": group}
    for argument, given in asked.items():
        raise unusable(
            argument,
            given,
            "none: a worker runs the calls of its group one at a time, in the order sent; "
            'update_options({"max_concurrency": n}) lets it run any n at a time',
        )


# --- Several roles in one process: one actor class out of several templates -------------------------------


def create_colocated_worker_cls(
    class_dict: Mapping[str, ClassWithInitArgs[Any]],
) -> RayClassWithInitArgs[Any]:
    """A template whose every worker holds one object per role; `group.spawn({role, ...})` gives a view per
    role.

    Options of the roles are joined.

    Args:
        class_dict: role -> template; one of a plain `ClassWithInitArgs` has no options.

    Raises:
        ValueError: two roles set one option to different values.

    >>> class Actor: ...
    >>> class Critic: ...
    >>> roles = {"actor": RayClassWithInitArgs(Actor), "critic": RayClassWithInitArgs(Critic)}
    >>> both = create_colocated_worker_cls(roles)
    >>> both.fused_worker_used
    False
    """
    return _template(class_dict, fused=False)


def create_colocated_worker_cls_fused(
    class_dict: Mapping[str, ClassWithInitArgs[Any]],
) -> RayClassWithInitArgs[Any]:
    """As `create_colocated_worker_cls`; besides, the roles of a process reach each other.

    Raises:
        WorkerClassError: a role is named like something that every worker needs.
    """
    return _template(class_dict, fused=True)


def create_colocated_worker_raw_cls(class_dict: Mapping[str, Any]) -> type[roles.ColocatedWorker]:
    """The plain class behind `create_colocated_worker_cls_fused`; `raw_cls_dict` holds each role's class."""
    return _raw_class(class_dict, fused=True)


def _raw_class(class_dict: Mapping[str, Any], *, fused: bool) -> type[roles.ColocatedWorker]:
    if not isinstance(class_dict, Mapping):
        raise roles.bad_roles(class_dict, "a dict of role and RayClassWithInitArgs")
    plain = {
        role: ClassWithInitArgs(user_class_of(given.cls), *given.args, **given.kwargs)
        if isinstance(given, ClassWithInitArgs)
        else user_class_of(given)
        for role, given in class_dict.items()
    }
    return roles.create_colocated_worker_raw_cls(plain, fused=fused)


def _template(class_dict: Mapping[str, Any], *, fused: bool) -> RayClassWithInitArgs[Any]:
    template: RayClassWithInitArgs[Any] = RayClassWithInitArgs(_raw_class(class_dict, fused=fused))
    template.fused_worker_used = fused
    template.update_options(merge_settings(**{role: _options_of(each) for role, each in class_dict.items()}))
    return template


def _options_of(given: Any) -> dict[str, Any]:
    """The user's options of a role's template; a class alone has them where `ray.remote` wrapped it."""
    if isinstance(given, RayClassWithInitArgs):
        return given.user_options()
    return RayClassWithInitArgs(given.cls if isinstance(given, ClassWithInitArgs) else given).user_options()


# --- Methods that ask for a direct transport of their results, and whether Ray can offer it ----------------


_MODULES = {"gloo": "torch", "nccl": "cupy", "nixl": "nixl"}
"""What Ray imports to use a transport."""


def check_transports(template: RayClassWithInitArgs[Any], accelerator: str | None, detached: bool) -> None:
    """Refuse up front what Ray could not do later.

    Raises:
        TransportRefusedError: a method asks for one that Ray cannot offer to this group.
    """
    interleaves = template.interleaves()
    for route in routes_of(template.user_class):
        if route.transport and (problem := _problem(route.transport, accelerator, detached, interleaves)):
            raise TransportRefusedError(route.method.name, route.transport, *problem)


def _problem(
    transport: str, accelerator: str | None, detached: bool, interleaves: bool
) -> tuple[str, str] | None:
    """Why Ray cannot, and the way out."""
    if transport not in _MODULES:
        return "Ray has no such transport", f"use one of {', '.join(sorted(_MODULES))}"
    if transport == "nccl" and accelerator != "GPU":
        return "the workers have no GPUs", "use gloo on CPUs"
    if find_spec(_MODULES[transport]) is None:
        return f"Ray needs the package {_MODULES[transport]} for it", "install it, or use gloo on CPUs"
    if detached:
        return "its results end with the driver that called", "make the group without detached"
    if interleaves:
        return "the calls of its workers overtake each other", "leave max_concurrency out"
    return None
