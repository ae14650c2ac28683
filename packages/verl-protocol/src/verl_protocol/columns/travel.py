"""Whether remote columns may stay where they are while a batch is pickled: only in messages of our own.

A reference that gets into any other pickle dangles, or keeps its object for good.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["may_travel", "references_travel"]


_travels: ContextVar[bool] = ContextVar("verl_protocol_references_travel", default=False)


def may_travel() -> bool:
    """Whether what is being pickled goes to somebody who can read the same store."""
    return _travels.get()


@contextmanager
def references_travel() -> Iterator[None]:
    """What is pickled here is a message of ours: remote columns stay where they are, their references go."""
    token = _travels.set(True)
    try:
        yield
    finally:
        _travels.reset(token)
