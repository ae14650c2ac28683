"""Answers by `generate` of transformers, with a key-value cache, and how long each is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from verl_examples.hf.jagged import padded, row_mask


class Generator:
    """Answers prompts with a model, from its whole distribution.

    What the model's own configuration of generation says about sampling does not count: an answer that is
    learnt from must be as likely as the model says.

    Args:
        stop: texts that end an answer, as the model's end tokens do.
    """

    def __init__(self, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        from transformers import GenerationConfig

        self._model, self._tokenizer, self._stop = model, tokenizer, tuple(stop)
        self.end_tokens = _end_tokens(model, tokenizer)
        model.generation_config = GenerationConfig()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def answer(self, prompts: Tensor, *, temperature: float, max_tokens: int, seed: int) -> list[Tensor]:
        """Answer each row of the jagged `prompts`: token ids up to an end token or stop text, which count.

        At temperature 0 each token is the likeliest.
        """
        from transformers import StoppingCriteriaList

        device = self._model.device
        ids, visible = padded(prompts, "left").to(device), row_mask(prompts, "left").long().to(device)
        ends = _Ends(self.end_tokens, self._stop, self._tokenizer, ids)
        sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature else {}
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            tokens = self._model.generate(
                input_ids=ids,
                attention_mask=visible,
                max_new_tokens=max_tokens,
                pad_token_id=0,
                stopping_criteria=StoppingCriteriaList([ends]),
                **sampling,
            )
        answers = tokens[:, ids.shape[1] :].cpu()
        return [row[:length] for row, length in zip(answers, ends.lengths.tolist(), strict=True)]


class _Ends:
    """A stopping criterion: tells which rows have ended, and counts their tokens until then."""

    def __init__(self, tokens: list[int], strings: Sequence[str], tokenizer: Any, prompts: Tensor) -> None:
        from transformers import StopStringCriteria

        self._tokens = torch.tensor(tokens, device=prompts.device)
        self._strings = StopStringCriteria(tokenizer, list(strings)) if strings else None
        self._ended = torch.zeros(len(prompts), dtype=torch.bool, device=prompts.device)
        self.lengths = torch.zeros(len(prompts), dtype=torch.long, device=prompts.device)

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        self.lengths += ~self._ended
        self._ended = self._ended | torch.isin(input_ids[:, -1], self._tokens)
        if self._strings is not None:
            self._ended = self._ended | self._strings(input_ids, scores)
        return self._ended


def _end_tokens(model: Any, tokenizer: Any) -> list[int]:
    """The tokens that end an answer, as the model's configuration of generation and the tokenizer say."""
    ends = model.generation_config.eos_token_id
    known = ends if isinstance(ends, list) else [ends]
    return sorted({end for end in [*known, tokenizer.eos_token_id] if end is not None})
