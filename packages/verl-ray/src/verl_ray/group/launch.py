"""Starting the workers of a group: all actors at once, then one set-up call each, then a bounded wait for
all.

The meeting point is chosen in rank 0's process and reaches the others as a reference, so nothing here waits
for it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray._private.ray_constants import RAY_ENABLE_UV_RUN_RUNTIME_ENV
from ray.exceptions import ActorAlreadyExistsError, RayError
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.planning.options import Labels
from verl_dispatch.planning.plan import RankCall, unpicklable
from verl_protocol.futures.parts import Deadline

from verl_ray.calls.failures import describe_failures, maker_of_actor, survey
from verl_ray.calls.futures import AnswerPart, PartsArriving
from verl_ray.calls.packing import Arguments, Packer
from verl_ray.errors import NameTakenError, NodeLost, ResourceUnavailable, StartTimeout
from verl_ray.pools.cluster import actor_state, actors_on
from verl_ray.wire.message import ONE_READER, check_picklable
from verl_ray.wire.refs import connection
from verl_ray.worker.actor import CLEAN_UP, RayClassWithInitArgs
from verl_ray.worker.host import Assignment, StartupTimes, WorkerReport, startup_times
from verl_ray.worker.rendezvous import Rendezvous, RendezvousRequest

__all__ = ["LaunchSpec", "Launched", "Started", "await_start", "end", "launch"]


_log = logging.getLogger("verl_ray")

_START = "__init__"
_LOOK_S = 2.0
_SAID_AFTER_S = 10.0
_WARNED_AFTER_S = 150.0
# A worker that hangs delays the end by so much, if its class has a clean-up.
_CLEAN_UP_S = 5.0
_GONE_S = 5.0
_THROUGH_UV = (
    " (under `uv run` Ray starts each worker through uv, which can take minutes or fail; set "
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 before this program starts)"
)


@dataclass(frozen=True)
class LaunchSpec:
    """All that is needed to start the workers of a group, the first time and again.

    Attributes:
        group: name of the group, for messages.
        template: the class and its constructor's arguments.
        options: Ray options of each rank's actor, without its name.
        names: each rank's actor name.
        assignments: each rank's identity.
        rendezvous: what the user said about the meeting point.
        timeout_s: seconds allowed from the request to the last worker's constructor.
        grace_s: seconds that other ranks get to answer after a first one failed.
        lost_nodes: ids of nodes that held a place of the group and are gone.
    """

    group: str
    template: RayClassWithInitArgs[Any]
    options: tuple[Mapping[str, Any], ...] = field(repr=False)
    names: tuple[str, ...]
    assignments: tuple[Assignment, ...]
    rendezvous: RendezvousRequest
    timeout_s: float
    grace_s: float
    lost_nodes: Callable[[], Sequence[str]]

    @property
    def world_size(self) -> int:
        """How many workers the group has."""
        return len(self.names)

    def names_of(self, launch: int) -> tuple[str, ...]:
        """Actor names of a launch; Ray frees a name only some time after its actor is gone."""
        return self.names if launch == 0 else tuple(f"{name}_g{launch}" for name in self.names)


@dataclass(frozen=True)
class Launched:
    """Actors that are starting."""

    handles: tuple[Any, ...]
    names: tuple[str, ...]
    meeting: Any
    set_ups: tuple[Any, ...]
    requested_at: float
    deadline: float


@dataclass(frozen=True)
class Started:
    """What all workers said after their constructors."""

    reports: Mapping[int, WorkerReport]
    rendezvous: Rendezvous
    times: StartupTimes


def launch(spec: LaunchSpec, number: int) -> Launched:
    """Request all actors and send their set-up calls, for the time of this number; returns at once."""
    requested_at, deadline = time.time(), time.monotonic() + spec.timeout_s
    names = spec.names_of(number)
    handles: list[Any] = []
    try:
        for rank, (options, name) in enumerate(zip(spec.options, names, strict=True)):
            handles.append(_start_actor(spec, options, name, rank))
        meeting = handles[0]._verl_open_rendezvous.remote(spec.rendezvous)
        set_ups = _send_set_ups(spec, handles, meeting, number)
    except BaseException:
        end(handles)
        raise
    return Launched(tuple(handles), names, meeting, set_ups, requested_at, deadline)


def _start_actor(spec: LaunchSpec, options: Mapping[str, Any], name: str, rank: int) -> Any:
    label = f"{spec.group} {spec.template.user_class.__name__} rank {rank}"
    try:
        return spec.template.remote({**options, "name": name}, label)
    except ActorAlreadyExistsError:
        raise NameTakenError(
            f"group {spec.group!r} cannot start a worker named {name!r}: one of that name lives already; "
            "choose another name_prefix, attach to it with RayWorkerGroup.from_detached(worker_names=[...]), "
            "or end it with destroy_detached([...])"
        ) from None


def _send_set_ups(spec: LaunchSpec, handles: Sequence[Any], meeting: Any, number: int) -> tuple[Any, ...]:
    args, kwargs = spec.template.constructor_arguments()
    call = RankCall(0, args, kwargs)
    arguments = Arguments([call] * len(handles))
    try:
        message, *refs = Packer(arguments.stored("many"), arguments.bulky).pack(call, ONE_READER) or (None,)
    except Exception:
        for made in spec.template.constructions():
            given = RankCall(0, made.args, made.kwargs)
            labels = Labels(f"{made.cls.__name__}.__init__")
            if (named := unpicklable(labels, [given], check_picklable)) is not None:
                raise named from None
        raise
    return tuple(
        handle._verl_set_up.remote(replace(assignment, launch=number), meeting, message, *refs)
        for handle, assignment in zip(handles, spec.assignments, strict=True)
    )


def await_start(spec: LaunchSpec, launched: Launched) -> Started:
    """Wait until every constructor has run.

    Raises:
        WorkerGroupError: a constructor raised or a worker died; names every failed rank.
        StartTimeout: not all were ready in time.
        NodeLost: a node that held a place of the group is gone.
        ResourceUnavailable: no port for the meeting point.
    """
    try:
        reports = _reports(spec, launched)
        rendezvous: Any = ray.get(launched.meeting)
    except (RayError, TimeoutError) as error:
        raise _start_failure(spec, launched, error) from None
    return Started(dict(enumerate(reports)), rendezvous, startup_times(reports, launched.requested_at))


def _reports(spec: LaunchSpec, launched: Launched) -> list[WorkerReport]:
    """What all workers say, while the cluster is looked at from time to time.

    A long wait is logged twice: as news, and as a warning where half of the time allowed is over.
    """
    warned_after = min(_WARNED_AFTER_S, spec.timeout_s / 2)
    notices = [(min(_SAID_AFTER_S, warned_after), logging.INFO), (warned_after, logging.WARNING)]
    parts = [AnswerPart(ref) for ref in launched.set_ups]
    arriving = PartsArriving(parts)
    while True:
        left = launched.deadline - time.monotonic()
        try:
            came = arriving.wait(Deadline(max(0.0, min(left, _LOOK_S))))
            return [came[part] for part in parts]
        except TimeoutError as error:
            if left <= _LOOK_S or isinstance(error, RayError):
                raise
        if lost := spec.lost_nodes():
            raise NodeLost(spec.group, _START, lost)
        waited = time.time() - launched.requested_at
        while notices and waited >= notices[0][0]:
            _, level = notices.pop(0)
            _log.log(level, "group %r: after %.0f s %s", spec.group, waited, _still_missing(spec, launched))


def _still_missing(spec: LaunchSpec, launched: Launched) -> str:
    """Who is waited for, and what for: a place, a process, its imports, or the user's constructor."""
    stages: dict[str, list[int]] = {}
    silent = survey(launched.set_ups, 0.0).silent
    for rank in silent:
        stages.setdefault(_stage(launched.handles[rank]), []).append(rank)
    told = [f"ranks {ranks} are still {stage}" for stage, ranks in stages.items()]
    return "; ".join([*told, *_in_the_way(spec, launched, silent)])


def _in_the_way(spec: LaunchSpec, launched: Launched, ranks: Sequence[int]) -> list[str]:
    """The actors on the places that these ranks wait for, but for those of groups that have a share there.

    A group that was dropped gave its share back, while Ray lets its actors live as long as somebody holds a
    handle of theirs, or a call of theirs runs.
    """
    found: list[str] = []
    for rank in ranks:
        if actor_state(launched.handles[rank]._actor_id.hex()) == "PENDING_CREATION":
            place = spec.options[rank]["scheduling_strategy"]
            there = actors_on(place.placement_group.id.hex(), place.placement_group_bundle_index)
            strangers = [
                f"{name}, id {actor}" for actor, name in there.items() if maker_of_actor(actor) is None
            ]
            found += [f"on the place of rank {rank} lives {each}" for each in strangers]
    return found


def _stage(handle: Any) -> str:
    state = actor_state(handle._actor_id.hex())
    if state == "ALIVE":
        return "in their constructor, or wait there for others"
    if state == "PENDING_CREATION":
        # uv counts how deep `uv run` is nested, for the programs it starts.
        through_uv = RAY_ENABLE_UV_RUN_RUNTIME_ENV and "UV_RUN_RECURSION_DEPTH" in os.environ
        return "waiting for a process, or importing their code" + (_THROUGH_UV if through_uv else "")
    return f"{state}, in Ray's words"


def _start_failure(spec: LaunchSpec, launched: Launched, error: Exception) -> Exception:
    if not isinstance(error, RayError):
        silent = survey(launched.set_ups, 0.0).silent
        return StartTimeout(spec.group, spec.timeout_s, silent, _in_the_way(spec, launched, silent))
    # Every other rank waits for rank 0's answer about the meeting point, and fails for want of it.
    found = survey([launched.meeting], 0.0)
    if found.errors:
        cause = getattr(found.errors[0], "cause", None)
        if isinstance(cause, ResourceUnavailable):
            return cause
    else:
        found = survey(launched.set_ups, spec.grace_s)
    failures = describe_failures(found.errors, {})
    if found.lost_a_worker and (lost := spec.lost_nodes()):
        return NodeLost(spec.group, _START, lost, failures, found.silent)
    return WorkerGroupError(spec.group, _START, failures, found.silent)


def end(handles: Sequence[Any]) -> None:
    """End the actors: a moment for their own clean-up, a kill, a wait until Ray knows that they are gone."""
    if connection() is None:
        return
    cleaning = [getattr(handle, CLEAN_UP).remote() for handle in handles if hasattr(handle, CLEAN_UP)]
    if cleaning:
        ray.wait(cleaning, num_returns=len(cleaning), timeout=_CLEAN_UP_S, fetch_local=False)
    for handle in handles:
        ray.kill(handle)
    last_words = [handle.__ray_ready__.remote() for handle in handles]
    if last_words:
        ray.wait(last_words, num_returns=len(last_words), timeout=_GONE_S, fetch_local=False)
