"""Where the roles run: on Ray, or in this process."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_dispatch import ClassWithInitArgs, LocalWorkerGroup, WorkerGroup, WorkerGroupError
from verl_dispatch.workers.roles import create_colocated_worker_raw_cls

from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.actor import ActorWorker
from verl_examples.hf.workers.critic import CriticWorker
from verl_examples.hf.workers.reference import ReferenceWorker
from verl_examples.hf.workers.reward import RewardWorker
from verl_examples.hf.workers.rollout import RolloutWorker, TransformersRollout
from verl_examples.hf.workers.vllm_rollout import VllmRollout

# A part of a CPU a worker, so that more workers than cores may take turns.
_POOL: dict[str, Any] = {"max_colocate_count": 1, "cpus_per_worker": 0.1, "timeout_s": 30.0}

Classes = dict[str, ClassWithInitArgs[Any]]
"""The worker class of each role that shares a process."""
Groups = dict[str, WorkerGroup[Any, Any]]
"""A group for each kind of process: `trained`, `reward` and perhaps `rollout`."""


@dataclass(frozen=True)
class Roles:
    """One group for each role; GRPO has no critic, and a run without a penalty on divergence no reference."""

    actor: WorkerGroup[ActorWorker, Any]
    rollout: WorkerGroup[RolloutWorker, Any]
    reward: WorkerGroup[RewardWorker, Any]
    reference: WorkerGroup[ReferenceWorker, Any] | None
    critic: WorkerGroup[CriticWorker, Any] | None
    groups: tuple[WorkerGroup[Any, Any], ...]

    def traced(self, path: Path) -> AbstractContextManager[Any]:
        """Writes the calls of all roles inside the block to a file, for https://ui.perfetto.dev."""
        others = (self.rollout, self.reward, self.reference, self.critic)
        return self.actor.trace(path, also=[role for role in others if role is not None])

    def lost_any(self) -> bool:
        """Whether a process died, or hangs where the others have failed.

        The error at hand does not tell: it may be that of another rank or group, which waited for what died.
        Calling every process does.
        """
        for group in self.groups:
            with suppress(WorkerGroupError):
                group.execute_all_sync("env_keys")
        return not all(group.is_usable for group in self.groups)

    def restart(self) -> None:
        """Start every process anew, with nothing learnt."""
        for group in self.groups:
            group.restart()


@contextmanager
def running_roles(settings: Settings) -> Iterator[Roles]:
    """The roles' groups, ended when the block ends, however it ends."""
    processes = _processes(settings)
    start = _on_ray if settings.backend == "ray" else _in_this_process
    with start(settings, processes) as groups:
        trained = groups["trained"]
        roles = processes["trained"]
        yield Roles(
            actor=trained.role("actor", ActorWorker),
            rollout=groups.get("rollout", trained).role("rollout", RolloutWorker),
            reward=groups["reward"],
            reference=trained.role("reference", ReferenceWorker) if "reference" in roles else None,
            critic=trained.role("critic", CriticWorker) if "critic" in roles else None,
            groups=tuple(groups.values()),
        )


def _processes(settings: Settings) -> dict[str, Classes]:
    """The roles of each kind of process that holds a model."""
    trained: Classes = {"actor": ClassWithInitArgs(ActorWorker, settings)}
    if settings.kl_coefficient:
        trained["reference"] = ClassWithInitArgs(ReferenceWorker, settings)
    if settings.algorithm == "ppo":
        trained["critic"] = ClassWithInitArgs(CriticWorker, settings)
    rollout_class = VllmRollout if settings.rollout == "vllm" else TransformersRollout
    rollout: Classes = {"rollout": ClassWithInitArgs(rollout_class, settings)}
    if settings.generates_apart:
        return {"trained": trained, "rollout": rollout}
    return {"trained": trained | rollout}


def _how_many(settings: Settings, processes: str) -> int:
    if processes == "trained":
        return settings.workers
    return settings.rollout_workers if processes == "rollout" else settings.reward_workers


@contextmanager
def _on_ray(settings: Settings, processes: Mapping[str, Classes]) -> Iterator[Groups]:
    import ray
    from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls

    classes = {
        name: create_colocated_worker_cls(
            {role: RayClassWithInitArgs(each.cls, *each.args) for role, each in roles.items()}
        )
        for name, roles in processes.items()
    }
    classes["reward"] = RayClassWithInitArgs(RewardWorker, settings.reward)
    groups: Groups = {}
    with ExitStack() as running:
        if not ray.is_initialized():
            running.callback(ray.shutdown)
            # Ray would mix its own messages, and what workers print, into the result on stdout.
            ray.init(logging_level=logging.WARNING, log_to_driver=False)
        for name, cls in classes.items():
            on_gpus = settings.gpus > 0 and name != "reward"
            pool = running.enter_context(RayResourcePool([_how_many(settings, name)], on_gpus, **_POOL))
            # Without waiting for one group the next starts beside it.
            groups[name] = running.enter_context(RayWorkerGroup(pool, cls, name_prefix=name, wait=False))
        yield groups


@contextmanager
def _in_this_process(settings: Settings, processes: Mapping[str, Classes]) -> Iterator[Groups]:
    classes: dict[str, Any] = {
        name: create_colocated_worker_raw_cls(roles, fused=False) for name, roles in processes.items()
    }
    classes["reward"] = ClassWithInitArgs(RewardWorker, settings.reward)
    with ExitStack() as running:
        yield {
            name: running.enter_context(LocalWorkerGroup(cls, _how_many(settings, name), name_prefix=name))
            for name, cls in classes.items()
        }
