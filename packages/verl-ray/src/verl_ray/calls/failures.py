"""How a call ended on every rank: the answers, the errors told apart, and who stayed silent."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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

__all__ = ["Survey", "describe_failures", "has_failed", "is_gone", "survey"]


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
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
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


def has_failed(ref: Any) -> bool:
    """Whether what is behind the reference is an error by now."""
    try:
        ray.get(ref, timeout=0)
    except GetTimeoutError:
        return False
    except Exception:  # whatever the worker raised
        return True
    return False


def describe_failures(
    errors: Mapping[int, BaseException], reports: Mapping[int, WorkerReport]
) -> dict[int, WorkerFailure]:
    """For each failed rank where it ran, what it raised, and the remote traceback."""
    return {rank: _describe(rank, error, reports.get(rank)) for rank, error in errors.items()}


def _describe(rank: int, error: BaseException, report: WorkerReport | None) -> WorkerFailure:
    text = _ANSI.sub("", str(error)) if isinstance(error, RayError) else ""
    node, pid = _place(text, report)
    # Only what the worker itself raised has a traceback; all else says what it has to say in the cause.
    return WorkerFailure(rank, node, pid, _cause_of(error), text if isinstance(error, RayTaskError) else "")


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
