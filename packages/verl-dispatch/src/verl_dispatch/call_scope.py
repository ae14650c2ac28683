"""The call that a dispatch function works for, also in a custom mode, and how messages name its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from verl_dispatch.options import DEFAULT_OPTIONS, CallOptions

__all__ = ["Labels", "call_scope", "current_labels", "current_options"]


class Labels:
    """Names the arguments of one method; without a method, by position and keyword only."""

    __slots__ = ("method", "parameters", "start")

    def __init__(self, method: str = "", parameters: Sequence[str] = (), start: int = 0) -> None:
        self.method = method
        self.parameters = parameters
        self.start = start

    def positional(self, index: int) -> str:
        """Positional argument `index`, for example `argument 0 ('batch') of method 'update'`."""
        index += self.start
        name = f" ({self.parameters[index]!r})" if index < len(self.parameters) else ""
        return f"argument {index}{name}{self._of()}"

    def keyword(self, name: str) -> str:
        """Keyword argument `name`."""
        return f"argument {name!r}{self._of()}"

    def all(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Names of all these arguments, positional ones first."""
        return [
            *(self.positional(index) for index in range(len(args))),
            *(self.keyword(name) for name in kwargs),
        ]

    def after(self, count: int) -> Labels:
        """The same names for what follows the first `count` arguments."""
        return Labels(self.method, self.parameters, self.start + count)

    def _of(self) -> str:
        return f" of method {self.method!r}" if self.method else ""


UNNAMED = Labels()


@dataclass(slots=True)
class CallScope:
    """Argument names and options of one call, and whether a dispatch function has asked for the options."""

    labels: Labels
    options: CallOptions
    asked: bool = False


_SCOPE: ContextVar[CallScope | None] = ContextVar("verl_dispatch_call", default=None)


@contextmanager
def call_scope(labels: Labels, options: CallOptions) -> Iterator[CallScope]:
    """Makes argument names and options of one call known to the dispatch functions."""
    scope = CallScope(labels, options)
    token = _SCOPE.set(scope)
    try:
        yield scope
    finally:
        _SCOPE.reset(token)


def current_labels() -> Labels:
    """How to name the arguments of the current call."""
    scope = _SCOPE.get()
    return UNNAMED if scope is None else scope.labels


def current_options() -> CallOptions:
    """The options of the current call."""
    scope = _SCOPE.get()
    if scope is None:
        return DEFAULT_OPTIONS
    scope.asked = True
    return scope.options
