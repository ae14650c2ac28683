"""Attaching to workers that run already: who is who is asked of the workers, never read from their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from verl_protocol.arguments import flag, texts
from verl_protocol.errors import InvalidTypeError, short

from verl_ray.calls.futures import AnswerPart, fetch_answers
from verl_ray.errors import AttachError, unusable
from verl_ray.group.launch import end, spec_again
from verl_ray.group.worker_set import WorkerSet, attached
from verl_ray.pools.cluster import ensure_ray_started, placement_groups_of
from verl_ray.pools.placement import release
from verl_ray.worker.actor import RayClassWithInitArgs
from verl_ray.worker.host import WorkerReport


def attach(
    group: str,
    names: Sequence[str] | None,
    handles: Sequence[Any] | None,
    template: RayClassWithInitArgs[Any],
    timeout_s: float,
) -> WorkerSet:
    """Running workers: any by handle, in this order, maybe one more than once; or all of a group by name, in
    the order of their ranks, and detached ones may be restarted.

    Raises:
        AttachError: no handles, a name is unknown, a rank is missing or comes twice, or a worker does not
            answer or was not started by a group.
    """
    if handles is None:
        return _attach_by_name(group, texts("worker_names", names), template, timeout_s)
    if not isinstance(handles, Sequence):
        raise InvalidTypeError(f"worker_handles must be a list of actor handles, got {short(handles)}")
    ensure_ray_started()
    if not handles:
        raise AttachError("worker_handles is empty", "give at least one")
    reports = _reports(handles, [f"worker_handles[{index}]" for index in range(len(handles))], timeout_s)
    return attached(group, handles, [f"{group}_{index}" for index in range(len(handles))], reports)


def _attach_by_name(
    group: str, names: Sequence[str], template: RayClassWithInitArgs[Any], timeout_s: float
) -> WorkerSet:
    ensure_ray_started()
    handles = [_actor(name) for name in names]
    if None in handles:
        raise AttachError(
            f"no actor named {names[handles.index(None)]!r} in namespace {_namespace()!r}",
            "give the names of living workers, and connect with ray.init(namespace=...) to their namespace",
        )
    reports = _reports(handles, names, timeout_s)
    _check_ranks(reports, names)
    found = sorted(
        zip(handles, names, reports, strict=True), key=lambda worker: worker[2].assignment.rank_info.rank
    )
    handles, names, reports = map(list, zip(*found, strict=True))
    origin = reports[0].assignment.origin
    find_spec = partial(spec_again, origin, template) if origin else None
    return attached(group, handles, names, reports, find_spec=find_spec)


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
    end([handle for handle in map(_actor, names) if handle is not None])
    release(groups)


def _actor(name: str) -> Any:
    """The actor of this name, None where there is none in this namespace, if the driver chose that."""
    try:
        return ray.get_actor(name)
    except ValueError:
        # Ray gives a driver that names no namespace one of its own, with a random UUID.
        if (namespace := _namespace()).count("-") == 4:
            raise AttachError(
                f"this driver is in the anonymous namespace {namespace!r}, where there is no actor {name!r}",
                "connect with ray.init(namespace=...) to the namespace of the workers",
            ) from None
        return None


def _namespace() -> str:
    return str(ray.get_runtime_context().namespace)


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
    infos = [report.assignment.rank_info for report in reports]
    ranks = Counter(info.rank for info in infos)
    sizes = {info.world_size for info in infos}
    missing = [f"rank {rank} missing" for rank in range(max(sizes)) if rank not in ranks]
    twice = [f"rank {rank} comes {count} times" for rank, count in sorted(ranks.items()) if count > 1]
    mixed = [f"world sizes differ: {sorted(sizes)}"] if len(sizes) > 1 else []
    if problems := missing + twice + mixed:
        raise AttachError(
            f"{', '.join(problems)} among {', '.join(names)}", "name every worker of one group, each once"
        )
