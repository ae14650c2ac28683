"""The call that a dispatch function works for, known also where a custom mode calls the function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from verl_dispatch.labels import UNNAMED, Labels
from verl_dispatch.options import DEFAULT_OPTIONS, CallOptions

__all__ = ["call_scope", "current_labels", "current_options"]


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
