"""The reward: an answer is right or it is not, and a rule can tell."""

from __future__ import annotations

import torch
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto

from verl_examples.toy.tokenizer import CharTokenizer


class RewardWorker(Worker):
    """Compares what was answered with what the question file says."""

    def __init__(self, tokenizer: CharTokenizer) -> None:
        super().__init__()
        self.tokenizer = tokenizer

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def compute_reward(self, batch: DataProto) -> DataProto:
        """1 for the right answer, else 0, on the last token of each: `token_level_scores`."""
        responses, mask = batch.tensor("responses"), batch.tensor("response_mask")
        texts = [self.tokenizer.decode(row) for row in responses.tolist()]
        right = [text == answer for text, answer in zip(texts, batch.column("answer"), strict=True)]
        last = mask.sum(dim=1).long().sub(1).clamp(min=0)
        scores = torch.zeros_like(mask).scatter(1, last[:, None], torch.tensor(right)[:, None].float())
        return DataProto.from_dict({"token_level_scores": scores})
