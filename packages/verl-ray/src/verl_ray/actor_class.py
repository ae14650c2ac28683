"""The actor class behind a user's class: derived from it, same name, one runner per registered method."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from verl_dispatch.colocate import ColocatedWorker, has_async_methods
from verl_dispatch.register import MAGIC_ATTR, register_options

from verl_ray.async_methods import hidden_async_methods
from verl_ray.host import Host, runner, runner_name

__all__ = [
    "ANY_METHOD",
    "Route",
    "classes_of",
    "derive_actor_class",
    "roles_of",
    "routes_of",
    "user_class_of",
]

ANY_METHOD = "_verl_run_any"
"""The runner for methods that are not registered; role (or None) and name of the method come first."""


@dataclass(frozen=True)
class Route:
    """Where a call goes: a method, its role where several share the process, and the runner for it."""

    role: str | None
    method: str
    runner: str
    is_async: bool
    materializes: bool


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


def roles_of(user_class: type) -> dict[str, type]:
    """The class of each role; empty for a class that is no several roles in one."""
    if not issubclass(user_class, ColocatedWorker):
        return {}
    return {spec.name: spec.cls for spec in user_class.role_specs}


def classes_of(user_class: type) -> tuple[type, ...]:
    """The class itself, or the classes of its roles."""
    return tuple(roles_of(user_class).values()) or (user_class,)


def routes_of(user_class: type) -> tuple[Route, ...]:
    """A route for every registered method, role by role where the class holds several.

    What the class itself registers can be called on all roles' group; its routes have no role.
    """
    routes = tuple(_routes(user_class, None, None))
    if issubclass(user_class, ColocatedWorker):
        for index, spec in enumerate(user_class.role_specs):
            routes += tuple(_routes(spec.cls, spec.name, index))
    return routes


def _routes(cls: type, role: str | None, role_index: int | None) -> Iterator[Route]:
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        if hasattr(function, MAGIC_ATTR):
            is_async = inspect.iscoroutinefunction(function)
            materializes = register_options(function).materialize_futures
            yield Route(role, name, runner_name(role_index, name), is_async, materializes)


def derive_actor_class(user_class: type, *, interleaves: bool = False) -> type:
    """A class of the same name that waits for its set-up call before the user's constructor runs.

    Args:
        interleaves: whether calls may run at the same time; then async methods make it an asyncio actor.
    """
    is_asyncio = interleaves and has_async_methods(user_class)
    members: dict[str, Any] = {
        "_verl_user_class": user_class,
        "__module__": user_class.__module__,
        "__qualname__": user_class.__qualname__,
        "__doc__": user_class.__doc__,
        ANY_METHOD: runner(ANY_METHOD, _call_any, interleaves=is_asyncio),
    }
    if not is_asyncio:
        members |= hidden_async_methods(user_class)
    for route in routes_of(user_class):
        members[route.runner] = runner(route.runner, _finder(route), interleaves=is_asyncio)
    if issubclass(user_class, ColocatedWorker):
        # The roles' arguments come with the set-up call, not with the class: they may be large.
        members["role_specs"] = ()
    return type(user_class)(user_class.__name__, (Host, user_class), members)


def _finder(route: Route) -> Callable[[Any], Callable[..., Any]]:
    if route.role is None:
        return attrgetter(route.method)
    role, method = route.role, route.method
    return lambda worker: worker.role_method(role, method)


def _call_any(worker: Any) -> Callable[..., Any]:
    def call(role: str | None, method: str, /, *args: Any, **kwargs: Any) -> Any:
        function = getattr(worker, method) if role is None else worker.role_method(role, method)
        return function(*args, **kwargs)

    return call
