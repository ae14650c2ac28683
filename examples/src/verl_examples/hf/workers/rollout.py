"""The rollout: it answers, with weights that the actor gave it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from verl_dispatch import Dispatch, register
from verl_protocol import DataProto

from verl_examples.hf.generation import Generator
from verl_examples.hf.jagged import Sequences, jagged, unpadded
from verl_examples.hf.models import answer_log_probs, load_causal_lm, load_tokenizer, load_weights
from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.model_worker import ModelWorker

ANSWERS = ("responses", "rollout_log_probs", "num_tokens", "text")


class RolloutWorker(ModelWorker):
    """A whole copy of the model, for answers alone."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        network = load_causal_lm(settings.model, self.dtype, settings.trust_remote_code)
        self.network = network.to(self.device).eval()
        self.tokenizer = load_tokenizer(settings.model, settings.trust_remote_code)
        self.generator = Generator(self.network, self.tokenizer, settings.stop)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load_weights(self, weights: dict[str, Tensor]) -> None:
        """Take over the actor's weights."""
        load_weights(self.network, weights)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True, reads=("prompts",), writes=ANSWERS)
    @torch.no_grad()
    def generate(self, batch: DataProto) -> DataProto:
        """Answer each of the jagged `prompts` once.

        Returns:
            `responses` and `rollout_log_probs`, jagged; `num_tokens`, (rows,), prompt and answer together;
            the object column `text`.
        """
        parts = batch.split(self.settings.answers_per_pass)
        return DataProto.concat([self._answers(part, number) for number, part in enumerate(parts)])

    def _answers(self, batch: DataProto, number: int) -> DataProto:
        prompts = batch.tensor("prompts")
        answers = self.generator.answer(
            prompts,
            temperature=batch.meta_info["temperature"],
            max_tokens=self.settings.max_answer_tokens,
            seed=self._seed(batch.meta_info["draw"], number),
        )
        answered = DataProto.from_dict({"prompts": prompts, "responses": jagged(answers)})
        sequences = Sequences.of(answered, self.device)
        # One more pass, since `generate` would keep what it computes for the whole vocabulary.
        log_probs = answer_log_probs(self.network, sequences, self.settings.temperature)
        texts = self.tokenizer.batch_decode(answers, skip_special_tokens=True)
        return DataProto.from_dict(
            {
                "responses": answered.tensor("responses"),
                "rollout_log_probs": unpadded(log_probs, sequences.mask),
                "num_tokens": sequences.visible.sum(dim=1).cpu(),
            },
            {"text": np.array(texts, dtype=object)},
        )

    def _seed(self, draw: int, number: int) -> int:
        """Follows from what is drawn, not from what was drawn before, so that a run can go on anywhere."""
        place = (self.settings.seed, draw, self.rank, number)
        return int(np.random.SeedSequence(place).generate_state(1)[0])
