"""The rollout by vLLM, in processes of its own with a GPU each."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from verl_protocol import DataProto

from verl_examples.hf.settings import Settings
from verl_examples.hf.workers.rollout import Answers, RolloutWorker


class VllmRollout(RolloutWorker):
    """Answers by vLLM, which batches them as it goes, so that a call has them all at once."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        # vLLM reads it when it makes an engine: one in this process takes weights without a copy of them.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        self.engine = LLM(
            model=settings.model,
            dtype=str(self.dtype).removeprefix("torch."),
            seed=settings.seed,
            trust_remote_code=settings.trust_remote_code,
            # After the temperature, as the actor computes them.
            logprobs_mode="processed_logprobs",
        )

    def take_over(self, weights: dict[str, Tensor]) -> None:
        """As promised above."""
        self.engine.collective_rpc("reload_weights", kwargs={"weights_iterator": list(weights.items())})
        # What it keeps of prompts that come again was computed with the weights before.
        self.engine.reset_prefix_cache()

    def answered(self, batch: DataProto) -> Answers:
        """As promised above."""
        prompts = [{"prompt_token_ids": row.tolist()} for row in batch.tensor("prompts").unbind()]
        sampling = [self._sampling(batch, number) for number in range(len(prompts))]
        made = [each.outputs[0] for each in self.engine.generate(prompts, sampling, use_tqdm=False)]
        return [torch.tensor(each.token_ids) for each in made], [_log_probs(each) for each in made]

    def _sampling(self, batch: DataProto, number: int) -> Any:
        """A seed for each answer: with one for all, those to the same question would be the same."""
        from vllm import SamplingParams

        return SamplingParams(
            temperature=batch.meta_info["temperature"],
            max_tokens=self.settings.max_answer_tokens,
            stop=list(self.settings.stop),
            seed=self.seed(batch, number),
            logprobs=0,  # of the token that was drawn, and of none beside it
        )


def _log_probs(answer: Any) -> Tensor:
    """Of the tokens of an answer, each from what vLLM tells of its place."""
    places = zip(answer.token_ids, answer.logprobs, strict=True)
    return torch.tensor([place[token].logprob for token, place in places])
