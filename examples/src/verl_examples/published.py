"""`verl-published`: the program of the articles on this design, nearly word for word, on 8 logical GPUs.

A worker answers prompts (digits) with digits and is rewarded for the digit that follows. Which part of the
prompts a worker gets, and that all get the same gradients, is said by the two modes alone.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from typing import TypedDict

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import ray
import torch
from torch import Tensor, nn
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

NUM_WORKERS, PROMPTS_PER_WORKER, NUM_STEPS = 8, 64, 40
LEARNING_RATE = 1.0


class Experience(TypedDict):
    """What one worker brings back: its mean reward, and the gradients of its policy loss."""

    reward: float
    gradients: list[Tensor]


@ray.remote
class PPOWorker(Worker):
    """Holds a copy of the policy, the same on every worker."""

    def __init__(self) -> None:
        super().__init__()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.policy = nn.Sequential(nn.Embedding(10, 32), nn.Linear(32, 10))
        self.source = torch.Generator().manual_seed(self.rank)

    @register(Dispatch.ALL_TO_ALL)
    def collect_experience(self, prompts: DataProto | Tensor) -> Experience:
        """Answer this worker's prompts and weigh each answer by its reward."""
        digits = prompts.tensor("digits") if isinstance(prompts, DataProto) else prompts
        log_probs = self.policy(digits).log_softmax(dim=-1)
        answers = torch.multinomial(log_probs.exp(), 1, generator=self.source)
        rewards = (answers.squeeze(1) == (digits + 1) % 10).float()
        loss = -((rewards - rewards.mean()) * log_probs.gather(1, answers).squeeze(1)).mean()
        gradients = torch.autograd.grad(loss, list(self.policy.parameters()))
        return {"reward": float(rewards.mean()), "gradients": list(gradients)}

    @register(Dispatch.ONE_TO_ALL)
    def update_policy(self, grads: list[Tensor]) -> None:
        """Step along the gradients that all workers get."""
        for parameter, gradient in zip(self.policy.parameters(), grads, strict=True):
            parameter.data -= LEARNING_RATE * gradient


def prompts_of(step: int) -> DataProto | list[Tensor]:
    """Prompts for 8 workers: in even steps one batch, which is split by rows, in odd steps a list of 8."""
    digits = torch.arange(NUM_WORKERS * PROMPTS_PER_WORKER) % 10
    return DataProto.from_dict({"digits": digits}) if step % 2 == 0 else list(digits.chunk(NUM_WORKERS))


def compute_gradients(experiences: Sequence[Experience]) -> list[Tensor]:
    """The mean over the workers, parameter by parameter."""
    columns = zip(*(experience["gradients"] for experience in experiences), strict=True)
    return [torch.stack(column).mean(dim=0) for column in columns]


def main() -> int:
    """Run the loop and print the mean reward now and then."""
    ray.init(num_cpus=NUM_WORKERS, num_gpus=NUM_WORKERS, logging_level=logging.WARNING)
    resource_pool = RayResourcePool([NUM_WORKERS], use_gpu=True)
    worker_cls = RayClassWithInitArgs(PPOWorker)
    try:
        with resource_pool, RayWorkerGroup(resource_pool, worker_cls) as worker_group:
            for step in range(NUM_STEPS):
                experiences = worker_group.collect_experience(prompts_of(step))
                grads = compute_gradients(experiences)
                worker_group.update_policy(grads)
                if step % 10 == 9:
                    reward = sum(experience["reward"] for experience in experiences) / NUM_WORKERS
                    sys.stdout.write(f"step {step + 1}: mean reward {reward:.2f}\n")
    finally:
        ray.shutdown()
    return 0
