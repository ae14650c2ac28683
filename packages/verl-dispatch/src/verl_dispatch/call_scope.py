"""The call that a dispatch function works for, known also where a custom mode calls the function."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from verl_dispatch.labels import UNNAMED, Labels
from verl_dispatch.options import DEFAULT_OPTIONS, CallOptions

__all__ = ["call_scope", "current_labels", "current_options"]

_SCOPE: ContextVar[tuple[Labels, CallOptions]] = ContextVar(
    "verl_dispatch_call", default=(UNNAMED, DEFAULT_OPTIONS)
)


@contextmanager
def call_scope(labels: Labels, options: CallOptions) -> Iterator[None]:
    """Makes argument names and options of one call known to the dispatch functions."""
    token = _SCOPE.set((labels, options))
    try:
        yield
    finally:
        _SCOPE.reset(token)


def current_labels() -> Labels:
    """How to name the arguments of the current call."""
    return _SCOPE.get()[0]


def current_options() -> CallOptions:
    """The options of the current call."""
    return _SCOPE.get()[1]
