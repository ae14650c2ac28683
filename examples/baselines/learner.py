"""What either PPO program computes, whatever brings the rows to the ranks: nothing here communicates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from verl_examples.algorithms import (
    clipped_policy_loss,
    clipped_value_loss,
    entropy,
    estimate_kl,
    generalised_advantages,
    masked_mean,
    penalise_kl,
    whiten,
)
from verl_examples.question_file import Question, Questions
from verl_examples.toy.generation import answer_distribution, answer_log_probs, generate
from verl_examples.toy.gradients import data_parallel_step
from verl_examples.toy.model import ModelConfig, Transformer, ValueModel
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import PAD, CharTokenizer

Columns = dict[str, Tensor]
Metrics = dict[str, float]


class Learner:
    """Policy, reference and critic of one rank.

    Args:
        all_reduce: sums a tensor over all ranks, in place.
    """

    def __init__(
        self,
        settings: Settings,
        model: ModelConfig,
        answer_width: int,
        rank: int,
        world_size: int,
        all_reduce: Callable[[Tensor], object],
    ) -> None:
        torch.set_num_threads(1)
        self.settings, self.answer_width = settings, answer_width
        self.rank, self.world_size, self.all_reduce = rank, world_size, all_reduce
        self.actor = Transformer(model, settings.seed)
        self.reference = Transformer(model, settings.seed)
        self.critic = ValueModel(model, settings.seed)
        self.policy_optimizer = self.optimizer(self.actor, settings.learning_rate)
        self.value_optimizer = self.optimizer(self.critic, settings.critic_learning_rate)
        self.generator = torch.Generator().manual_seed(settings.seed * 1000 + rank)

    def optimizer(self, network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(network.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0)

    def warm_up(self, part: Columns) -> None:
        """Imitate known answers, then start reference and critic from the policy."""
        optimizer = self.optimizer(self.actor, self.settings.warm_up_learning_rate)
        for _ in range(self.settings.warm_up_steps):
            log_probs, _ = self.log_probs(self.actor, part)
            mask = (part["responses"] != PAD).float()
            self.step(optimizer, -log_probs, mask)
        self.reference.load_state_dict(self.actor.state_dict())
        self.critic.transformer.load_state_dict(self.actor.state_dict())

    def answer(self, part: Columns, temperature: float) -> None:
        """Add `responses`, `response_mask` and the reward, 1 on the last token of a right answer."""
        responses = generate(
            self.actor, part["prompts"], self.answer_width, temperature=temperature, generator=self.generator
        )
        mask = (responses != PAD).float()
        right = (responses == part["answers"]).all(dim=1).float()
        last = mask.sum(dim=1).long().sub(1).clamp(min=0)
        part["responses"], part["response_mask"] = responses, mask
        part["token_level_scores"] = torch.zeros_like(mask).scatter(1, last[:, None], right[:, None])

    @torch.no_grad()
    def evaluate_answers(self, part: Columns) -> None:
        """Add what policy, reference and critic say about the answers."""
        part["old_log_probs"] = self.log_probs(self.actor, part)[0]
        part["ref_log_prob"] = self.log_probs(self.reference, part)[0]
        part["values"] = self.compute_values(part)

    def log_probs(self, network: Transformer, part: Columns) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the answers, and the whole distribution."""
        tokens = torch.cat([part["prompts"], part["responses"]], dim=1)
        distribution = answer_distribution(network, tokens, self.answer_width)
        return answer_log_probs(distribution, part["responses"]), distribution

    def compute_values(self, part: Columns) -> Tensor:
        """The value before each answer token."""
        tokens = torch.cat([part["prompts"], part["responses"]], dim=1)[:, :-1]
        values: Tensor = self.critic(tokens, (tokens != PAD).long())
        return values[:, -self.answer_width :]

    def learn(self, part: Columns, step: int) -> Metrics:
        """A few epochs of mini-batches for the policy, then for the critic."""
        left = 1 - (step - 1) / self.settings.steps
        self.policy_optimizer.param_groups[0]["lr"] = self.settings.learning_rate * left
        self.value_optimizer.param_groups[0]["lr"] = self.settings.critic_learning_rate * left
        share = self.settings.answers_per_update // self.world_size
        num_rows = len(part["prompts"])
        slices = [slice(start, start + share) for start in range(0, num_rows, share)] * self.settings.epochs
        batches = [{name: column[rows] for name, column in part.items()} for rows in slices]
        policy = average([self.update_actor(batch) for batch in batches])
        return policy | average([self.update_critic(batch) for batch in batches])

    def update_actor(self, batch: Columns) -> Metrics:
        log_probs, distribution = self.log_probs(self.actor, batch)
        old, mask, clip = batch["old_log_probs"], batch["response_mask"], self.settings.policy_clip
        loss = clipped_policy_loss(log_probs, old, batch["advantages"], clip)
        total = self.step(self.policy_optimizer, loss, mask)
        outside = ((log_probs - old).exp() - 1).abs() > clip
        return {
            "actor/loss": total,
            "actor/clipped": float(masked_mean(outside.float(), mask)),
            "actor/entropy": float(masked_mean(entropy(distribution.detach()), mask)),
        }

    def update_critic(self, batch: Columns) -> Metrics:
        values, clip = self.compute_values(batch), self.settings.value_clip
        loss = clipped_value_loss(values, batch["values"], batch["returns"], clip)
        return {"critic/loss": self.step(self.value_optimizer, loss, batch["response_mask"])}

    def step(self, optimizer: torch.optim.Optimizer, loss: Tensor, mask: Tensor) -> float:
        return data_parallel_step(optimizer, loss, mask, self.all_reduce, self.settings.max_gradient_norm)

    def weights(self) -> dict[str, Columns]:
        """The state of policy and critic, by role."""
        return {"actor": self.actor.state_dict(), "critic": self.critic.state_dict()}


def average(metrics: Sequence[Metrics]) -> Metrics:
    """The mean of each number, over mini-batches or over ranks."""
    return {name: sum(each[name] for each in metrics) / len(metrics) for name in metrics[0]}


def encoded(questions: list[Question], parts: Questions, tokenizer: CharTokenizer) -> Columns:
    """Prompts padded on the left, answers on the right."""
    prompts = tokenizer.encode_prompts([question.prompt for question in questions], parts.prompt_width)
    answers = tokenizer.encode_answers([question.answer for question in questions], parts.answer_width)
    return {"prompts": prompts, "answers": answers}


def add_advantages(batch: Columns, settings: Settings) -> float:
    """Add what is learnt from, on rank 0; return the divergence from the reference, nats a token."""
    mask, old, reference = batch["response_mask"], batch["old_log_probs"], batch["ref_log_prob"]
    kl = estimate_kl(old, reference, "k1")
    advantages, batch["returns"] = generalised_advantages(
        penalise_kl(batch["token_level_scores"], kl, settings.kl_coefficient),
        batch["values"],
        mask,
        discount=settings.discount,
        trace_decay=settings.trace_decay,
    )
    batch["advantages"] = whiten(advantages, mask)
    return float(masked_mean(estimate_kl(old, reference, "k3"), mask))


def share_right(batch: Columns) -> float:
    return float(batch["token_level_scores"].sum()) / len(batch["token_level_scores"])
