"""Several roles in one process: one actor class out of several templates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_dispatch import colocate
from verl_dispatch.colocate import ColocatedWorker
from verl_dispatch.resource_pool import ClassWithInitArgs

from verl_ray.actor import RayClassWithInitArgs
from verl_ray.actor_class import user_class_of
from verl_ray.environment import merge_runtime_env

__all__ = [
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
]


def create_colocated_worker_cls(
    class_dict: Mapping[str, RayClassWithInitArgs[Any]],
) -> RayClassWithInitArgs[Any]:
    """A template whose every worker holds one object per role; `group.spawn({role, ...})` gives a view per
    role.

    Options of the roles are joined.

    Args:
        class_dict: role -> template.

    Raises:
        SettingsConflict: two roles set one option to different values.

    >>> class Actor: ...
    >>> class Critic: ...
    >>> roles = {"actor": RayClassWithInitArgs(Actor), "critic": RayClassWithInitArgs(Critic)}
    >>> both = create_colocated_worker_cls(roles)
    >>> both.fused_worker_used
    False
    """
    return _template(class_dict, fused=False)


def create_colocated_worker_cls_fused(
    class_dict: Mapping[str, RayClassWithInitArgs[Any]],
) -> RayClassWithInitArgs[Any]:
    """As `create_colocated_worker_cls`; besides, the roles of a process reach each other."""
    template = _template(class_dict, fused=True)
    template.fused_worker_used = True
    return template


def create_colocated_worker_raw_cls(class_dict: Mapping[str, Any]) -> type[ColocatedWorker]:
    """The plain class behind `create_colocated_worker_cls_fused`; `raw_cls_dict` holds each role's class."""
    return _raw_class(class_dict, fused=True)


def _raw_class(class_dict: Mapping[str, Any], *, fused: bool) -> type[ColocatedWorker]:
    plain = {
        role: ClassWithInitArgs(user_class_of(given.cls), *given.args, **given.kwargs)
        if isinstance(given, ClassWithInitArgs)
        else user_class_of(given)
        for role, given in class_dict.items()
    }
    return colocate.create_colocated_worker_raw_cls(plain, fused=fused)


def _template(
    class_dict: Mapping[str, RayClassWithInitArgs[Any]], *, fused: bool
) -> RayClassWithInitArgs[Any]:
    template: RayClassWithInitArgs[Any] = RayClassWithInitArgs(_raw_class(class_dict, fused=fused))
    template.update_options(
        merge_runtime_env(**{role: each.user_options() for role, each in class_dict.items()})
    )
    return template
