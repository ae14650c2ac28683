"""The rollout: it answers, with weights that the actor gave it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from torch import Tensor
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.hf.generation import Generator
from verl_examples.hf.jagged import Sequences, jagged, row_lengths
from verl_examples.hf.models import answer_log_probs, load_causal_lm, load_tokenizer, load_weights
from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.model_worker import ModelWorker

ANSWERS = ("responses", "rollout_log_probs", "num_tokens", "text")

Answers = tuple[list[Tensor], list[Tensor]]
"""Of each answer the token ids, and their log-probabilities at the temperature of the run."""


class RolloutWorker(ModelWorker, ABC):
    """A whole copy of the model, for answers alone; a subclass says what runs it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.tokenizer = load_tokenizer(settings.model, settings.trust_remote_code)

    @abstractmethod
    def take_over(self, weights: dict[str, Tensor]) -> None:
        """Overwrite every weight; those that are tied have one name."""

    @abstractmethod
    def answered(self, batch: DataProto) -> Answers:
        """Answers to the jagged `prompts`, up to an end token or stop text, which count.

        `meta_info` tells the `temperature`, 0 for the likeliest answers, and what is drawn: see `seed`.
        """

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take over the actor's weights."""
        self.take_over(weights)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True, reads=("prompts",), writes=ANSWERS)
    @torch.no_grad()
    def generate(self, batch: DataProto) -> DataProto:
        """Answer each of the jagged `prompts` once.

        Returns:
            `responses` and `rollout_log_probs`, jagged; `num_tokens`, (rows,), prompt and answer together;
            the object column `text`.
        """
        answers, log_probs = self.answered(batch)
        responses = jagged(answers)
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return DataProto.from_dict(
            {
                "responses": responses,
                "rollout_log_probs": jagged(log_probs),
                "num_tokens": row_lengths(batch.tensor("prompts")) + row_lengths(responses),
            },
            {"text": np.array(texts, dtype=object)},
        )

    def seed(self, batch: DataProto, number: int) -> int:
        """Of the `number`th thing drawn for a batch.

        It follows from what is drawn, not from what was drawn before, so that a run can go on anywhere.
        """
        place = (self.settings.seed, batch.meta_info["draw"], self.rank, number)
        return int(np.random.SeedSequence(place).generate_state(1)[0])


class TransformersRollout(RolloutWorker):
    """Answers by `generate` of transformers."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        network = load_causal_lm(settings.model, self.dtype, settings.trust_remote_code)
        self.network = network.to(self.device).eval()
        self.generator = Generator(self.network, self.tokenizer, settings.stop)

    def take_over(self, weights: dict[str, Tensor]) -> None:
        """As promised above."""
        load_weights(self.network, weights)

    def answered(self, batch: DataProto) -> Answers:
        """As promised above; as many at once as the model is to see."""
        answers, log_probs = [], []
        for number, part in enumerate(batch.split(self.settings.answers_per_pass)):
            rows = self.generator.answer(
                part.tensor("prompts"),
                temperature=part.meta_info["temperature"],
                max_tokens=self.settings.max_answer_tokens,
                seed=self.seed(part, number),
            )
            answers += rows
            log_probs += self._log_probs(part, rows)
        return answers, log_probs

    def _log_probs(self, batch: DataProto, answers: list[Tensor]) -> list[Tensor]:
        """One more pass, since `generate` would keep what it computes for the whole vocabulary."""
        columns = {"prompts": batch.tensor("prompts"), "responses": jagged(answers)}
        sequences = Sequences.of(DataProto.from_dict(columns), self.device)
        padded = answer_log_probs(self.network, sequences, self.settings.temperature).cpu()
        return [row[: len(answer)] for row, answer in zip(padded, answers, strict=True)]
