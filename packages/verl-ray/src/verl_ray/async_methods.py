"""Async methods on ordinary actors, so that a worker's calls run one at a time in the order sent.

Ray makes an asyncio actor of every class with an `async def`, and starts the calls of such an actor in no
particular order, also with `max_concurrency=1`: a call could overtake one whose result it waits for. Here the
actor stays an ordinary one, whose calls Ray orders, and the coroutines run on an event loop beside it.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from typing import Any

import ray
from ray.exceptions import TaskCancelledError

__all__ = ["MethodLoop", "hidden_async_methods"]

_CANCEL_POLL_S = 0.05


class MethodLoop:
    """An event loop on a thread of its own, for all async methods of a worker.

    It goes on between calls, so what a method leaves running there (a server, an engine's background task) is
    served all the time.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="async methods", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """The coroutine's value; a call that `ray.cancel` ends is cancelled on the loop.

        Raises:
            TaskCancelledError: the call was cancelled.
            BaseException: whatever the coroutine raised.
        """
        tasks: list[asyncio.Task[Any]] = []
        outcome = asyncio.run_coroutine_threadsafe(_outcome(coroutine, tasks), self._loop)
        is_canceled = ray.get_runtime_context().is_canceled
        while wait([outcome], timeout=_CANCEL_POLL_S).not_done:
            if is_canceled() and tasks:
                self._loop.call_soon_threadsafe(tasks.pop().cancel)
        value, error = outcome.result()
        if isinstance(error, asyncio.CancelledError):
            raise TaskCancelledError from error
        if error is not None:
            raise error
        return value


async def _outcome(
    coroutine: Coroutine[Any, Any, Any], tasks: list[asyncio.Task[Any]]
) -> tuple[Any, BaseException | None]:
    """Value and error of the coroutine; the task it runs in is left in `tasks`.

    An error is returned because some (SystemExit for one) would end the loop's thread on their way.
    """
    task = asyncio.current_task()
    if task is not None:
        tasks.append(task)
    try:
        return await coroutine, None
    except BaseException as error:
        return None, error


def hidden_async_methods(cls: type) -> dict[str, Any]:
    """Stand-ins for the members by which Ray would take the class for that of an asyncio actor."""
    found = inspect.getmembers(cls, _is_async)
    return {name: _stand_in(inspect.getattr_static(cls, name)) for name, _ in found}


def _is_async(member: object) -> bool:
    return inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member)


def _stand_in(member: Any) -> Any:
    """A member that does the same without looking like a coroutine function."""
    if isinstance(member, (staticmethod, classmethod)):
        return type(member)(_forwarder(member.__func__))
    return _method(member)


def _forwarder(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """The worker's own code gets the coroutine to await; whoever calls by the actor's handle, the value."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = function(self, *args, **kwargs)
        called_by_ray = not self._verl_inside and threading.current_thread() is threading.main_thread()
        return self._verl_loop.run(made) if called_by_ray and inspect.iscoroutine(made) else made

    return call
