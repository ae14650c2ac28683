"""How a call ended on every rank: the answers, the errors told apart, and who stayed silent."""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    WorkerCrashedError,
)
from verl_dispatch.errors import WorkerFailure

from verl_ray.wire.refs import get_answers
from verl_ray.worker.host import WorkerReport

__all__ = [
    "AN_EARLIER_CALL",
    "Survey",
    "began_with",
    "describe_failures",
    "failure_of",
    "has_failed",
    "is_gone",
    "maker_of_actor",
    "remember",
    "survey",
]


_GONE = (
    RayActorError,
    WorkerCrashedError,
    OutOfMemoryError,
    NodeDiedError,
    LocalRayletDiedError,
    ActorPlacementGroupRemoved,
    ActorUnschedulableError,
    # An answer lies on the node of the worker that made it, until somebody fetches it.
    ObjectLostError,
)
AN_EARLIER_CALL = "(an earlier call)"
"""Stands for the method that makes a result, where neither we nor Ray know it."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"ray::\S*?(\w+)\(\) \(pid=\d+, ip=[^,]*, actor_id=(\w+)")
_PID = re.compile(r"\bpid[=:] ?(\d+)")
_IP = re.compile(r"\bip[=:] ?([0-9A-Fa-f.:]+)")


@dataclass
class Survey:
    """What came of a list of references, by index.

    Attributes:
        values: answers that arrived.
        errors: what was raised instead.
        silent: indices that had not answered when the survey ended, sorted.
    """

    values: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, BaseException] = field(default_factory=dict)
    silent: list[int] = field(default_factory=list)

    @property
    def lost_a_worker(self) -> bool:
        """Whether one of the workers is gone."""
        return any(map(is_gone, self.errors.values()))


def survey(refs: Sequence[Any], grace_s: float) -> Survey:
    """Ask what came of each reference, waiting at most `grace_s` for those still pending."""
    index_of = {ref: index for index, ref in enumerate(refs)}
    pending, found = list(refs), Survey()
    deadline = time.monotonic() + grace_s
    while pending:
        left = max(0.0, deadline - time.monotonic())
        done, pending = ray.wait(pending, num_returns=1, timeout=left, fetch_local=False)
        if not done:
            break
        _take(done[0], index_of[done[0]], found)
    found.silent = sorted(index_of[ref] for ref in pending)
    return found


def _take(ref: Any, index: int, found: Survey) -> None:
    try:
        found.values[index] = get_answers([ref])[0]
    except Exception as error:  # whatever a worker raises is the survey's finding
        found.errors[index] = error


def is_gone(error: BaseException) -> bool:
    """Whether Ray says by this error that the worker which was to answer is gone, killed for memory included.

    A worker that waits for the result of another one, which is gone, raises that error itself: as what a task
    raised, it says nothing of the kind about the worker.
    """
    return isinstance(error, _GONE) and not isinstance(error, RayTaskError)


# --- Failures that a worker only got from another one, whose result it was given ---------------------------


_MAKERS: dict[str, Maker] = {}
"""Each worker of the groups of this process, also of those that are gone, by its actor's id; a few bytes."""


class Maker(NamedTuple):
    """A worker that makes results: of which workers, of which generation of theirs, and which rank."""

    workers: weakref.ref[Any]
    generation: int
    rank: int


def remember(workers: Any, handles: Sequence[Any], generation: int) -> None:
    """Let failures of these actors be told as those of a rank of `workers`, which knows them first."""
    kept = weakref.ref(workers)
    for rank, handle in enumerate(handles):
        actor_id = handle._actor_id.hex()
        if maker_of_actor(actor_id) is None:
            _MAKERS[actor_id] = Maker(kept, generation, rank)


def maker_of_actor(actor_id: str) -> Maker | None:
    """The worker that the actor is, while its group is there."""
    maker = _MAKERS.get(actor_id)
    return maker if maker is not None and maker.workers() is not None else None


def began_with(error: BaseException) -> tuple[Maker, str, BaseException] | None:
    """The worker at whose failure this one began, that of a worker which was given its result.

    Besides the worker, the method, "" where Ray does not say it, and the error as it was there.
    """
    if not isinstance(error, RayTaskError):
        return None
    cause: BaseException = error
    heads = _HEAD.findall(_ANSI.sub("", str(error)))
    if isinstance(error.cause, RayActorError) and error.cause.actor_id:
        method, actor_id, cause = "", error.cause.actor_id, error.cause
    elif len(heads) > 1:
        method, actor_id = heads[-1]
    else:
        return None
    maker = maker_of_actor(actor_id)
    return None if maker is None else (maker, method, cause)


def failure_of(ref: Any) -> Exception | None:
    """The error that is behind the reference by now, if one is."""
    try:
        ray.get(ref, timeout=0)
    except GetTimeoutError:
        return None
    except Exception as error:  # whatever the worker raised
        return error
    return None


def has_failed(ref: Any) -> bool:
    """Whether what is behind the reference is an error by now."""
    return failure_of(ref) is not None


def describe_failures(
    errors: Mapping[int, BaseException], reports: Mapping[int, WorkerReport]
) -> dict[int, WorkerFailure]:
    """For each failed rank where it ran, what it raised, and the remote traceback."""
    return {rank: _describe(rank, error, reports.get(rank)) for rank, error in errors.items()}


def _describe(rank: int, error: BaseException, report: WorkerReport | None) -> WorkerFailure:
    cause = _cause_of(error)
    if cause is not error and isinstance(cause, RayActorError):
        # It is another worker that has died, of which only Ray knows.
        return WorkerFailure(rank, *_place(str(cause), None), cause, _ANSI.sub("", str(error)))
    text = _ANSI.sub("", str(error)) if isinstance(error, RayError) else ""
    node, pid = _place(text, report)
    # Only what the worker itself raised has a traceback; all else says what it has to say in the cause.
    return WorkerFailure(rank, node, pid, cause, text if isinstance(error, RayTaskError) else "")


def _place(text: str, report: WorkerReport | None) -> tuple[str, int | None]:
    """Node and process, from the worker's own report; before there is one, from what Ray says."""
    if report is not None:
        return f"{report.node_ip}/{report.node_id[:8]}", report.pid
    pid, ip = _PID.search(text), _IP.search(text)
    return ip[1] if ip else "unknown", int(pid[1]) if pid else None


def _cause_of(error: BaseException) -> BaseException:
    if isinstance(error, RayTaskError) and isinstance(error.cause, BaseException):
        return error.cause
    return error
