"""Starting the workers of a group: places on the pool, all actors at once, one set-up call each, then a
bounded wait for all.

The meeting point is chosen in rank 0's process and reaches the others as a reference, so nothing here waits
for it.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, NamedTuple

import ray
from ray import cloudpickle
from ray.exceptions import ActorAlreadyExistsError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.planning.options import Labels
from verl_dispatch.planning.plan import RankCall, refuse_unpicklable
from verl_dispatch.workers.rank import RankInfo
from verl_protocol.errors import InvalidValueError
from verl_protocol.futures.parts import Deadline

from verl_ray import errors
from verl_ray.calls.failures import describe_failures, is_gone, survey
from verl_ray.calls.futures import AnswerPart, PartsArriving
from verl_ray.calls.makers import maker_of_actor
from verl_ray.calls.packing import Arguments, Packer
from verl_ray.pools.cluster import actor_state, actors_on, job_runs
from verl_ray.pools.pool import RayResourcePool
from verl_ray.pools.shares import Share, demand_of_options
from verl_ray.pools.slots import Slot
from verl_ray.wire.message import ONE_READER, check_picklable
from verl_ray.wire.refs import cloud_dumps, connection
from verl_ray.worker.actor import CLEAN_UP, RayClassWithInitArgs, check_transports
from verl_ray.worker.environment import checked_env, forwarded_env, merge_settings
from verl_ray.worker.host import Assignment, WorkerReport, startup_times
from verl_ray.worker.rendezvous import Rendezvous

_log = logging.getLogger("verl_ray")

_START = "__init__"
_LOOK_S = 2.0
_SAID_AFTER_S = 10.0
_WARNED_AFTER_S = 150.0
# A worker that hangs delays the end by so much, if its class has a clean-up.
_CLEAN_UP_S = 5.0
_GONE_S = 5.0
_STAGES = {
    "PENDING_CREATION": "waiting for a process, or importing their code",
    "ALIVE": "in their constructor, or wait there for others",
}
_UV_SWITCH = "RAY_ENABLE_UV_RUN_RUNTIME_ENV"


class Places(NamedTuple):
    """Where the workers of a group are to run.

    Attributes:
        slots: one a rank.
        share: of these slots, to be given back.
        placement_s: seconds it took to get the slots.
    """

    slots: tuple[Slot, ...]
    share: Share
    placement_s: float


@dataclass(frozen=True)
class LaunchSpec:
    """What was asked of a group, checked before anything starts: all that is needed to start its workers, the
    first time and again.

    Attributes:
        rendezvous: where the ranks meet, or the ports to choose from.
        strategy: how the pool is to be reserved, if it matters.
        timeout_s: seconds allowed from the request to the last worker's constructor.
        grace_s: seconds that other ranks get to answer after a first one failed.
        runtime_env: of every actor; empty where the user asked for nothing, which starts faster.
        mark: keeps the workers' names apart from those of others. Detached workers are looked up by theirs,
            which have none.

    Raises:
        ValueError: two parameters contradict each other, or one cannot be honoured.
    """

    name: str
    pool: RayResourcePool
    template: RayClassWithInitArgs[Any]
    rendezvous: Rendezvous | range
    strategy: str | None
    device_name: str | None
    timeout_s: float
    grace_s: float
    detached: bool
    use_gpu: bool | None
    runtime_env: Mapping[str, Any] = field(repr=False)
    mark: str = field(default_factory=partial(secrets.token_hex, 4))

    def __post_init__(self) -> None:
        if self.detached and not self.pool.detached:
            raise InvalidValueError(
                f"group {self.name!r}: detached workers need a detached pool, or Ray ends them with the "
                "pool; make the pool with RayResourcePool(..., detached=True)"
            )
        if self.use_gpu and not self.pool.use_gpu:
            raise errors.unusable("use_gpu", True, "False or nothing on a CPU pool")
        check_transports(self.template, self.accelerator, self.detached)

    @property
    def accelerator(self) -> str | None:
        """The Ray resource that each worker gets a share of."""
        # Until the pool is placed it does not know the device that this group says.
        return None if self.use_gpu is False else self.pool.spec.accelerator_on(self.device_name)

    def find_places(self) -> Places:
        """Take a share of the pool's slots, which are reserved first where they are not, or not any more.

        Raises:
            ResourceUnavailable: the cluster cannot place the pool, or it has no room for another group.
        """
        begin = time.perf_counter()
        slots = self.pool.place(self.strategy, self.device_name)
        placement_s = time.perf_counter() - begin
        return Places(slots, self.pool.acquire(self.name, demand_of_options(self.options())), placement_s)

    def options(self) -> dict[str, Any]:
        """Ray options that all actors of the group have in common, once the pool is placed."""
        user, share = self.template.user_options(), self.pool.worker_options()
        if self.accelerator is None:
            share = {"num_cpus": share["num_cpus"], "num_gpus": 0}
        joined = {
            "resources": {**share.get("resources", {}), **user.get("resources", {})},
            "runtime_env": dict(self.runtime_env),
            "lifetime": "detached" if self.detached else None,
        }
        return {**share, **user} | {name: value for name, value in joined.items() if value}

    def names(self, number: int) -> tuple[str, ...]:
        """Actor names of a launch; Ray frees a name only some time after its actor is gone."""
        end = ("" if self.detached else f"_{self.mark}") + (f"_g{number}" if number else "")
        stem = f"{self.name}_{self.template.user_class.__name__}"
        return tuple(f"{stem}_{rank}{end}" for rank in range(self.pool.world_size))

    def assignments(self, number: int) -> list[Assignment]:
        """Who each worker of a launch is, without the meeting point."""
        pool, accelerator, origin = self.pool, self.accelerator, self._origin()
        places = zip(pool.local_rank_list(), pool.local_world_size_list(), strict=True)
        infos = [
            RankInfo(rank, pool.world_size, *place, group_prefix=self.name, backend="ray")
            for rank, place in enumerate(places)
        ]
        return [Assignment(info, accelerator, origin, number) for info in infos]

    def _origin(self) -> bytes:
        """All but the template, for whoever attaches; b"" where the workers end with this driver."""
        if not self.detached:
            return b""
        facts = {name: value for name, value in vars(self).items() if name != "template"}
        return cloud_dumps((ray.get_runtime_context().get_job_id(), facts))


def spec_again(origin: bytes, template: RayClassWithInitArgs[Any]) -> LaunchSpec:
    """How workers are started whose driver has ended.

    Raises:
        NotTheOwnerError: that driver still runs.
        TypeError: the template has not the arguments that its constructor takes.
    """
    job, facts = cloudpickle.loads(origin)
    if job_runs(job):
        raise errors.NotTheOwnerError(
            f"restart() on group {facts['name']!r}: it was attached to, and the driver that started it "
            f"(job {job}) still runs; restart it there"
        )
    template.check_arguments()
    return LaunchSpec(template=template, **facts)


def runtime_env_of(
    template: RayClassWithInitArgs[Any],
    worker_env: Mapping[str, str] | None,
    forward_env: Iterable[str] | None,
    profile_steps: Sequence[int] | None,
    worker_nsight_options: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """The runtime environment of every actor, from all who have a say.

    Raises:
        ValueError: a rank or device variable, or two sources disagree.
    """
    if profile_steps and worker_nsight_options is None:
        raise errors.unusable("worker_nsight_options", None, "a dict, as profile_steps is given")
    given = template.user_options().get("runtime_env", {})
    checked_env("runtime_env", given.get("env_vars"))
    variables = merge_settings(
        worker_env=checked_env("worker_env", worker_env), forward_env=forwarded_env(forward_env, os.environ)
    )
    return merge_settings(
        options=given,
        worker_env={"env_vars": variables} if variables else {},
        worker_nsight_options={"nsight": dict(worker_nsight_options or {})} if profile_steps else {},
    )


def _through_uv() -> str:
    """What to know where Ray starts every process of this program by `uv run`; "" where it does not."""
    command = str(ray.get_runtime_context().runtime_env.get("py_executable"))
    if "uv run" not in command:
        return ""
    return (
        f"under `uv run`, as here, Ray starts each worker by `{command}` in a copy of the working directory: "
        "that takes long the first time, and fails where uv may not or cannot install all packages there "
        f"(--no-sync); where all machines have them already, set {_UV_SWITCH}=0 before the program starts"
    )


@cache
def _warn_once(text: str) -> None:
    _log.warning(text)


class Launch:
    """One start of a group's workers: all actors are requested and their set-up calls sent when it is made.

    Args:
        spec: what was asked.
        places: where they run.
        number: how often the group was started before.

    Attributes:
        handles: the actors, in rank order.
        names: their names.
    """

    def __init__(self, spec: LaunchSpec, places: Places, number: int) -> None:
        if _UV_SWITCH not in os.environ and (through_uv := _through_uv()):
            _warn_once(f"{through_uv}; {_UV_SWITCH}=1 instead says that this is wanted")
        self._spec, self._places = spec, places
        self._requested_at, self._deadline = time.time(), time.monotonic() + spec.timeout_s
        self.names: tuple[str, ...] = spec.names(number)
        self.handles: list[Any] = []
        try:
            options = spec.options()
            for rank, slot in enumerate(places.slots):
                self.handles.append(self._start_actor(rank, slot, options))
            self._meeting = self.handles[0]._verl_open_rendezvous.remote(spec.rendezvous)
            self._set_ups = self._send_set_ups(spec.assignments(number))
        except BaseException:
            end(self.handles)
            raise

    def _start_actor(self, rank: int, slot: Slot, options: Mapping[str, Any]) -> Any:
        template, group, name = self._spec.template, self._spec.name, self.names[rank]
        place = PlacementGroupSchedulingStrategy(
            slot.placement_group, placement_group_bundle_index=slot.bundle_index
        )
        own = {**options, "scheduling_strategy": place, "name": name}
        try:
            return template.remote(own, f"{group} {template.user_class.__name__} rank {rank}")
        except ActorAlreadyExistsError:
            raise errors.NameTakenError(
                f"group {group!r} cannot start a worker named {name!r}: one of that name lives already; "
                "choose another name_prefix, attach to it with "
                "RayWorkerGroup.from_detached(worker_names=[...]), or end it with destroy_detached([...])"
            ) from None

    def _send_set_ups(self, assignments: Sequence[Assignment]) -> list[Any]:
        template = self._spec.template
        call = RankCall(0, *template.constructor_arguments())
        arguments = Arguments([call] * len(assignments))
        try:
            packer = Packer(arguments.stored("many"), arguments.bulky)
            message, *refs = packer.pack(call, ONE_READER) or (None,)
        except Exception:
            for made in template.constructions():
                given = RankCall(0, made.args, made.kwargs)
                labels = Labels(f"{made.cls.__name__}.__init__")
                refuse_unpicklable(labels, [given], check_picklable)
            raise
        return [
            handle._verl_set_up.remote(assignment, self._meeting, message, *refs)
            for handle, assignment in zip(self.handles, assignments, strict=True)
        ]

    def reports(self) -> list[WorkerReport]:
        """What all workers say after their constructors, in rank order.

        The cluster is looked at from time to time. A long wait is logged twice: as news, and as a warning
        where half of the time allowed is over.

        Raises:
            WorkerGroupError: a constructor raised or a worker died; names every failed rank.
            StartTimeout: not all were ready in time.
            NodeLost: a node that held a place of the group is gone.
            ResourceUnavailable: no port for the meeting point.
        """
        spec = self._spec
        warned_after = min(_WARNED_AFTER_S, spec.timeout_s / 2)
        notices = [(min(_SAID_AFTER_S, warned_after), logging.INFO), (warned_after, logging.WARNING)]
        parts = [AnswerPart(ref) for ref in self._set_ups]
        arriving = PartsArriving(parts)
        while True:
            left = self._deadline - time.monotonic()
            try:
                came = arriving.wait(Deadline(max(0.0, min(left, _LOOK_S))))
                return [came[part] for part in parts]
            except (RayError, TimeoutError) as error:
                if left <= _LOOK_S or isinstance(error, RayError):
                    raise self._failure(error) from None
            if lost := spec.pool.lost_nodes():
                raise errors.NodeLost(spec.name, _START, lost)
            waited = time.time() - self._requested_at
            while notices and waited >= notices[0][0]:
                _, level = notices.pop(0)
                _log.log(level, "group %r: after %.0f s %s", spec.name, waited, self._still_missing())

    def times(self, reports: Sequence[WorkerReport]) -> dict[str, Any]:
        """Seconds that each stage of the start took; see `startup_times`."""
        return {"placement_s": self._places.placement_s, **startup_times(reports, self._requested_at)}

    def _still_missing(self) -> str:
        """Who is waited for, and what for: a place, a process, its imports, or the user's constructor."""
        stages: dict[str, list[int]] = {}
        _, silent = survey(self._set_ups, 0.0)
        for rank in silent:
            state = actor_state(self.handles[rank]._actor_id.hex())
            stages.setdefault(_STAGES.get(state, f"{state}, in Ray's words"), []).append(rank)
        told = [f"ranks {ranks} are still {stage}" for stage, ranks in stages.items()]
        return "; ".join([*told, *self._in_the_way(silent)])

    def _in_the_way(self, ranks: Sequence[int]) -> list[str]:
        """The actors on the places that these ranks wait for, but for those of groups with a share there.

        A group that was dropped gave its share back, while Ray lets its actors live as long as somebody holds
        a handle of theirs, or a call of theirs runs.
        """
        return [
            f"on the place of rank {rank} lives {name}, id {actor}"
            for rank in ranks
            if actor_state(self.handles[rank]._actor_id.hex()) == "PENDING_CREATION"
            for actor, name in actors_on(*self._places.slots[rank].key).items()
            if maker_of_actor(actor) is None
        ]

    def _failure(self, error: Exception) -> Exception:
        spec = self._spec
        if not isinstance(error, RayError):
            _, silent = survey(self._set_ups, 0.0)
            way_out = _through_uv()
            if strangers := self._in_the_way(silent):
                way_out = (
                    f"{'; '.join(strangers)}: actors of no group here that has a share; let go of their "
                    "handles, or end them with ray.kill(ray.get_actor(name, namespace)), then make the group "
                    "again"
                )
            return errors.StartTimeout(spec.name, spec.timeout_s, silent, way_out)
        # Every other rank waits for rank 0's answer about the meeting point, and fails for want of it.
        raised, silent = survey([self._meeting], 0.0)
        if not raised:
            raised, silent = survey(self._set_ups, spec.grace_s)
        elif isinstance(cause := getattr(raised[0], "cause", None), errors.ResourceUnavailable):
            return cause
        failures = describe_failures(raised)
        if any(map(is_gone, raised.values())) and (lost := spec.pool.lost_nodes()):
            return errors.NodeLost(spec.name, _START, lost, failures, silent)
        return WorkerGroupError(spec.name, _START, failures, silent)


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
