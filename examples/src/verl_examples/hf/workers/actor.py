"""The policy: it says how likely answers are, and learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.algorithms import clipped_policy_loss, estimate_kl, off_policy_weight
from verl_examples.hf.folders import written_in_one_step
from verl_examples.hf.jagged import Sequences, unpadded
from verl_examples.hf.models import answer_log_probs, load_causal_lm, load_tokenizer
from verl_examples.hf.settings import Settings
from verl_examples.hf.sharding import whole_weights
from verl_examples.hf.workers.model_worker import SEQUENCES, Metrics, TrainedWorker


class ActorWorker(TrainedWorker):
    """The causal language model that is trained."""

    def __init__(self, settings: Settings) -> None:
        network = load_causal_lm(settings.model, torch.float32, settings.trust_remote_code)
        super().__init__(network, settings.learning_rate, settings)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, reads=SEQUENCES)
    def warm_up(self, batch: DataProto) -> Metrics:
        """Imitate known answers: `prompts` and `responses`, a few times over."""
        optimizer = self.new_optimizer(self.settings.warm_up_learning_rate)
        metrics: Metrics = {}
        for _ in range(self.settings.warm_up_steps):
            metrics = self.gradient_step(optimizer, batch, self._imitation_loss)
        return metrics

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True, reads=SEQUENCES, writes=("old_log_probs",)
    )
    @torch.no_grad()
    def compute_log_prob(self, batch: DataProto) -> DataProto:
        """Log-probabilities of the answers under the policy as it is now: `old_log_probs`, jagged."""
        return DataProto.concat([self._log_probs_of(sequences) for _, sequences in self.passes(batch)])

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_METRIC,
        reads=(*SEQUENCES, "advantages", "old_log_probs", "rollout_log_probs", "ref_log_prob?"),
    )
    def update_actor(self, batch: DataProto) -> Metrics:
        """Learn from `advantages`, jagged or (rows, 1); the metrics of all workers add up to the means."""
        return self.learn(batch, self._policy_loss)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def weights(self) -> dict[str, Tensor] | None:
        """The whole weights, from rank 0, as those need them who generate."""
        whole = whole_weights(self.network)
        return {name: weight.to(self.dtype) for name, weight in whole.items()} if self.rank == 0 else None

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save_model(self, folder: Path) -> None:
        """Write model and tokenizer as `from_pretrained` of plain transformers reads them."""
        whole = whole_weights(self.network)
        if self.rank == 0:
            model = load_causal_lm(self.settings.model, torch.float32, self.settings.trust_remote_code)
            model.load_state_dict(whole, strict=False)
            with written_in_one_step(folder) as unfinished:
                model.save_pretrained(unfinished)
                load_tokenizer(self.settings.model, self.settings.trust_remote_code).save_pretrained(
                    unfinished
                )

    def _imitation_loss(self, _: DataProto, sequences: Sequences) -> Mapping[str, Tensor]:
        return {"warm_up/loss": -answer_log_probs(self.network, sequences, 1.0)}

    def _policy_loss(self, batch: DataProto, sequences: Sequences) -> Mapping[str, Tensor]:
        settings = self.settings
        log_probs = answer_log_probs(self.network, sequences, settings.temperature)
        old, drawn = self.column(batch, "old_log_probs"), self.column(batch, "rollout_log_probs")
        loss = clipped_policy_loss(
            log_probs, old, self.column(batch, "advantages"), settings.clip_low, settings.clip_high
        )
        loss = loss * off_policy_weight(old, drawn, settings.off_policy_limit)
        ratio = torch.exp(log_probs.detach() - old)
        clipped = (ratio < 1 - settings.clip_low) | (ratio > 1 + settings.clip_high)
        reported = {
            "actor/clipped": clipped.float(),
            # What was drawn is as unlikely, on average, as the distribution is broad.
            "actor/entropy": -drawn,
            "off_policy/ratio": torch.exp(old - drawn),
        }
        if "ref_log_prob" in batch:
            reference = self.column(batch, "ref_log_prob")
            reported["kl"] = estimate_kl(old, reference, "k3")
            if settings.algorithm == "grpo":
                loss = loss + settings.kl_coefficient * estimate_kl(log_probs, reference, "k3")
        return {"actor/loss": loss, **reported}

    def _log_probs_of(self, sequences: Sequences) -> DataProto:
        with self.autocast():
            log_probs = answer_log_probs(self.network, sequences, self.settings.temperature)
        return DataProto.from_dict({"old_log_probs": unpadded(log_probs, sequences.mask)})
