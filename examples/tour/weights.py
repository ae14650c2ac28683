"""Broadcast of weights: rank 0 of the trainer gives them, every worker of the rollout gets them."""

import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register

Weights = dict[str, torch.Tensor]


class Trainer(Worker):
    weight: torch.Tensor = torch.zeros(2, 2)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self, by: float) -> None:
        self.weight = self.weight + by

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def weights(self) -> Weights:
        return {"weight": self.weight}


class Rollout(Worker):
    weight: torch.Tensor = torch.zeros(2, 2)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    def load(self, weights: Weights) -> float:
        self.weight = weights["weight"].clone()
        return float(self.weight.sum())


with LocalWorkerGroup(Trainer, 2) as trainer, LocalWorkerGroup(Rollout, 4) as rollout:
    print(rollout.load.plan(trainer.weights()))
    print("\n  step  sum of the weights on each rollout rank")
    for step in range(3):
        trainer.step(0.5)
        print(f"  {step:>4}  {rollout.load(trainer.weights())}")
