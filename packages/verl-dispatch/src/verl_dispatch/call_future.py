"""The future of one call on a group."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from threading import Lock
from typing import Any, Generic, TypeVar

from verl_dispatch.plan import CallPlan

__all__ = ["CallFuture"]

T = TypeVar("T")
_UNSET: Any = object()


class CallFuture(Generic[T]):
    """A call under way: `result(timeout)` waits for it, `await future` leaves the event loop free meanwhile.

    The result, or the failure, is kept and given again.
    """

    def __init__(self, group: Any, plan: CallPlan, pendings: Sequence[Any], timeout_s: float | None) -> None:
        self._group = group
        self._plan = plan
        self._pendings = pendings
        self._timeout_s = timeout_s
        self._lock = Lock()
        self._value: Any = _UNSET

    def result(self, timeout: float | None = None) -> T:
        """The result of the call.

        Args:
            timeout: seconds to wait; None takes the call's own `timeout_s`.

        Raises:
            WorkerGroupError: a worker failed.
            CallTimeout: no result in time; a later `result` may still get it.
        """
        with self._lock:
            if self._value is _UNSET:
                limit = self._timeout_s if timeout is None else timeout
                outputs = self._group._wait(self._plan, self._pendings, limit)
                self._value = self._plan.collect.collect(outputs)
                self._pendings = ()
        value: T = self._value
        return value

    def done(self) -> bool:
        """Whether `result` would return without waiting, as far as the group can tell."""
        return self._value is not _UNSET or bool(self._group._done(self._plan, self._pendings))

    def __await__(self) -> Generator[Any, None, T]:
        return asyncio.to_thread(self.result).__await__()
