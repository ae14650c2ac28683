"""From the parameters of `RayWorkerGroup` to workers with a place on the pool. No worker is started here."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from verl_dispatch.workers.rank import RankInfo
from verl_protocol.errors import InvalidValueError

from verl_ray.errors import NotTheOwnerError, unusable
from verl_ray.group.launch import LaunchSpec
from verl_ray.group.worker_set import Places, WorkerSet
from verl_ray.pools.cluster import job_runs
from verl_ray.pools.ordering import local_ranks
from verl_ray.pools.pool import RayResourcePool
from verl_ray.pools.shares import demand_of_options
from verl_ray.pools.slots import Slot
from verl_ray.worker.actor import RayClassWithInitArgs, check_transports
from verl_ray.worker.environment import checked_env, forwarded_env, merge_settings
from verl_ray.worker.host import Assignment
from verl_ray.worker.rendezvous import RendezvousRequest

__all__ = ["GroupRequest", "hire", "places_again", "random_prefix"]


BACKEND = "ray"

# Whoever attaches brings the template; the others are in the runtime environment.
_NOT_FOR_OTHERS = ("template", "worker_env", "forward_env", "profile_steps", "worker_nsight_options")


@dataclass(frozen=True)
class GroupRequest:
    """What the user asked of a group, checked before anything starts.

    Raises:
        ValueError: two parameters contradict each other, or one cannot be honoured.
    """

    name: str
    pool: RayResourcePool
    template: RayClassWithInitArgs[Any]
    rendezvous: RendezvousRequest
    strategy: str | None
    device_name: str | None
    timeout_s: float
    grace_s: float
    detached: bool = False
    use_gpu: bool | None = None
    worker_env: Mapping[str, str] | None = field(default=None, repr=False)
    forward_env: Iterable[str] | None = None
    profile_steps: Sequence[int] | None = None
    worker_nsight_options: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.detached and not self.pool.detached:
            raise InvalidValueError(
                f"group {self.name!r}: detached workers need a detached pool, or Ray ends them with the "
                "pool; make the pool with RayResourcePool(..., detached=True)"
            )
        if self.use_gpu and not self.pool.use_gpu:
            raise unusable("use_gpu", True, "False or nothing on a CPU pool")
        if self.profile_steps and self.worker_nsight_options is None:
            raise unusable("worker_nsight_options", None, "a dict, as profile_steps is given")
        check_transports(
            self.template.user_class, self.accelerator, self.template.user_options(), self.detached
        )

    @property
    def accelerator(self) -> str | None:
        """The Ray resource that each worker gets a share of."""
        # Until the pool is placed it does not know the device that this group says.
        return None if self.use_gpu is False else self.pool.spec.accelerator_on(self.device_name)

    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment of every actor; empty where the user asked for nothing, which starts
        faster.

        Raises:
            ValueError: a rank or device variable, or two sources disagree.
        """
        given = self.template.user_options().get("runtime_env")
        if given:
            checked_env("runtime_env", given.get("env_vars"))
        asked = merge_settings(
            worker_env=checked_env("worker_env", self.worker_env),
            forward_env=forwarded_env(self.forward_env, os.environ),
        )
        profiler = {"nsight": dict(self.worker_nsight_options or {})} if self.profile_steps else {}
        variables = {"env_vars": asked} if asked else {}
        return merge_settings(options=given, worker_env=variables, worker_nsight_options=profiler)

    def options(self, runtime_env: Mapping[str, Any]) -> dict[str, Any]:
        """Ray options that all actors of the group have in common, once the pool is placed."""
        user = self.template.user_options()
        share = self.pool.worker_options()
        if self.accelerator is None:
            share = {"num_cpus": share["num_cpus"], "num_gpus": 0}
        resources = {**share.get("resources", {}), **user.get("resources", {})}
        options = {**share, **user, "runtime_env": dict(runtime_env)}
        if resources:
            options["resources"] = resources
        if self.detached:
            options["lifetime"] = "detached"
        return {key: value for key, value in options.items() if key != "runtime_env" or value}

    def worker_names(self) -> tuple[str, ...]:
        """Actor names in rank order. Detached workers are looked up by them: theirs have no random end."""
        end = "" if self.detached else f"_{secrets.token_hex(4)}"
        stem = f"{self.name}_{self.template.user_class.__name__}"
        return tuple(f"{stem}_{rank}{end}" for rank in range(self.pool.world_size))

    def origin(self, runtime_env: Mapping[str, Any], names: Sequence[str]) -> bytes:
        """All but the template, for whoever attaches; b"" where the workers end with this driver."""
        if not self.detached:
            return b""
        facts = {each: getattr(self, each) for each in vars(self) if each not in _NOT_FOR_OTHERS}
        dumps: Callable[..., bytes] = cloudpickle.dumps  # pyright: ignore[reportPrivateImportUsage]
        return dumps((ray.get_runtime_context().get_job_id(), facts, dict(runtime_env), tuple(names)))

    def assignments(self, slots: Sequence[Slot], origin: bytes) -> tuple[Assignment, ...]:
        """Who each worker is, without the meeting point."""
        return tuple(
            Assignment(
                RankInfo(
                    rank=rank,
                    world_size=len(slots),
                    local_rank=local_rank,
                    local_world_size=local_world_size,
                    group_prefix=self.name,
                    backend=BACKEND,
                ),
                self.accelerator,
                origin,
            )
            for rank, (local_rank, local_world_size) in enumerate(
                local_ranks([slot.node_key for slot in slots])
            )
        )


def random_prefix() -> str:
    """A name for a group that was given none."""
    return f"group_{secrets.token_hex(3)}"


def hire(request: GroupRequest) -> WorkerSet:
    """Workers with a place on the pool, not yet started.

    Raises:
        ResourceUnavailable: the cluster cannot place the pool, or the pool has no room for another group.
    """
    pool = request.pool
    find_places = partial(_find_places, request, request.runtime_env(), request.worker_names())
    return WorkerSet(request.name, find_places, lambda: pool.closed, request.grace_s)


def places_again(origin: bytes, template: RayClassWithInitArgs[Any]) -> Callable[[], Places] | None:
    """Takes the places of workers whose driver has ended; None where they end with it.

    It raises NotTheOwnerError while that driver runs.
    """

    def find_places() -> Places:
        job, facts, runtime_env, names = cloudpickle.loads(origin)
        if job_runs(job):
            raise NotTheOwnerError(
                f"restart() on group {facts['name']!r}: it was attached to, and the driver that started it "
                f"(job {job}) still runs; restart it there"
            )
        template.check_arguments()
        return _find_places(GroupRequest(template=template, **facts), runtime_env, names)

    return find_places if origin else None


def _find_places(request: GroupRequest, runtime_env: Mapping[str, Any], names: tuple[str, ...]) -> Places:
    """Take a share of the pool's slots, which are reserved first where they are not, or not any more."""
    begin = time.perf_counter()
    pool = request.pool
    slots = pool.place(request.strategy, request.device_name)
    placement_s = time.perf_counter() - begin
    options = request.options(runtime_env)
    spec = LaunchSpec(
        group=request.name,
        template=request.template,
        options=tuple(_on_slot(options, slot) for slot in slots),
        names=names,
        assignments=request.assignments(slots, request.origin(runtime_env, names)),
        rendezvous=request.rendezvous,
        timeout_s=request.timeout_s,
        grace_s=request.grace_s,
        lost_nodes=pool.lost_nodes,
    )
    return Places(spec, pool.acquire(request.name, demand_of_options(options)), placement_s)


def _on_slot(options: Mapping[str, Any], slot: Slot) -> dict[str, Any]:
    place = PlacementGroupSchedulingStrategy(
        slot.placement_group, placement_group_bundle_index=slot.bundle_index
    )
    return {**options, "scheduling_strategy": place}
