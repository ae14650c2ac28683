"""What travels of remote columns: how many objects, and in messages of our own references to them.

A reference that gets into any other pickle dangles, or keeps its object for good.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final, TypeVar

T = TypeVar("T")

LARGE_BYTES: Final = 100_000
"""A column of fewer bytes costs less inside a message than as an object of its own."""

MOST_OBJECTS: Final = 4
"""Each object costs Ray about a millisecond, so one batch becomes no more than so many."""


_travels: ContextVar[bool] = ContextVar("verl_protocol_references_travel", default=False)


def may_travel() -> bool:
    """Whether what is being pickled goes to somebody who can read the same store."""
    return _travels.get()


def travelling(dump: Callable[..., T], *args: Any, **kwargs: Any) -> T:
    """What `dump` gives for a message of ours: remote columns stay where they are, their references go."""
    token = _travels.set(True)
    try:
        return dump(*args, **kwargs)
    finally:
        _travels.reset(token)
