"""What a group knows about one registered method of its worker class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_dispatch.errors import WorkerClassError
from verl_dispatch.methods.decorator import MAGIC_ATTR, RegisterOptions, positional_names, register_options
from verl_dispatch.methods.registry import DispatchMode, check_dispatch_mode, check_execute_mode, mode_name
from verl_dispatch.modes import Execute
from verl_dispatch.planning.options import CallOptions, Labels


def registered_methods(cls: type, reserved: frozenset[str] = frozenset()) -> dict[str, RegisteredMethod]:
    """All registered methods of a worker class, by name; backends call this before they start anything.

    Raises:
        WorkerClassError: a method named like something that the group needs, an override that drops or
            changes the registration of what it overrides, or one that is no method (a property, say).
        TypeError: a mode that has lost its functions.
    """
    found: dict[str, RegisteredMethod] = {}
    for name in dir(cls):
        member = inspect.getattr_static(cls, name)
        _check_override(cls, name, member)
        hidden = any(hasattr(getattr(member, inner, None), MAGIC_ATTR) for inner in _HOLD_FUNCTIONS)
        if not hasattr(member, MAGIC_ATTR) and not hidden:
            continue
        if hidden or not inspect.isfunction(member):
            raise _no_instance_method(cls.__qualname__, name, type(member).__name__)
        kinds = [each.kind for each in inspect.signature(member).parameters.values()]
        if not kinds or kinds[0] in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
            raise _no_instance_method(cls.__qualname__, name, "function without self")
        if name in reserved:
            problem = "is reserved by the worker group; rename the method"
            raise WorkerClassError(f"method {name!r} of {cls.__qualname__} {problem}")
        found[name] = RegisteredMethod.of(name, member)
    return found


_HOLD_FUNCTIONS = ("__func__", "fget", "func")
"""Where class and static methods, properties, and partial methods and cached properties keep theirs."""


def _no_instance_method(cls: str, name: str, kind: str) -> WorkerClassError:
    return WorkerClassError(
        f"{cls}.{name} is registered, but is a {kind}: a group runs methods of its workers; "
        f"register a method that takes self, and call the {kind} from there"
    )


def _check_override(cls: type, name: str, function: Any) -> None:
    for base in cls.__mro__[1:]:
        marks = getattr(base.__dict__.get(name), MAGIC_ATTR, None)
        if marks is None:
            continue
        own = getattr(function, MAGIC_ATTR, None)
        if own is None:
            change = "without @register"
        elif own["dispatch_mode"] != marks["dispatch_mode"]:
            change = f"with {mode_name(own['dispatch_mode'])} instead of {mode_name(marks['dispatch_mode'])}"
        elif own["execute_mode"] != marks["execute_mode"]:
            change = f"with execute mode {own['execute_mode'].name} instead of {marks['execute_mode'].name}"
        else:
            continue
        raise WorkerClassError(
            f"{cls.__qualname__}.{name} overrides the registered {base.__qualname__}.{name} {change}; "
            "decorate the override with the same modes, or give it another name"
        )


# --- what a group knows of one of them --------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class RegisteredMethod:
    """A registered method: how it is called, and the shape of its arguments, read once.

    Attributes:
        name: the method's name.
        function: the function on the class.
        dispatch_mode, execute_mode, blocking: as given to `register`.
        options: what else was given to `register`.
        signature: without `self`.
        is_async: whether the worker's method is a coroutine function.
    """

    name: str
    function: Callable[..., Any]
    dispatch_mode: DispatchMode
    execute_mode: Execute
    blocking: bool
    options: RegisterOptions
    signature: inspect.Signature
    is_async: bool
    labels: Labels
    stand_in: Callable[..., None] = field(repr=False)

    @classmethod
    def of(cls, name: str, function: Callable[..., Any]) -> RegisteredMethod:
        """Reads a function that `register` made.

        Raises:
            TypeError: its mode has lost its functions, or is none.
        """
        marks = getattr(function, MAGIC_ATTR)
        check_dispatch_mode(marks["dispatch_mode"])
        check_execute_mode(marks["execute_mode"])
        signature = _without_self(function)
        return cls(
            name=name,
            function=function,
            **marks,
            options=register_options(function),
            signature=signature,
            is_async=inspect.iscoroutinefunction(function),
            labels=Labels(name, positional_names(signature.parameters.values())),
            stand_in=_stand_in(signature),
        )

    def check_binding(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raises what a plain call with these arguments would raise.

        Raises:
            TypeError: too many, unknown or missing arguments.
        """
        try:
            self.stand_in(*args, **kwargs)
        except TypeError:
            try:
                self.signature.bind(*args, **kwargs)
            except TypeError as error:
                raise TypeError(
                    f"{self.name}{self.signature}: {error}{self._options_among(kwargs)}"
                ) from None

    def _options_among(self, kwargs: Mapping[str, Any]) -> str:
        meant = [
            f"{name}={value!r}"
            for name, value in kwargs.items()
            if name in CallOptions.__slots__ and name not in self.signature.parameters
        ]
        shown = ", ".join(meant)
        return f"; to set an option of the call: group.{self.name}.options({shown})(...)" if meant else ""


def _stand_in(signature: inspect.Signature) -> Callable[..., None]:
    """A function of the same parameters that does nothing: Python binds arguments faster than `inspect`."""
    empty = inspect.Parameter.empty
    parameters = [
        each.replace(annotation=empty, default=empty if each.default is empty else None)
        for each in signature.parameters.values()
    ]
    bare = str(signature.replace(parameters=parameters, return_annotation=empty))
    made: Callable[..., None] = eval(f"lambda {bare[1:-1]}: None")
    return made


def _without_self(function: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(function)
    # Ray adds a keyword to the methods of a class that is given to `ray.remote`; nobody calls with it.
    own = [each for each in signature.parameters.values() if each.name != "_ray_trace_ctx"]
    return signature.replace(parameters=own[1:])
