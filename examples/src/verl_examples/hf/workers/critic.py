"""The critic of PPO: it foresees, at each token of an answer, the reward still to come."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.algorithms import (
    clipped_value_loss,
    estimate_kl,
    generalised_advantages,
    penalise_kl,
    whiten,
)
from verl_examples.hf.jagged import Sequences, padded, row_mask, unpadded
from verl_examples.hf.models import ValueModel
from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.model_worker import SEQUENCES, Metrics, TrainedWorker


class CriticWorker(TrainedWorker):
    """A value model that starts from the same weights as the actor."""

    network: ValueModel

    def __init__(self, settings: Settings) -> None:
        network = ValueModel(settings.model, torch.float32, settings.trust_remote_code)
        super().__init__(network, settings.critic_learning_rate, settings)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True, reads=SEQUENCES, writes=("values",))
    @torch.no_grad()
    def compute_values(self, batch: DataProto) -> DataProto:
        """The value before each token of the answers: `values`, jagged."""
        return DataProto.concat([self._values_of(sequences) for _, sequences in self.passes(batch)])

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO,
        remote=True,
        reads=("responses", "scores", "old_log_probs", "values", "ref_log_prob?"),
        writes=("advantages", "returns"),
    )
    def compute_advantages(self, batch: DataProto) -> DataProto:
        """GAE over `scores`, (rows,), less what straying from the reference costs, and `values`.

        Returns:
            `advantages`, whitened over all workers, and `returns`, jagged.
        """
        responses, settings = batch.tensor("responses"), self.settings
        mask, old = row_mask(responses), padded(batch.tensor("old_log_probs"))
        last = mask.sum(dim=1).long()[:, None] - 1
        rewards = torch.zeros_like(mask).scatter(1, last, batch.tensor("scores").float()[:, None])
        if "ref_log_prob" in batch:
            kl = estimate_kl(old, padded(batch.tensor("ref_log_prob")), "k1")
            rewards = penalise_kl(rewards, kl, settings.kl_coefficient)
        advantages, returns = generalised_advantages(
            rewards,
            padded(batch.tensor("values")),
            mask,
            discount=settings.discount,
            trace_decay=settings.trace_decay,
        )
        advantages = whiten(advantages, mask, self.process_group().all_reduce)
        return DataProto.from_dict(
            {"advantages": unpadded(advantages, mask), "returns": unpadded(returns, mask)}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, reads=(*SEQUENCES, "returns", "values"))
    def update_critic(self, batch: DataProto) -> Metrics:
        """Learn the `returns`; the metrics of all workers add up to the means."""
        return self.learn(batch, self._value_loss)

    def _value_loss(self, batch: DataProto, sequences: Sequences) -> Mapping[str, Tensor]:
        returns, old = self.column(batch, "returns"), self.column(batch, "values")
        values = self.network(sequences)
        return {"critic/loss": clipped_value_loss(values, old, returns, self.settings.value_clip)}

    def _values_of(self, sequences: Sequences) -> DataProto:
        with self.autocast():
            values = self.network(sequences)
        return DataProto.from_dict({"values": unpadded(values, sequences.mask)})
