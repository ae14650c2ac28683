"""Answers from a model, token by token, and the probabilities of answers that are there already."""

from __future__ import annotations

import torch
from torch import Tensor

from verl_examples.toy.model import KeyValueCache, Transformer
from verl_examples.toy.tokenizer import END, PAD


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Tensor,
    num_tokens: int,
    *,
    temperature: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Answers of shape (rows, num_tokens) to left-padded `prompts`; after the end token comes padding.

    At temperature 0 the likeliest token is taken, else one is drawn with `generator`.
    """
    rows, device = prompts.shape[0], prompts.device
    caches = [KeyValueCache(rows, prompts.shape[1] + num_tokens, model.config, device) for _ in model.blocks]
    answers = torch.full((rows, num_tokens), PAD, dtype=torch.int64, device=device)
    mask, finished, new = (prompts != PAD).long(), torch.zeros(rows, dtype=torch.bool, device=device), prompts
    for column in range(num_tokens):
        logits = model.logits(model(new, mask, caches)[:, -1])
        token = _choose(logits, temperature, generator).masked_fill(finished, PAD)
        answers[:, column] = token
        finished = finished | (token == END)
        if bool(finished.all()):
            break
        new, mask = token[:, None], torch.cat([mask, (token != PAD).long()[:, None]], dim=1)
    return answers


def _choose(logits: Tensor, temperature: float, generator: torch.Generator | None) -> Tensor:
    logits[:, PAD] = -torch.inf
    if temperature == 0:
        return logits.argmax(dim=-1)
    return torch.multinomial((logits / temperature).softmax(dim=-1), 1, generator=generator).squeeze(-1)


def answer_distribution(model: Transformer, input_ids: Tensor, num_answer_tokens: int) -> Tensor:
    """Log-probabilities over the vocabulary before each answer token, (rows, answer tokens, vocabulary)."""
    hidden = model(input_ids[:, :-1], (input_ids[:, :-1] != PAD).long())[:, -num_answer_tokens:]
    logits = model.logits(hidden)
    never = torch.zeros_like(logits, dtype=torch.bool)
    never[..., PAD] = True
    return logits.masked_fill(never, -torch.inf).log_softmax(dim=-1)


def answer_log_probs(distribution: Tensor, answers: Tensor) -> Tensor:
    """Log-probability of each answer token, (rows, answer tokens); 0 where the answer is padding."""
    chosen = distribution.gather(-1, answers[..., None]).squeeze(-1)
    return chosen.masked_fill(answers == PAD, 0.0)
