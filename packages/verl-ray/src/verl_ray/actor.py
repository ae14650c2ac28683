"""A worker class with its constructor's arguments and Ray options: what a group starts its actors from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ParamSpec, overload

import ray
from verl_dispatch.colocate import ColocatedWorker
from verl_dispatch.resource_pool import ClassWithInitArgs, W_co

from verl_ray.actor_class import derive_actor_class, user_class_of
from verl_ray.group_errors import RestartsRefusedError
from verl_ray.transports import uses_direct_transport

if TYPE_CHECKING:
    from ray.actor import ActorClass

__all__ = ["RayClassWithInitArgs"]

P = ParamSpec("P")

# What the group itself decides; `ray.remote` fills these in even where the user said nothing.
_DROPPED = ("concurrency_groups",)
_DIRECT = "enable_tensor_transport"


class RayClassWithInitArgs(ClassWithInitArgs[W_co]):
    """A worker class, plain or wrapped by `ray.remote`, with the arguments its constructor will get on every
    rank.

    Args:
        cls: the worker class; options given to `ray.remote` are kept.
        *args: positional arguments of the constructor.
        **kwargs: keyword arguments of the constructor.

    Raises:
        TypeError: `cls` is no class.

    >>> class Greeter:
    ...     def __init__(self, name: str) -> None:
    ...         self.name = name
    >>> template = RayClassWithInitArgs(Greeter, "Ada")
    >>> template.update_options({"num_cpus": 1})
    >>> template.cls is Greeter, template.args
    (True, ('Ada',))
    """

    fused_worker_used: bool

    if TYPE_CHECKING:

        @overload
        def __init__(self, cls: ActorClass[W_co], *args: Any, **kwargs: Any) -> None: ...
        @overload
        def __init__(self, cls: Callable[P, W_co], *args: P.args, **kwargs: P.kwargs) -> None: ...

    def __init__(self, cls: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(cls, *args, **kwargs)
        self.user_class: type = user_class_of(cls)
        self.fused_worker_used = False
        self._options: dict[str, Any] = {}
        self._additional_resource: dict[str, float] = {}
        self._actor_classes: dict[bool, Any] = {}

    def update_options(self, options: Mapping[str, Any]) -> None:
        """Add options for the actors, the same as `ray.remote` takes; later ones win."""
        self._options.update(options)

    def set_additional_resource(self, additional_resource: Mapping[str, float]) -> None:
        """Ask for custom resources beside those of the slot."""
        self._additional_resource = dict(additional_resource)

    def user_options(self) -> dict[str, Any]:
        """The user's options: those of `ray.remote`, then `update_options`, then the additional resources."""
        options = {**getattr(self.cls, "_default_options", {}), **self._options}
        options = {key: value for key, value in options.items() if key not in _DROPPED and value is not None}
        if self._additional_resource:
            options["resources"] = {**options.get("resources", {}), **self._additional_resource}
        return options

    def actor_options(self) -> dict[str, Any]:
        """What every actor of a group is started with, before the group adds its own.

        Raises:
            RestartsRefusedError: Ray would restart dead actors, and they would come back empty.
        """
        options = self.user_options()
        if options.get("max_restarts"):
            raise RestartsRefusedError(self.user_class.__name__, options["max_restarts"])
        return options

    def interleaves(self) -> bool:
        """Whether a worker runs several calls at a time, in no particular order."""
        return int(self.user_options().get("max_concurrency") or 1) > 1

    def actor_class(self) -> Any:
        """The class that Ray instantiates; made once, so that it is exported once."""
        interleaves = self.interleaves()
        if interleaves not in self._actor_classes:
            derived = derive_actor_class(self.user_class, interleaves=interleaves)
            self._actor_classes[interleaves] = self._remote_class(derived)
        return self._actor_classes[interleaves]

    def _remote_class(self, derived: type) -> Any:
        if uses_direct_transport(self.user_class) or self.user_options().get(_DIRECT):
            # Ray then runs the methods beside the main thread; it takes this with the class, not per actor.
            remote: Any = ray.remote
            return remote(**{_DIRECT: True})(derived)
        return ray.remote(derived)

    def constructor_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the set-up call passes to the constructor; for colocated roles their specifications."""
        if issubclass(self.user_class, ColocatedWorker):
            return (self.user_class.role_specs,), {}
        return tuple(self.args), dict(self.kwargs)

    def remote(self, options: Mapping[str, Any]) -> Any:
        """Start one actor with these options and return its handle at once."""
        return self.actor_class().options(**options).remote()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_actor_classes": {}}
