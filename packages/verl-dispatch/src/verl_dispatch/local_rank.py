"""One worker of an in-process group: the user's object, where it stands, and how a call runs on it."""

from __future__ import annotations

import asyncio
import contextvars
import os
import socket
import threading
import traceback
from collections.abc import Callable, Coroutine, Mapping
from types import CoroutineType, TracebackType
from typing import Any

from verl_protocol.wire_guard import check_unwritten, watch

from verl_dispatch.colocate import ColocatedWorker
from verl_dispatch.errors import WorkerFailure
from verl_dispatch.isolation import new_memo, private_arguments, private_copy
from verl_dispatch.plan import RankCall
from verl_dispatch.process_group import ProcessGroup
from verl_dispatch.rank_info import RankInfo, WorkerSite, building, enter_site, leave_site

__all__ = ["LocalRank", "ReadOnlyCopies", "failure_of"]

_PACKAGE = os.path.dirname(__file__)


class ReadOnlyCopies:
    """The one copy of a call's arguments that all ranks of a read-only call share."""

    def __init__(self) -> None:
        self._memo = new_memo()
        self._lock = threading.Lock()

    def arguments(self, call: RankCall) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        """One rank's arguments; objects that several ranks get are the same ones for all of them."""
        with self._lock:
            return watch(private_arguments(call.args, call.kwargs, self._memo))


class LocalRank:
    """One rank; what goes in and out of it is copied."""

    def __init__(
        self,
        info: RankInfo,
        make_process_group: Callable[[RankInfo], ProcessGroup],
        *,
        sets_environment: bool,
    ) -> None:
        self.info = info
        self.worker: Any = None
        self._make_process_group = make_process_group
        self._sets_environment = sets_environment
        self._site = WorkerSite(info, make_process_group, sets_environment, taken=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def build(self, cls: type, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Run the user's constructor."""
        args, kwargs = private_arguments(args, kwargs)
        with building(self.info, self._make_process_group, sets_environment=self._sets_environment) as site:
            self._site = site
            self.worker = cls(*args, **kwargs)
        site.taken = True

    def run(self, method: str, call: RankCall, role: str | None, read_only: ReadOnlyCopies | None) -> Any:
        """Run a method, to the end also if it is async, and give a copy of its value."""
        try:
            if read_only is None:
                args, kwargs = private_arguments(call.args, call.kwargs)
            else:
                args, kwargs = read_only.arguments(call)
        except Exception as error:
            error.add_note(f"while an argument of {method!r} was copied, as on the way to another process")
            raise
        token = enter_site(self._site)
        try:
            value = self._method(method, role)(*args, **kwargs)
            if type(value) is CoroutineType:
                value = self._run_coroutine(value)
        finally:
            leave_site(token)
        if read_only is not None:
            check_unwritten((args, kwargs))
        try:
            return private_copy(value)
        except Exception as error:
            error.add_note(f"while the answer of {method!r} was copied, as on the way to another process")
            raise

    def close(self) -> None:
        """Drop the user's object."""
        self.worker = None
        if self._loop is not None and not self._loop.is_running():
            self._loop.close()
        self._loop = None

    def _method(self, method: str, role: str | None) -> Callable[..., Any]:
        worker = self.worker
        if worker is None:
            raise RuntimeError("the group was shut down or restarted while the call was under way")
        if role is not None and isinstance(worker, ColocatedWorker):
            return worker.role_method(role, method)
        bound: Callable[..., Any] = getattr(worker, method)
        return bound

    def _run_coroutine(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        # One loop for the rank's whole life: locks and queues that a worker keeps belong to a loop.
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        if not _a_loop_runs_here():
            return self._loop.run_until_complete(coroutine)
        return _in_a_thread(self._loop, coroutine)


def _a_loop_runs_here() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _in_a_thread(loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine while the caller's own event loop runs: a thread can run one loop only."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(loop.run_until_complete(coroutine))
        except BaseException as error:
            outcome.append(error)
            raised.set()

    raised = threading.Event()
    context = contextvars.copy_context()
    thread = threading.Thread(target=context.run, args=(run,), name="verl-local-async", daemon=True)
    thread.start()
    thread.join()
    if raised.is_set():
        raise outcome[0]
    return outcome[0]


def failure_of(rank: int, error: BaseException) -> WorkerFailure:
    """What is told about an exception: where it ran, and its traceback from the user's code on."""
    frames = _users_frames(error.__traceback__)
    text = "".join(traceback.format_exception(type(error), error, frames))
    return WorkerFailure(rank, socket.gethostname(), os.getpid(), error, text)


def _users_frames(frames: TracebackType | None) -> TracebackType | None:
    first = frames
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        frames = frames.tb_next
    return first if frames is None else frames
