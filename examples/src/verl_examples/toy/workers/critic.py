"""The critic: it foresees, at each token of an answer, the reward still to come."""

from __future__ import annotations

import torch
from torch import Tensor
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.algorithms import clipped_value_loss
from verl_examples.toy.gradients import data_parallel_step
from verl_examples.toy.model import ModelConfig, ValueModel
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import PAD
from verl_examples.toy.workers.model_worker import Metrics, ModelWorker, average


class CriticWorker(ModelWorker):
    """A value model that starts from the warmed-up actor's transformer."""

    network: ValueModel

    def __init__(self, model: ModelConfig, settings: Settings) -> None:
        super().__init__(ValueModel(model, settings.seed), settings)
        self.value_optimizer = self.optimizer(settings.critic_learning_rate)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def start_from_actor(self, weights: dict[str, Tensor]) -> None:
        """Take over the actor's transformer; the value on top starts at 0."""
        self.network.transformer.load_state_dict(weights)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_values(self, batch: DataProto) -> DataProto:
        """The value before each answer token: `values`, (rows, answer tokens)."""
        with torch.no_grad():
            values = self._values(batch)
        return DataProto.from_dict({"values": values.cpu()})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_critic(self, batch: DataProto) -> Metrics:
        """Learn the `returns`, over a few epochs of mini-batches."""
        step = int(batch.meta_info["step"])
        self.anneal(self.value_optimizer, self.settings.critic_learning_rate, step)
        return average([self._update(part) for part in self.mini_batches(batch, seed=step)])

    def _update(self, batch: DataProto) -> Metrics:
        returns, old_values = self.column(batch, "returns"), self.column(batch, "values")
        loss = clipped_value_loss(self._values(batch), old_values, returns, self.settings.value_clip)
        limit, mask = self.settings.max_gradient_norm, self.column(batch, "response_mask")
        return {
            "critic/loss": data_parallel_step(
                self.value_optimizer, loss, mask, self.process_group().all_reduce, limit
            )
        }

    def _values(self, batch: DataProto) -> Tensor:
        responses = self.column(batch, "responses")
        tokens = torch.cat([self.column(batch, "prompts"), responses], dim=1)[:, :-1]
        values: Tensor = self.network(tokens, (tokens != PAD).long())
        return values[:, -responses.shape[1] :]
