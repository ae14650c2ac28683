"""Attaching to workers that run already: who is who is asked of the workers, never read from their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import RayError
from verl_protocol.arguments import flag, texts
from verl_protocol.errors import InvalidTypeError, short

from verl_ray.calls.futures import AnswerPart, fetch_answers
from verl_ray.errors import AttachError, unusable
from verl_ray.group.launch import end
from verl_ray.group.setup import places_again
from verl_ray.group.worker_set import WorkerSet
from verl_ray.pools.cluster import ensure_ray_started, placement_groups_of
from verl_ray.pools.placement import release
from verl_ray.worker.actor import RayClassWithInitArgs
from verl_ray.worker.host import WorkerReport

__all__ = ["attach", "attach_by_handle", "attach_by_name", "destroy_detached"]


def attach(
    group: str,
    names: Sequence[str] | None,
    handles: Sequence[Any] | None,
    template: RayClassWithInitArgs[Any],
    timeout_s: float,
) -> WorkerSet:
    """Running workers: by handle where handles are given, else by name."""
    if handles is not None:
        return attach_by_handle(group, handles, timeout_s)
    return attach_by_name(group, texts("worker_names", names), template, timeout_s)


def attach_by_name(
    group: str, names: Sequence[str], template: RayClassWithInitArgs[Any], timeout_s: float
) -> WorkerSet:
    """All workers of one group, in the order of the ranks they report; detached ones may be restarted.

    Raises:
        AttachError: a name is unknown, a rank is missing or comes twice, or a worker does not answer.
    """
    ensure_ray_started()
    handles = [_handle(name) for name in names]
    reports = _reports(handles, names, timeout_s)
    _check_ranks(reports, names)
    order = sorted(range(len(names)), key=lambda index: reports[index].rank_info.rank)
    return WorkerSet.attached(
        group,
        [handles[i] for i in order],
        [names[i] for i in order],
        [reports[i] for i in order],
        find_places=places_again(reports[0].origin, template),
    )


def attach_by_handle(group: str, handles: Sequence[Any], timeout_s: float) -> WorkerSet:
    """Any workers, in this order; a handle may come more than once.

    Raises:
        AttachError: no handles, or a worker does not answer or was not started by a group.
    """
    if not isinstance(handles, Sequence):
        raise InvalidTypeError(f"worker_handles must be a list of actor handles, got {short(handles)}")
    ensure_ray_started()
    titles = [f"worker_handles[{index}]" for index in range(len(handles))]
    if not handles:
        raise AttachError("worker_handles is empty", "give at least one")
    reports = _reports(handles, titles, timeout_s)
    names = [f"{group}_{index}" for index in range(len(handles))]
    return WorkerSet.attached(group, handles, names, reports)


def destroy_detached(worker_names: Sequence[str], *, placement_groups: bool = False) -> None:
    """End detached workers by their names, and wait until they are gone; those that are already are passed
    over.

    Args:
        worker_names: the names.
        placement_groups: also remove the placement groups that the workers were on, with whoever else is
            there: all that is left of a detached pool whose driver has ended.

    Raises:
        AttachError: a name is unknown because this driver is in another namespace.
        ValueError: nothing is known of the placement groups.
    """
    names = texts("worker_names", worker_names)
    free = flag("placement_groups", placement_groups)
    ensure_ray_started()
    groups = placement_groups_of(names) if free else []
    if free and not groups:
        raise unusable(
            "worker_names", names, "names of actors that were on a placement group, in this namespace"
        )
    handles = []
    for name in names:
        try:
            handles.append(ray.get_actor(name))
        except ValueError:
            _refuse_anonymous_namespace(name)
    end(handles)
    release(groups)


def _handle(name: str) -> Any:
    try:
        return ray.get_actor(name)
    except ValueError:
        _refuse_anonymous_namespace(name)
        raise AttachError(
            f"no actor named {name!r} in namespace {ray.get_runtime_context().namespace!r}",
            "give the names of living workers, and connect with ray.init(namespace=...) to their namespace",
        ) from None


def _refuse_anonymous_namespace(name: str) -> None:
    namespace = str(ray.get_runtime_context().namespace)
    # Ray gives a driver that names no namespace one of its own, with a random UUID.
    if namespace.count("-") == 4:
        raise AttachError(
            f"this driver is in the anonymous namespace {namespace!r}, where there is no actor {name!r}",
            "connect with ray.init(namespace=...) to the namespace of the workers",
        ) from None


def _reports(handles: Sequence[Any], titles: Sequence[str], timeout_s: float) -> list[WorkerReport]:
    foreign = [t for h, t in zip(handles, titles, strict=True) if not hasattr(h, "_verl_identity")]
    if foreign:
        raise AttachError(
            f"{', '.join(foreign)} was not started by a worker group", "give workers of a group"
        )
    asked = [handle._verl_identity.remote() for handle in handles]
    try:
        return fetch_answers([AnswerPart(ref) for ref in asked], timeout_s)
    except RayError as error:
        raise AttachError(f"a worker did not answer: {error}", "give living workers of a group") from None
    except TimeoutError:
        raise AttachError(
            f"not all workers answered within {timeout_s:g} s", "wait until they are idle"
        ) from None


def _check_ranks(reports: Sequence[WorkerReport], names: Sequence[str]) -> None:
    if not reports:
        raise AttachError("worker_names is empty", "name all workers of the group")
    ranks = Counter(report.rank_info.rank for report in reports)
    sizes = {report.rank_info.world_size for report in reports}
    missing = [f"rank {rank} missing" for rank in range(max(sizes)) if rank not in ranks]
    twice = [f"rank {rank} comes {count} times" for rank, count in sorted(ranks.items()) if count > 1]
    mixed = [f"world sizes differ: {sorted(sizes)}"] if len(sizes) > 1 else []
    if problems := missing + twice + mixed:
        raise AttachError(
            f"{', '.join(problems)} among {', '.join(names)}", "name every worker of one group, each once"
        )
