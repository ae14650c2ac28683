"""The policy as it was after the warm-up, so that training cannot wander off unseen."""

from __future__ import annotations

import torch
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.toy.generation import answer_distribution, answer_log_probs
from verl_examples.toy.model import ModelConfig, Transformer
from verl_examples.toy.settings import Settings
from verl_examples.toy.workers.model_worker import ModelWorker


class ReferenceWorker(ModelWorker):
    """A frozen copy of the actor."""

    network: Transformer

    def __init__(self, model: ModelConfig, settings: Settings) -> None:
        super().__init__(Transformer(model, settings.seed), settings)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @torch.no_grad()
    def compute_ref_log_prob(self, batch: DataProto) -> DataProto:
        """Log-probabilities of the answers under the frozen policy: `ref_log_prob`."""
        responses = self.column(batch, "responses")
        tokens = torch.cat([self.column(batch, "prompts"), responses], dim=1)
        distribution = answer_distribution(self.network, tokens, responses.shape[1])
        return DataProto.from_dict({"ref_log_prob": answer_log_probs(distribution, responses).cpu()})
