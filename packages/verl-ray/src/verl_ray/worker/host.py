"""What runs inside a worker's process: the part of an actor class that is not the user's.

The actor class derives from the user's class and from `Host`. Its constructor only waits; `_verl_set_up`
then says who the worker is and runs the user's constructor, on all ranks at the same time. Calls of a group
come in through one runner per registered method, which opens the message, calls the user's method and
prepares the answer.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import threading
import time
import traceback
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import ray
from ray.exceptions import TaskCancelledError
from verl_dispatch.workers.observed import Observation, Recorder, RecordWhen
from verl_dispatch.workers.rank import RankInfo
from verl_dispatch.workers.roles import ColocatedWorker
from verl_dispatch.workers.site import WorkerSite, building
from verl_protocol.wire.guard import sharing_reads

from verl_ray._clock import IMPORTED_AT
from verl_ray.pools.devices import accelerator_named, hidden_masks, is_noset, settle_masks, visible_index
from verl_ray.wire.message import Message, check_arguments, open_message, prepare_answer
from verl_ray.wire.refs import cloud_dumps
from verl_ray.worker.rendezvous import Rendezvous, choose_rendezvous

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Assignment:
    """What the group decides about one worker.

    Attributes:
        rank_info: its identity.
        accelerator: that of its slot, if any.
        origin: pickled, what whoever attaches to the group needs to start it again; b"" where nobody may.
        launch: how often the group was started before.
    """

    rank_info: RankInfo
    accelerator: str | None = None
    origin: bytes = field(default=b"", repr=False)
    launch: int = 0


@dataclass(frozen=True)
class WorkerReport:
    """What a worker says about itself once it is set up.

    Attributes:
        assignment: who it is, with the meeting point and its device.
        node_id: Ray's id of its node.
        node_ip: address of its node.
        pid: its process.
        loaded_at: when its process began to import this package and the user's code, seconds since the epoch.
        imports_s: seconds until the actor existed.
        constructor_s: seconds in the user's constructor.
    """

    assignment: Assignment
    node_id: str
    node_ip: str
    pid: int
    loaded_at: float
    imports_s: float
    constructor_s: float


def startup_times(reports: Sequence[WorkerReport], requested_at: float) -> dict[str, Any]:
    """Seconds of each stage of a start; of stages that ranks pass at the same time, those of the slowest
    rank.

    `processes_s` from the request to the start of the import of the user's code, `imports_s` importing it,
    `init_s` in the user's constructor, `actors_s` from the request to the last rank's constructor, exclusive;
    `slowest_rank` was ready last, `constructors_s` tells of the constructors rank by rank.

    Args:
        requested_at: in seconds since the epoch. Clocks of different nodes may disagree, so no stage is less
            than 0.
    """
    processes = [max(0.0, report.loaded_at - requested_at) for report in reports]
    imports = [report.imports_s for report in reports]
    constructors = tuple(report.constructor_s for report in reports)
    totals = [sum(stages) for stages in zip(processes, imports, constructors, strict=True)]
    return {
        "processes_s": max(processes),
        "imports_s": max(imports),
        "init_s": max(constructors),
        "actors_s": max(p + i for p, i in zip(processes, imports, strict=True)),
        "slowest_rank": totals.index(max(totals)),
        "constructors_s": constructors,
    }


# --- The object in the worker's process, and how it is set up ---------------------------------------------


class Host:
    """The part of every actor class that is not the user's; see `derive_actor_class`."""

    _verl_user_class: ClassVar[type]
    _verl_report: WorkerReport
    _verl_inside = False
    _verl_recorder: Recorder | None = None

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """An empty object: the user's `__new__` runs at set-up, when its arguments are here."""
        try:
            return object.__new__(cls)
        except TypeError:
            # A class built on dict, list or the like makes its own empty objects.
            return cls._verl_user_class.__new__(cls)  # type: ignore[call-overload]

    def __init__(self, label: str = "") -> None:
        """Only wait: who this worker is comes with the set-up call."""
        self._verl_born_at = time.time()
        self._verl_label = label

    def __repr__(self) -> str:
        """What the user's class says, once it is there; before, the label.

        Ray asks when the actor is there, and marks with it every line that the worker prints.
        """
        own: Any = self._verl_user_class.__repr__
        is_set_up = "_verl_report" in vars(self)
        return str(own(self)) if is_set_up and own is not object.__repr__ else self._verl_label

    @cached_property
    def _verl_loop(self) -> MethodLoop:
        """Where the async methods run."""
        return MethodLoop(self._verl_report.assignment.rank_info.device_index)

    def _verl_open_rendezvous(self, asked: Rendezvous | range) -> Rendezvous:
        """Choose where the group meets, on the node of rank 0, and keep hold of the port."""
        self._verl_held = choose_rendezvous(asked, _node_ip())
        return self._verl_held[0]

    def _verl_set_up(
        self, assignment: Assignment, rendezvous: Rendezvous, message: Message, /, *refs: Any
    ) -> WorkerReport:
        """Set environment and rank, then run the user's constructor."""
        info = replace(
            assignment.rank_info,
            master_addr=rendezvous.address,
            master_port=str(rendezvous.port),
            device_index=_set_device_masks(assignment.accelerator),
        )
        os.environ.update(info.environment())
        args, kwargs, _ = open_message(message, refs)
        make_current(info.device_index)
        started_at = time.perf_counter()
        with building(WorkerSite(info)), leaving_ends_the_process(self):
            _construct(self, args, kwargs)
        constructor_s = time.perf_counter() - started_at
        self._verl_report = _report(replace(assignment, rank_info=info), self._verl_born_at, constructor_s)
        return self._verl_report

    def _verl_record(self, where: tuple[str, RecordWhen] | None, made_from: bytes) -> None:
        """Record calls into a folder of this node, or stop."""
        info = self._verl_report.assignment.rank_info
        self._verl_recorder = None if where is None else Recorder(*where, made_from, info, cloud_dumps)

    def _verl_identity(self) -> WorkerReport:
        """Who this worker is, for a driver that attaches to it."""
        return self._verl_report


def _set_device_masks(resource: str | None) -> int | None:
    if resource is None:
        os.environ.update(hidden_masks())
        return None
    accelerator = accelerator_named(resource)
    if accelerator.resource == "GPU":
        settle_masks(os.environ)
    assigned = ray.get_runtime_context().get_accelerator_ids().get(resource, [])
    mask = os.environ.get(accelerator.mask) if accelerator.mask else None
    return visible_index(assigned, mask, is_noset(os.environ, accelerator))


def make_current(device_index: int | None) -> None:
    """Let `"cuda"`, or what the accelerator is called, mean the worker's device in this thread.

    The first device is current anyhow, so that only workers which see more than theirs import torch for it.
    """
    if device_index:
        import torch

        if torch.accelerator.is_available():
            torch.accelerator.set_device_index(device_index)


def _construct(host: Host, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Run `__new__` and `__init__` of the user's class on the object that has been waiting."""
    user_class = host._verl_user_class
    if issubclass(user_class, ColocatedWorker):
        type(host).role_specs, *rest = args  # type: ignore[attr-defined]
        args = tuple(rest)
    make: Any = user_class.__new__
    if make is not object.__new__:
        vars(host).update(vars(make(type(host), *args, **kwargs)))
    initialise: Any = user_class.__init__  # type: ignore[misc]
    initialise(host, *args, **kwargs)


def _node_ip() -> str:
    return str(ray.util.get_node_ip_address())


def _report(assignment: Assignment, born_at: float, constructor_s: float) -> WorkerReport:
    context = ray.get_runtime_context()
    return WorkerReport(
        assignment=assignment,
        node_id=context.get_node_id(),
        node_ip=_node_ip(),
        pid=os.getpid(),
        loaded_at=IMPORTED_AT,
        imports_s=max(0.0, born_at - IMPORTED_AT),
        constructor_s=constructor_s,
    )


# --- The calls of its group, and how the user's code ends ---------------------------------------------------


def runner_name(role_index: int | None, method: str) -> str:
    """The name of a runner; the number of the role keeps (role, method) pairs apart."""
    return f"_verl_run_{method}" if role_index is None else f"_verl_run_{role_index}_{method}"


def runner(
    name: str,
    find: Callable[[Any], Callable[..., Any]],
    method: str = "",
    role: str | None = None,
    *,
    interleaves: bool,
) -> Callable[..., Any]:
    """A method that opens a message, calls what `find(worker)` gives, and prepares the answer.

    Args:
        name: of the runner.
        find: gives what to call.
        method: of the user's class; by default the second argument says it.
        role: whose method it is, where several share the process.
        interleaves: whether it is for an asyncio actor, where calls run at the same time.
    """

    def opened(
        worker: Any, message: Message, refs: tuple[Any, ...]
    ) -> tuple[Callable[[], Any], bool, Callable[[Any], Any]]:
        """The call, whether it shares what it reads, and what makes of its value what Ray shall carry."""
        seen = Observation(method, worker._verl_recorder, role)
        args, kwargs, answer = open_message(message, refs)
        is_watched = answer.timed or worker._verl_recorder is not None
        function = seen.of(find(worker)) if is_watched else find(worker)

        def finish(value: Any) -> Any:
            check_arguments(args, kwargs, answer)
            prepared = prepare_answer(value, answer, method or args[1])
            if not answer.timed:
                return prepared
            return (*prepared, seen.stamps) if answer.with_rows or answer.remote else (prepared, seen.stamps)

        return partial(function, *args, **kwargs), answer.guarded, finish

    def run(self: Any, message: Message = None, /, *refs: Any) -> Any:
        call, shared, finish = opened(self, message, refs)
        with leaving_ends_the_process(self), sharing_reads(shared):
            value = call()
            if inspect.iscoroutine(value):
                value = self._verl_loop.run(value)
        return finish(value)

    async def run_interleaved(self: Any, message: Message = None, /, *refs: Any) -> Any:
        call, shared, finish = opened(self, message, refs)
        with leaving_ends_the_process(), sharing_reads(shared):
            value = call()
            if inspect.iscoroutine(value):
                value = await value
        return finish(value)

    chosen = run_interleaved if interleaves else run
    chosen.__name__ = chosen.__qualname__ = name
    return chosen


@contextmanager
def leaving_ends_the_process(host: Host | None = None) -> Iterator[None]:
    """Let `sys.exit` in the user's code end the worker's process.

    Left to Ray, such a process was seen to linger, and the driver to wait with it.
    `ray.actor.exit_actor()` keeps its orderly way.

    Args:
        host: the worker, where its constructor or method runs in the main thread.
    """
    if host is not None:
        host._verl_inside = True
    try:
        yield
    except SystemExit as leaving:
        if getattr(leaving, "is_ray_terminate", False):
            raise
        _log.exception("the worker's process ends, as its code called for")
        logging.shutdown()
        os._exit(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
    except Exception as error:
        told = _as_text(error)
        if told is error:
            raise
        raise told from None
    finally:
        if host is not None:
            host._verl_inside = False


def _as_text(error: Exception) -> Exception:
    """The error itself, or one that says the same, so that it can be told in UTF-8.

    Ray tells it so, and ends a worker where that fails: half a surrogate pair is enough.
    """
    said = "".join(traceback.format_exception_only(error)).strip()
    link: BaseException | None = error
    while link is not None and not _is_text(error):
        link.args = tuple(_escaped(arg) if isinstance(arg, str) else arg for arg in link.args)
        link = link.__cause__ or link.__context__
    return error if _is_text(error) else RuntimeError(_escaped(said)).with_traceback(error.__traceback__)


def _is_text(error: BaseException) -> bool:
    try:
        "".join(traceback.format_exception(error)).encode()
    except UnicodeEncodeError:
        return False
    return True


def _escaped(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


# --- Async methods on ordinary actors, so that a worker's calls run one at a time in the order sent -------
# Ray makes an asyncio actor of every class with an `async def`, and starts the calls of such an actor in no
# particular order, also with `max_concurrency=1`: a call could overtake one whose result it waits for. Here
# the actor stays an ordinary one, whose calls Ray orders, and the coroutines run on an event loop beside
# it.


_CANCEL_POLL_S = 0.05


class MethodLoop:
    """An event loop on a thread of its own, for all async methods of a worker.

    It goes on between calls, so what a method leaves running there (a server, an engine's background task) is
    served all the time.

    Args:
        device_index: of the worker's accelerator, which is made current there too.
    """

    def __init__(self, device_index: int | None = None) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.call_soon(make_current, device_index)
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
    kinds = inspect.iscoroutinefunction, inspect.isasyncgenfunction
    found = inspect.getmembers(cls, lambda member: any(is_kind(member) for is_kind in kinds))
    return {name: _stand_in(inspect.getattr_static(cls, name)) for name, _ in found}


def _stand_in(member: Any) -> Any:
    """A member that does the same without looking like a coroutine function.

    The worker's own code gets the coroutine to await; whoever calls by the actor's handle, the value.
    """
    if isinstance(member, (staticmethod, classmethod)):
        function: Any = member.__func__
        forward: Any = functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))
        kind: Any = type(member)
        return kind(forward)

    @functools.wraps(member)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = member(self, *args, **kwargs)
        called_by_ray = not self._verl_inside and threading.current_thread() is threading.main_thread()
        return self._verl_loop.run(made) if called_by_ray and inspect.iscoroutine(made) else made

    return call
