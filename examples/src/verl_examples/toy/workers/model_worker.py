"""What every worker with a model does: find its device, hand out and take over weights."""

from __future__ import annotations

from abc import ABC
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto

from verl_examples.toy.settings import Settings

Metrics = dict[str, float]


class ModelWorker(Worker, ABC):
    """A worker with one network; `weights` and `load_weights` move it between roles."""

    def __init__(self, network: nn.Module, settings: Settings) -> None:
        super().__init__()
        # Two workers with all threads each would only take the cores from each other.
        torch.set_num_threads(1)
        self.device = self._device(settings)
        self.settings = settings
        self.network = network.to(self.device)

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def weights(self) -> dict[str, Tensor]:
        """The network's weights on the CPU; they are the same on every rank."""
        return {name: weight.cpu() for name, weight in self.network.state_dict().items()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take over weights that another role's `weights` gave."""
        self.network.load_state_dict(weights)

    def optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """A fresh optimiser for the network."""
        return torch.optim.AdamW(
            self.network.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0
        )

    def anneal(self, optimizer: torch.optim.Optimizer, learning_rate: float, step: int) -> None:
        """Lower the rate linearly, to near 0 in the last step, so that the run settles where it ends."""
        for group in optimizer.param_groups:
            group["lr"] = learning_rate * (1 - (step - 1) / self.settings.steps)

    def column(self, batch: DataProto, name: str) -> Tensor:
        """One column of a batch on this worker's device."""
        return batch.tensor(name).to(self.device)

    def mini_batches(self, batch: DataProto, seed: int) -> Iterator[DataProto]:
        """This worker's share of each gradient step, over all epochs, in the order of its rows."""
        share = self.settings.answers_per_update // self.world_size
        yield from batch.make_iterator(share, self.settings.epochs, seed=seed)

    def _device(self, settings: Settings) -> torch.device:
        if not settings.gpus:
            return torch.device("cpu")
        index = self.rank_info.device_index
        # Workers in one process see all devices and have none of their own.
        return torch.device("cuda", self.local_rank if index is None else index)


def average(metrics: list[Metrics]) -> Metrics:
    """The mean of each number over mini-batches."""
    return {name: sum(each[name] for each in metrics) / len(metrics) for name in metrics[0]}
