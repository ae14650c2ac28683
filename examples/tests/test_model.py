"""The model and what is generated from it: padding, cache and seeds change nothing that they should not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from verl_examples.toy.generation import answer_distribution, answer_log_probs, generate
from verl_examples.toy.model import ModelConfig, Transformer, ValueModel
from verl_examples.toy.tokenizer import END, PAD

CONFIG = ModelConfig(vocabulary_size=9, context_length=16, width=16, num_blocks=2, num_heads=2)


def _model(seed: int = 0) -> Transformer:
    model = Transformer(CONFIG, seed)
    with torch.no_grad():  # sharper than at birth, so that differences show
        model.token_embedding.weight.mul_(40)
    return model


def _tokens(rows: int, columns: int, seed: int = 0) -> Tensor:
    return torch.randint(2, 9, (rows, columns), generator=torch.Generator().manual_seed(seed))


def _pad_left(tokens: Tensor, columns: int) -> Tensor:
    return torch.cat([torch.full((tokens.shape[0], columns), PAD), tokens], dim=1)


def _log_probs(model: Transformer, prompts: Tensor, answers: Tensor) -> Tensor:
    tokens = torch.cat([prompts, answers], dim=1)
    return answer_log_probs(answer_distribution(model, tokens, answers.shape[1]), answers)


@pytest.mark.parametrize("padding", [1, 4])
def test_log_probs_do_not_see_padding_on_either_side(padding: int) -> None:
    model, prompts, answers = _model(), _tokens(3, 5), _tokens(3, 4, seed=1)
    plain = _log_probs(model, prompts, answers)
    padded_answers = torch.cat([answers, torch.full((3, 2), PAD)], dim=1)
    padded = _log_probs(model, _pad_left(prompts, padding), padded_answers)
    torch.testing.assert_close(padded[:, :4], plain, atol=1e-5, rtol=1e-5)
    assert not padded[:, 4:].any()


def test_values_do_not_see_padding() -> None:
    model, tokens = ValueModel(CONFIG, seed=0), _tokens(3, 6)
    torch.nn.init.normal_(model.value.weight)
    padded = _pad_left(tokens, 3)
    torch.testing.assert_close(
        model(padded, (padded != PAD).long())[:, 3:],
        model(tokens, torch.ones_like(tokens)),
        atol=1e-5,
        rtol=1e-5,
    )


def test_a_token_never_sees_what_comes_later() -> None:
    model, tokens = _model(), _tokens(2, 6)
    changed = tokens.clone()
    changed[:, 4:] = _tokens(2, 2, seed=5)
    mask = torch.ones_like(tokens)
    torch.testing.assert_close(model(changed, mask)[:, :4], model(tokens, mask)[:, :4])


def test_greedy_answers_with_cache_are_those_without() -> None:
    model, prompts = _model(seed=3), _pad_left(_tokens(8, 4), 2)
    with_cache = generate(model, prompts, 6, temperature=0)
    tokens = prompts
    for _ in range(6):
        logits = model.logits(model(tokens, (tokens != PAD).long())[:, -1])
        logits[:, PAD] = -torch.inf
        finished = (tokens[:, 6:] == END).any(dim=1)
        tokens = torch.cat([tokens, logits.argmax(dim=-1).masked_fill(finished, PAD)[:, None]], dim=1)
    assert with_cache.tolist() == tokens[:, 6:].tolist()


def test_sampling_follows_its_generator_alone() -> None:
    model, prompts = _model(), _tokens(16, 4)

    def draw(seed: int) -> list[list[int]]:
        torch.manual_seed(len(str(seed)))
        source = torch.Generator().manual_seed(seed)
        return generate(model, prompts, 5, temperature=1.0, generator=source).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_sampled_answers_hold_padding_only_after_the_end() -> None:
    answers = generate(
        _model(), _tokens(64, 4), 6, temperature=1.5, generator=torch.Generator().manual_seed(0)
    )
    assert (answers == END).any()
    for row in answers.tolist():
        length = row.index(END) + 1 if END in row else len(row)
        assert PAD not in row[:length]
        assert set(row[length:]) <= {PAD}


def test_sampling_draws_what_log_probs_say() -> None:
    model, prompts = _model(), _tokens(1, 4).expand(4000, 4)
    first = generate(model, prompts, 1, temperature=1.0, generator=torch.Generator().manual_seed(0))
    drawn = torch.bincount(first.flatten(), minlength=9) / 4000
    expected = answer_distribution(model, torch.cat([prompts[:1], first[:1]], dim=1), 1).exp().flatten()
    torch.testing.assert_close(drawn, expected.detach(), atol=0.03, rtol=0)


def test_weights_follow_from_the_seed_alone() -> None:
    torch.manual_seed(1)
    first = Transformer(CONFIG, seed=5).state_dict()
    torch.manual_seed(2)
    again, other = Transformer(CONFIG, seed=5).state_dict(), Transformer(CONFIG, seed=6).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["token_embedding.weight"], other["token_embedding.weight"])
