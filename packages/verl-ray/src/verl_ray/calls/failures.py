"""How a call ended on every rank: the answers, the errors told apart, and who stayed silent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import ray
from ray import exceptions
from verl_dispatch.errors import CallTimeout, WorkerFailure

from verl_ray.calls.makers import Maker, maker_of_actor
from verl_ray.wire.refs import is_late
from verl_ray.worker.host import WorkerReport

_GONE = (
    exceptions.RayActorError,
    exceptions.WorkerCrashedError,
    exceptions.OutOfMemoryError,
    exceptions.NodeDiedError,
    exceptions.LocalRayletDiedError,
    exceptions.ActorPlacementGroupRemoved,
    exceptions.ActorUnschedulableError,
    # An answer lies on the node of the worker that made it, until somebody fetches it.
    exceptions.ObjectLostError,
)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_HEAD = re.compile(r"ray::\S*?(\w+)\(\) \(pid=\d+, ip=[^,]*, actor_id=(\w+)")
_PID = re.compile(r"\bpid[=:] ?(\d+)")
_IP = re.compile(r"\bip[=:] ?([0-9A-Fa-f.:]+)")


def survey(refs: Sequence[Any], grace_s: float) -> tuple[dict[int, BaseException], list[int]]:
    """What failed of these calls, by index, and which of them had not ended after `grace_s`."""
    ended = set(ray.wait(list(refs), num_returns=len(refs), timeout=grace_s, fetch_local=False)[0])
    found = {index: failure_of(ref) for index, ref in enumerate(refs) if ref in ended}
    errors: dict[int, BaseException] = {index: error for index, error in found.items() if error is not None}
    return errors, [index for index, ref in enumerate(refs) if ref not in ended]


def is_gone(error: BaseException) -> bool:
    """Whether Ray says by this error that the worker which was to answer is gone, killed for memory included.

    A worker that waits for the result of another one, which is gone, raises that error itself: as what a task
    raised, it says nothing of the kind about the worker.
    """
    return isinstance(error, _GONE) and not isinstance(error, exceptions.RayTaskError)


def explained(errors: Mapping[Maker, BaseException], missing: Iterable[Maker] = ()) -> BaseException:
    """The error of the call that failed first; what no group known here makes says itself why it failed."""
    first, error = next(iter(errors.items()))
    if first.workers is None:
        return error
    failed = {maker.rank: each for maker, each in errors.items() if maker.calls_as(first)}
    silent = {maker.rank for maker in missing if maker.calls_as(first)}.difference(failed)
    return first.workers.failure(first.method, failed, silent, first.generation)


def late(missing: Sequence[Maker], limit_s: float) -> TimeoutError:
    """The error of the call whose answers are the first that are missing."""
    first = missing[0]
    if first.workers is None:
        return TimeoutError(f"a part of a batch was not there within {limit_s:g} s")
    ranks = {maker.rank for maker in missing if maker.calls_as(first)}
    return CallTimeout(first.group, first.method, limit_s, sorted(ranks))


def began_with(error: BaseException) -> tuple[Maker, BaseException] | None:
    """The worker at whose failure this one began, that of a worker which was given its result.

    Besides the worker, the error as it was there.
    """
    if not isinstance(error, exceptions.RayTaskError):
        return None
    cause: BaseException = error
    heads = _HEAD.findall(_ANSI.sub("", str(error)))
    if isinstance(error.cause, exceptions.RayActorError) and error.cause.actor_id:
        # Of an actor that died, Ray does not say in which method.
        maker, cause = maker_of_actor(error.cause.actor_id), error.cause
    elif len(heads) > 1:
        method, actor_id = heads[-1]
        maker = maker_of_actor(actor_id, method)
    else:
        return None
    return None if maker is None else (maker, cause)


def failure_of(ref: Any) -> Exception | None:
    """The error that is behind the reference by now, if one is."""
    try:
        ray.get(ref, timeout=0)
    except Exception as error:  # whatever the worker raised, be it that it ran out of time itself
        return None if is_late(error) else error
    return None


def has_failed(ref: Any) -> bool:
    """Whether what is behind the reference is an error by now."""
    return failure_of(ref) is not None


def describe_failures(
    errors: Mapping[int, BaseException], reports: Sequence[WorkerReport] = ()
) -> dict[int, WorkerFailure]:
    """For each failed rank where it ran, what it raised, and the remote traceback."""
    return {rank: _describe(rank, e, reports[rank] if reports else None) for rank, e in errors.items()}


def _describe(rank: int, error: BaseException, report: WorkerReport | None) -> WorkerFailure:
    told = error.cause if isinstance(error, exceptions.RayTaskError) else None
    cause = told if isinstance(told, BaseException) else error
    if cause is not error and isinstance(cause, exceptions.RayActorError):
        # It is another worker that has died, of which only Ray knows.
        return WorkerFailure(rank, *_place(str(cause), None), cause, _ANSI.sub("", str(error)))
    text = _ANSI.sub("", str(error)) if isinstance(error, exceptions.RayError) else ""
    node, pid = _place(text, report)
    # Only what the worker itself raised has a traceback; all else says what it has to say in the cause.
    return WorkerFailure(rank, node, pid, cause, text if isinstance(error, exceptions.RayTaskError) else "")


def _place(text: str, report: WorkerReport | None) -> tuple[str, int | None]:
    """Node and process, from the worker's own report; before there is one, from what Ray says."""
    if report is not None:
        return f"{report.node_ip}/{report.node_id[:8]}", report.pid
    pid, ip = _PID.search(text), _IP.search(text)
    return ip[1] if ip else "unknown", int(pid[1]) if pid else None
