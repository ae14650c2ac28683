"""The policy: it answers, says how likely its answers were, and learns."""

from __future__ import annotations

import torch
from torch import Tensor
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.algorithms import clipped_policy_loss, entropy, estimate_kl, masked_mean
from verl_examples.toy.generation import answer_distribution, answer_log_probs, generate
from verl_examples.toy.gradients import data_parallel_step
from verl_examples.toy.model import ModelConfig, Transformer
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import PAD
from verl_examples.toy.workers.model_worker import Metrics, ModelWorker, average


class ActorWorker(ModelWorker):
    """Actor and rollout in one: the weights that answer are the weights that learn."""

    network: Transformer

    def __init__(self, model: ModelConfig, settings: Settings, answer_width: int) -> None:
        super().__init__(Transformer(model, settings.seed), settings)
        self.answer_width = answer_width
        self.policy_optimizer = self.optimizer(settings.learning_rate)
        self.generator = torch.Generator(self.device).manual_seed(settings.seed * 1000 + self.rank)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def warm_up(self, batch: DataProto) -> Metrics:
        """Imitate known answers: `prompts` and `responses`, a few times over."""
        optimizer = self.optimizer(self.settings.warm_up_learning_rate)
        loss = 0.0
        for _ in range(self.settings.warm_up_steps):
            log_probs, _, mask = self._forward(batch)
            loss = self._step(optimizer, -log_probs, mask)
        return {"warm_up/loss": loss}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """Answer each prompt: `responses` and `response_mask`, (rows, answer_width)."""
        responses = generate(
            self.network,
            self.column(prompts, "prompts"),
            self.answer_width,
            temperature=prompts.meta_info["temperature"],
            generator=self.generator,
        ).cpu()
        return DataProto.from_dict({"responses": responses, "response_mask": (responses != PAD).float()})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """Log-probabilities of the answers under the policy as it is now: `old_log_probs`."""
        with torch.no_grad():
            log_probs, _, _ = self._forward(batch)
        return DataProto.from_dict({"old_log_probs": log_probs.cpu()})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def update_actor(self, batch: DataProto) -> Metrics:
        """Learn from `advantages`: clipped policy steps over a few epochs of mini-batches."""
        step = int(batch.meta_info["step"])
        self.anneal(self.policy_optimizer, self.settings.learning_rate, step)
        return average([self._update(part) for part in self.mini_batches(batch, seed=step)])

    def _update(self, batch: DataProto) -> Metrics:
        log_probs, distribution, mask = self._forward(batch)
        old_log_probs, advantages = self.column(batch, "old_log_probs"), self.column(batch, "advantages")
        loss = clipped_policy_loss(log_probs, old_log_probs, advantages, self.settings.policy_clip)
        if self.settings.algorithm == "grpo":
            kl = estimate_kl(log_probs, self.column(batch, "ref_log_prob"), "k3")
            loss = loss + self.settings.kl_coefficient * kl
        total = self._step(self.policy_optimizer, loss, mask)
        outside = ((log_probs - old_log_probs).exp() - 1).abs() > self.settings.policy_clip
        return {
            "actor/loss": total,
            "actor/clipped": float(masked_mean(outside.float(), mask)),
            "actor/entropy": float(masked_mean(entropy(distribution.detach()), mask)),
        }

    def _step(self, optimizer: torch.optim.Optimizer, loss: Tensor, mask: Tensor) -> float:
        limit = self.settings.max_gradient_norm
        return data_parallel_step(optimizer, loss, mask, self.process_group().all_reduce, limit)

    def _forward(self, batch: DataProto) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of the answers, the whole distribution, and the answers' mask."""
        responses = self.column(batch, "responses")
        tokens = torch.cat([self.column(batch, "prompts"), responses], dim=1)
        distribution = answer_distribution(self.network, tokens, responses.shape[1])
        return answer_log_probs(distribution, responses), distribution, (responses != PAD).float()
