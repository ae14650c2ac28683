"""Several roles in one worker; a call says which one by the pair (role, method), never by a joined name."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from verl_dispatch.errors import WorkerClassError
from verl_dispatch.methods.decorator import MAGIC_ATTR
from verl_dispatch.modes import Dispatch
from verl_dispatch.workers.site import SITE, WorkerSite, building
from verl_dispatch.workers.worker import Worker, role_in

_log = logging.getLogger(__name__)


def bad_roles(given: object, expected: str, parameter: str = "class_dict") -> WorkerClassError:
    """The error about roles that cannot be made out, or cannot be what is asked of them."""
    return WorkerClassError(f"{parameter}={given!r}, expected {expected}")


@dataclass(frozen=True)
class RoleSpec:
    """One role: its name, its class and what the class is built with."""

    name: str
    cls: type
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        given = ((), {}) if _arguments_go_apart.get() else (self.args, self.kwargs)
        return RoleSpec, (self.name, self.cls, *given)


_arguments_go_apart: ContextVar[bool] = ContextVar("verl_dispatch_arguments_go_apart", default=False)


@contextmanager
def arguments_apart() -> Iterator[None]:
    """A class that is pickled here comes without the arguments of its roles, which may be large."""
    token = _arguments_go_apart.set(True)
    try:
        yield
    finally:
        _arguments_go_apart.reset(token)


class ColocatedWorker(Worker):
    """One process that holds an instance of each role; made by `create_colocated_worker_raw_cls`.

    Where the roles are fused, each is an attribute too: `self.critic.score(...)`.

    Raises:
        WorkerClassError: a role of a fused class is named like something else that the class has.
    """

    role_specs: ClassVar[tuple[RoleSpec, ...]] = ()
    raw_cls_dict: ClassVar[dict[str, type]] = {}
    is_fused_worker: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        reserved = {*dir(cls), "fused_worker_dict", "worker_dict"}
        if cls.is_fused_worker and (taken := sorted(reserved.intersection(cls.raw_cls_dict))):
            raise WorkerClassError(
                f"role {taken[0]!r} cannot be an attribute of {cls.__name__}, which has one of that name; "
                "rename the role, or the attribute if it is yours"
            )

    def __init__(self) -> None:
        super().__init__()
        self.worker_dict: dict[str, Any] = {}
        for spec in self.role_specs:
            worker = self._build_role(spec, self.fused_worker_dict if self.is_fused_worker else {})
            self.worker_dict[spec.name] = worker
            if self.is_fused_worker:
                self.fused_worker_dict[spec.name] = worker
                setattr(self, spec.name, worker)

    def _build_role(self, spec: RoleSpec, siblings: dict[str, Any]) -> Any:
        outer = SITE.get() or WorkerSite(self.rank_info)
        with building(replace(outer, rank_info=self.rank_info, fused_workers=siblings, taken=False)):
            try:
                return spec.cls(*spec.args, **spec.kwargs)
            except Exception as error:
                error.add_note(f"while building role '{spec.name}'")
                raise

    def role_worker(self, role: str) -> Any:
        """The user's object for one role.

        Raises:
            UnknownRoleError: no such role here.
        """
        return role_in(self.worker_dict, role)

    def role_method(self, role: str, method: str) -> Callable[..., Any]:
        """The bound method of one role's object."""
        bound: Callable[..., Any] = getattr(self.role_worker(role), method)
        return bound

    def call_role(self, role: str, method: str, /, *args: Any, **kwargs: Any) -> Any:
        """Call one role's method; an async method gives its coroutine."""
        return self.role_method(role, method)(*args, **kwargs)


def roles_of(cls: type) -> Mapping[str, type]:
    """The class of each role; empty for a class that is no several roles in one."""
    return {spec.name: spec.cls for spec in cls.role_specs} if issubclass(cls, ColocatedWorker) else {}


def create_colocated_worker_raw_cls(
    class_dict: Mapping[str, Any], *, fused: bool = True
) -> type[ColocatedWorker]:
    """A class whose instance holds one instance of each role.

    Args:
        class_dict: role -> class, or object with `cls`, `args` and `kwargs` such as `ClassWithInitArgs`.
        fused: the roles' objects share one `fused_worker_dict`, so that each can call the others, and each is
            an attribute of the instance.

    Raises:
        WorkerClassError: `class_dict` is empty, an entry is no class, or a fused role has a name that every
            worker needs.
    """
    if not isinstance(class_dict, Mapping):
        raise bad_roles(class_dict, "a dict of role and class")
    if not class_dict:
        raise bad_roles(class_dict, "at least one role")
    names: list[Any] = list(class_dict)
    if not all(isinstance(name, str) and name for name in names):
        raise bad_roles(class_dict, "a name for each role")
    specs = tuple(_role_spec(name, given) for name, given in class_dict.items())
    prefix = "FusedWorker" if fused else "WorkerDict"
    members = {
        "role_specs": specs,
        "raw_cls_dict": {spec.name: spec.cls for spec in specs},
        "is_fused_worker": fused,
        "__module__": __name__,
        "__doc__": f"One process for the roles {', '.join(spec.name for spec in specs)}.",
        **_direct_methods(specs),
    }
    return type("_".join([prefix, *(spec.name for spec in specs)]), (ColocatedWorker,), members)


def has_async_methods(cls: type) -> bool:
    """Whether the class, or a role of a colocated class, defines an async method."""
    return any(
        inspect.iscoroutinefunction(member)
        for each in roles_of(cls).values() or [cls]
        for name, member in inspect.getmembers(each, inspect.isfunction)
        if not name.startswith("__")
    )


def clean_up_hook(cls: type, names: Sequence[str]) -> str | None:
    """The first of these methods that the class has, needs no argument, and is not the driver's to call."""
    for name in names:
        function = getattr(cls, name, None)
        if inspect.isfunction(function) and not hasattr(function, MAGIC_ATTR):
            with suppress(TypeError):
                inspect.signature(function).bind(None)
                return name
    return None


def clean_up(worker: Any, names: Sequence[str]) -> Coroutine[Any, Any, None] | None:
    """Run a worker's clean-up, then that of its roles, the last built first; failures are logged.

    Args:
        worker: the user's object.
        names: methods that may be the hook, see `clean_up_hook`.

    Returns:
        What async hooks have left to do, if there are any.
    """
    roles = reversed(worker.worker_dict.values()) if isinstance(worker, ColocatedWorker) else ()
    left: list[tuple[Any, Coroutine[Any, Any, Any]]] = []
    for each in (worker, *roles):
        name = clean_up_hook(type(each), names)
        with _failures_logged(each):
            value = None if name is None else getattr(each, name)()
            left += [(each, value)] if inspect.iscoroutine(value) else []
    return _finish(left) if left else None


async def _finish(left: Sequence[tuple[Any, Coroutine[Any, Any, Any]]]) -> None:
    for worker, rest in left:
        with _failures_logged(worker):
            await rest


@contextmanager
def _failures_logged(worker: Any) -> Iterator[None]:
    try:
        yield
    except Exception:
        _log.exception("the clean-up of a %s failed", type(worker).__name__)


def _role_spec(name: str, given: Any) -> RoleSpec:
    if isinstance(given, type):
        return RoleSpec(name, given, (), {})
    cls = getattr(given, "cls", None)
    if not isinstance(cls, type):
        raise bad_roles({name: given}, "a class, or an object with cls, args and kwargs, for each role")
    return RoleSpec(name, cls, tuple(given.args), dict(given.kwargs))


def _direct_methods(specs: tuple[RoleSpec, ...]) -> dict[str, Callable[..., Any]]:
    """The methods that are called on the colocated class itself, without their role's name."""
    found: dict[str, tuple[list[str], Callable[..., Any]]] = {}
    for spec in specs:
        for name, function in inspect.getmembers(spec.cls, inspect.isfunction):
            marks = getattr(function, MAGIC_ATTR, None)
            if marks is not None and marks["dispatch_mode"] == Dispatch.DIRECT_ROLLOUT_METHOD:
                found.setdefault(name, ([], function))[0].append(spec.name)
    return {name: _forward(tuple(roles), name, function) for name, (roles, function) in found.items()}


def _forward(roles: tuple[str, ...], name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A method that passes the call to its role; async where the role's method is.

    Roles of one class are common and mostly not called directly: several owners fail the call, not the class.
    """
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def forward_async(self: ColocatedWorker, *args: Any, **kwargs: Any) -> Any:
            return await self.call_role(_only(roles, name), name, *args, **kwargs)

        return forward_async

    @functools.wraps(function)
    def forward(self: ColocatedWorker, *args: Any, **kwargs: Any) -> Any:
        return self.call_role(_only(roles, name), name, *args, **kwargs)

    return forward


def _only(roles: tuple[str, ...], method: str) -> str:
    first, *others = roles
    if others:
        raise WorkerClassError(
            f"method '{method}' is marked DIRECT_ROLLOUT_METHOD in the roles {', '.join(roles)}; "
            "such methods are called without a role: keep the mark in one role only, or rename the method"
        )
    return first
