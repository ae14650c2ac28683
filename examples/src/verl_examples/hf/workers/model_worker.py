"""What every worker with a model does, and what those do that train it."""

from __future__ import annotations

import warnings
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto

from verl_examples.hf.jagged import Sequences, num_values, padded
from verl_examples.hf.settings import Settings
from verl_examples.hf.sharding import shard

SEQUENCES = ("prompts", "responses")
"""The columns that every pass of a model reads."""

Metrics = dict[str, float]
LossPerToken = Callable[[DataProto, Sequences], Mapping[str, Tensor]]
"""Values per token, (rows, answer tokens): the first is descended, the others are only reported."""


class ModelWorker(Worker, ABC):
    """A worker that runs a model on a device of its own: bf16 on a GPU, float32 on a CPU."""

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        # Two workers with all threads each would only take the cores from each other.
        torch.set_num_threads(1)
        self.settings = settings
        self.device = self._device()
        self.dtype = torch.bfloat16 if settings.gpus else torch.float32

    def _device(self) -> torch.device:
        index = self.rank_info.device_index
        return torch.device("cuda", index or 0) if self.settings.gpus else torch.device("cpu")

    def passes(self, batch: DataProto) -> Iterator[tuple[DataProto, Sequences]]:
        """The batch in parts that the model sees at once.

        Ranks with shards meet in every pass: they must have equally many rows.
        """
        for part in batch.split(self.settings.answers_per_pass):
            yield part, Sequences.of(part, self.device)

    def autocast(self) -> AbstractContextManager[Any]:
        """Computes in bf16 on a GPU."""
        return torch.autocast(self.device.type, self.dtype, enabled=self.settings.gpus > 0)

    def column(self, batch: DataProto, name: str) -> Tensor:
        """One column on this worker's device, padded if it is jagged."""
        return padded(batch.tensor(name)).to(self.device)


class TrainedWorker(ModelWorker, ABC):
    """A worker whose model learns, in shards where there are several ranks."""

    def __init__(self, network: nn.Module, learning_rate: float, settings: Settings) -> None:
        super().__init__(settings)
        self.network = network.to(self.device)
        if self.world_size > 1:
            # The first collective joins the process group that the shards need.
            self.process_group().barrier()
            shard(self.network, self.device, self.world_size)
        self.optimizer = self.new_optimizer(learning_rate)

    def new_optimizer(self, learning_rate: float) -> torch.optim.Optimizer:
        """AdamW for the network."""
        return torch.optim.AdamW(
            self.network.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0
        )

    def learn(self, batch: DataProto, loss_per_token: LossPerToken) -> Metrics:
        """Gradient steps over a few epochs of mini-batches; this worker's part of each mean over tokens."""
        share = self.settings.answers_per_update // self.world_size
        seed = int(batch.meta_info["step"])
        found = [
            self.gradient_step(self.optimizer, part, loss_per_token)
            for part in batch.make_iterator(share, self.settings.epochs, seed=seed)
        ]
        return {name: sum(each[name] for each in found) / len(found) for name in found[0]}

    def gradient_step(
        self, optimizer: torch.optim.Optimizer, batch: DataProto, loss_per_token: LossPerToken
    ) -> Metrics:
        """One step on the mean over the answer tokens of *all* workers.

        Returns:
            this worker's part of the mean of each value: those of all workers add up to it.
        """
        num_tokens = self.process_group().all_reduce(num_values(batch.tensor("responses")).to(self.device))
        sums: dict[str, float] = {}
        optimizer.zero_grad()
        for part, sequences in self.passes(batch):
            with self.autocast():
                values = loss_per_token(part, sequences)
            means = {name: (value * sequences.mask).sum() / num_tokens for name, value in values.items()}
            next(iter(means.values())).backward()  # type: ignore[no-untyped-call]
            for name, mean in means.items():
                sums[name] = sums.get(name, 0.0) + float(mean.detach())
        nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.max_gradient_norm)
        optimizer.step()
        return sums

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, folder: Path) -> None:
        """Write weights and state of the optimiser: each rank its own shards."""
        with _one_rank_is_no_mistake():
            save(self._state(), checkpoint_id=folder, no_dist=self.world_size == 1)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load(self, folder: Path) -> None:
        """Take over what `save` wrote, with any number of ranks."""
        state = self._state()
        with _one_rank_is_no_mistake():
            load(state, checkpoint_id=folder, no_dist=self.world_size == 1)
        set_state_dict(
            self.network, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )

    def _state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.network, self.optimizer)
        return {"model": model, "optimizer": optimizer}


@contextmanager
def _one_rank_is_no_mistake() -> Iterator[None]:
    """torch warns of a checkpoint without a process group, also where none was asked for."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        yield
