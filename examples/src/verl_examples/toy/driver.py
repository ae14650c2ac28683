"""The single controller: one plain loop that calls groups of workers as if each were one object."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from torch import Tensor
from verl_protocol import DataProto

from verl_examples.algorithms import (
    estimate_kl,
    generalised_advantages,
    group_advantages,
    masked_mean,
    penalise_kl,
    whiten,
)
from verl_examples.question_file import Question, Questions
from verl_examples.report import StepReport
from verl_examples.toy.data import endless_batches, prompt_batch
from verl_examples.toy.roles import Roles
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import CharTokenizer


class Trainer:
    """Warm-up, steps and measurements of one run."""

    def __init__(
        self, roles: Roles, questions: Questions, tokenizer: CharTokenizer, settings: Settings
    ) -> None:
        self.roles, self.settings = roles, settings
        self._tokenizer, self._prompt_width = tokenizer, questions.prompt_width
        self._questions = questions
        self._num_prompts = settings.answers_per_step // settings.answers_per_question

    def warm_up(self) -> float:
        """Show a few training questions with their answers; return the held-out accuracy after that."""
        shown = self._questions.train[: self.settings.warm_up_questions]
        answers = self._tokenizer.encode_answers(
            [question.answer for question in shown], self._questions.answer_width
        )
        batch = self._prompts(shown).union(DataProto.from_dict({"responses": answers}))
        self.roles.actor.warm_up(batch)
        weights = self.roles.actor.weights()
        self.roles.reference.load_weights(weights)
        if self.roles.critic is not None:
            self.roles.critic.start_from_actor(weights)
        return self.held_out_accuracy()

    def steps(self) -> Iterator[StepReport]:
        """Train, one report a step; the last step is always measured."""
        batches = endless_batches(self._questions.train, self._num_prompts, self.settings.seed)
        for step in range(1, self.settings.steps + 1):
            start = time.perf_counter()
            batch = self._answers(next(batches))
            batch.meta_info["step"] = step
            kl = self._add_advantages(batch)
            losses = self._update(batch)
            seconds = time.perf_counter() - start
            measured = step % self.settings.evaluate_every == 0 or step == self.settings.steps
            yield StepReport(
                step=step,
                reward=_share_right(batch),
                accuracy=self.held_out_accuracy() if measured else None,
                kl=kl,
                samples_per_s=len(batch) / seconds,
                metrics=losses,
            )

    def held_out_accuracy(self) -> float:
        """Share of held-out questions whose likeliest answer is right."""
        prompts = self._prompts(self._questions.held_out)
        prompts.meta_info["temperature"] = 0.0
        answered = prompts.union(self.roles.actor.generate_sequences(prompts))
        return _share_right(self.roles.reward.compute_reward(answered))

    def _prompts(self, questions: Sequence[Question]) -> DataProto:
        return prompt_batch(questions, self._tokenizer, self._prompt_width)

    def _answers(self, questions: Sequence[Question]) -> DataProto:
        """Answers of the policy, with all that is to be known before learning from them."""
        prompts = self._prompts(questions)
        prompts.meta_info["temperature"] = self.settings.temperature
        batch = prompts.repeat(self.settings.answers_per_question, interleave=True)
        batch = batch.union(self.roles.actor.generate_sequences(batch))
        batch = batch.union(self.roles.actor.compute_log_prob(batch))
        batch = batch.union(self.roles.reference.compute_ref_log_prob(batch))
        if self.roles.critic is not None:
            batch = batch.union(self.roles.critic.compute_values(batch))
        return batch.union(self.roles.reward.compute_reward(batch))

    def _add_advantages(self, batch: DataProto) -> float:
        """Add what the algorithm learns from; return the divergence from the reference, nats a token."""
        mask, old = batch.tensor("response_mask"), batch.tensor("old_log_probs")
        scores, reference = batch.tensor("token_level_scores"), batch.tensor("ref_log_prob")
        batch.union(DataProto.from_dict(self._learnt_from(batch, scores, old, reference, mask)))
        return float(masked_mean(estimate_kl(old, reference, "k3"), mask))

    def _learnt_from(
        self, batch: DataProto, scores: Tensor, old: Tensor, reference: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        if self.settings.algorithm == "grpo":
            return {"advantages": group_advantages(scores, mask, self.settings.answers_per_question)}
        rewards = penalise_kl(scores, estimate_kl(old, reference, "k1"), self.settings.kl_coefficient)
        advantages, returns = generalised_advantages(
            rewards,
            batch.tensor("values"),
            mask,
            discount=self.settings.discount,
            trace_decay=self.settings.trace_decay,
        )
        return {"advantages": whiten(advantages, mask), "returns": returns}

    def _update(self, batch: DataProto) -> dict[str, float]:
        """Let actor and critic learn from the batch; return their numbers, averaged over the workers."""
        per_rank = list(self.roles.actor.update_actor(batch))
        if self.roles.critic is not None:
            critic = self.roles.critic.update_critic(batch)
            per_rank = [{**mine, **others} for mine, others in zip(per_rank, critic, strict=True)]
        return {
            name: sum(metrics[name] for metrics in per_rank) / len(per_rank) for name in sorted(per_rank[0])
        }


def _share_right(batch: DataProto) -> float:
    return float(batch.tensor("token_level_scores").sum()) / len(batch)
