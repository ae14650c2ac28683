"""Which methods ask for a direct transport of their results, and whether Ray can offer it to their group."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Any

from verl_dispatch.register import MAGIC_ATTR, register_options

from verl_ray.actor_class import classes_of
from verl_ray.group_errors import TransportRefusedError

__all__ = ["check_transports", "direct_methods", "uses_direct_transport"]

_MODULES = {"gloo": "torch", "nccl": "cupy", "nixl": "nixl"}
"""What Ray imports to use a transport."""


def direct_methods(cls: type) -> dict[str, str]:
    """The methods of a worker class that ask for a direct transport, each with the transport's name."""
    return dict(_direct_methods(cls))


def _direct_methods(cls: type) -> Iterator[tuple[str, str]]:
    for name in dir(cls):
        function = getattr(cls, name, None)
        if hasattr(function, MAGIC_ATTR):
            transport = register_options(function).tensor_transport
            if transport is not None:
                yield name, str(transport).lower()


def check_transports(
    user_class: type, accelerator: str | None, options: Mapping[str, Any], detached: bool
) -> None:
    """Refuse up front what Ray could not do later.

    Raises:
        TransportRefusedError: a method asks for one that Ray cannot offer to this group.
    """
    for method, transport in _all_direct_methods(user_class):
        problem = _problem(transport, accelerator, options, detached)
        if problem is not None:
            raise TransportRefusedError(method, transport, *problem)


def uses_direct_transport(user_class: type) -> bool:
    """Whether the class, or one of its roles, has a method that asks for a direct transport."""
    return any(True for _ in _all_direct_methods(user_class))


def _all_direct_methods(user_class: type) -> Iterator[tuple[str, str]]:
    for cls in classes_of(user_class):
        yield from _direct_methods(cls)


def _problem(
    transport: str, accelerator: str | None, options: Mapping[str, Any], detached: bool
) -> tuple[str, str] | None:
    """Why Ray cannot, and the way out."""
    if transport not in _MODULES:
        return "Ray has no such transport", f"use one of {', '.join(sorted(_MODULES))}"
    if transport == "nccl" and accelerator != "GPU":
        return "the workers have no GPUs", "use gloo on CPUs"
    if find_spec(_MODULES[transport]) is None:
        return f"Ray needs the package {_MODULES[transport]} for it", "install it, or use gloo on CPUs"
    if detached:
        return (
            "its results end with the driver that called",
            "make the group without detached",
        )
    if (options.get("max_concurrency") or 1) > 1:
        return "the calls of its workers overtake each other", "leave max_concurrency out"
    return None
