"""Where the roles run: actor, reference and critic together in each worker of one pool, the reward beside."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from verl_dispatch import ClassWithInitArgs, LocalWorkerGroup, WorkerGroup
from verl_dispatch.workers.roles import create_colocated_worker_raw_cls

from verl_examples.toy.model import ModelConfig
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import CharTokenizer
from verl_examples.toy.workers import ActorWorker, CriticWorker, ReferenceWorker, RewardWorker

# A part of a CPU a worker, so that more workers than cores may take turns.
_ONE_GROUP: dict[str, Any] = {"max_colocate_count": 1, "cpus_per_worker": 0.1, "timeout_s": 30.0}


@dataclass(frozen=True)
class Roles:
    """One group for each role; GRPO has no critic."""

    actor: WorkerGroup[ActorWorker, Any]
    reference: WorkerGroup[ReferenceWorker, Any]
    critic: WorkerGroup[CriticWorker, Any] | None
    reward: WorkerGroup[RewardWorker, Any]


@contextmanager
def running_roles(
    settings: Settings, model: ModelConfig, tokenizer: CharTokenizer, answer_width: int
) -> Iterator[Roles]:
    """The roles' groups on the chosen backend, ended when the block ends, however it ends."""
    colocated = {
        "actor": ClassWithInitArgs(ActorWorker, model, settings, answer_width),
        "reference": ClassWithInitArgs(ReferenceWorker, model, settings),
    }
    if settings.algorithm == "ppo":
        colocated["critic"] = ClassWithInitArgs(CriticWorker, model, settings)
    start = _on_ray if settings.backend == "ray" else _in_this_process
    with start(settings, colocated, ClassWithInitArgs(RewardWorker, tokenizer)) as (models, reward):
        yield Roles(
            actor=models.role("actor", ActorWorker),
            reference=models.role("reference", ReferenceWorker),
            critic=models.role("critic", CriticWorker) if "critic" in colocated else None,
            reward=reward,
        )


@contextmanager
def _on_ray(
    settings: Settings, colocated: dict[str, ClassWithInitArgs], reward: ClassWithInitArgs
) -> Iterator[tuple[Any, Any]]:
    import ray
    from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls

    roles = create_colocated_worker_cls(
        {name: RayClassWithInitArgs(each.cls, *each.args, **each.kwargs) for name, each in colocated.items()}
    )
    with ExitStack() as running:
        if not ray.is_initialized():
            running.callback(ray.shutdown)
            # Ray would mix its own messages, and what workers print, into the result on stdout.
            ray.init(logging_level=logging.WARNING, log_to_driver=False)
        pool = running.enter_context(RayResourcePool([settings.workers], settings.gpus > 0, **_ONE_GROUP))
        judges = running.enter_context(RayResourcePool([1], use_gpu=False, **_ONE_GROUP))
        # Without waiting for the first group the second starts beside it.
        models = running.enter_context(
            RayWorkerGroup(pool, roles, name_prefix="models", wait=False, remote=True)
        )
        judge = RayClassWithInitArgs(reward.cls, *reward.args)
        yield models, running.enter_context(RayWorkerGroup(judges, judge, name_prefix="reward", wait=False))


@contextmanager
def _in_this_process(
    settings: Settings, colocated: dict[str, ClassWithInitArgs], reward: ClassWithInitArgs
) -> Iterator[tuple[Any, Any]]:
    roles = create_colocated_worker_raw_cls(colocated, fused=False)
    # Workers that meet to add up their gradients need a thread each; one alone stays in the caller's, where
    # a debugger is at home.
    with (
        LocalWorkerGroup(roles, settings.workers, concurrent=settings.workers > 1, remote=True) as models,
        LocalWorkerGroup(reward, 1) as judge,
    ):
        yield models, judge
