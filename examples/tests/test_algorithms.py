"""PPO and GRPO pieces against direct computations of what their papers define."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from verl_examples.algorithms import (
    KLEstimator,
    clipped_policy_loss,
    clipped_value_loss,
    entropy,
    estimate_kl,
    generalised_advantages,
    group_advantages,
    informative_groups,
    masked_mean,
    off_policy_weight,
    penalise_kl,
    whiten,
)


def _mask(lengths: list[int], width: int) -> Tensor:
    return (torch.arange(width) < torch.tensor(lengths)[:, None]).float()


def _direct_advantage(
    rewards: list[float], values: list[float], start: int, discount: float, decay: float
) -> float:
    """Equation 16 as it is printed: a sum of discounted temporal-difference errors."""
    total = 0.0
    for offset in range(len(rewards) - start):
        at = start + offset
        following = values[at + 1] if at + 1 < len(values) else 0.0
        error = rewards[at] + discount * following - values[at]
        total += (discount * decay) ** offset * error
    return total


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=4),
    discount=st.floats(0, 1),
    decay=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_gae_is_the_double_sum(lengths: list[int], discount: float, decay: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    rewards, values = torch.randn(2, len(lengths), 6, generator=generator, dtype=torch.float64)
    mask = _mask(lengths, 6).double()

    advantages, returns = generalised_advantages(rewards, values, mask, discount=discount, trace_decay=decay)

    for row, length in enumerate(lengths):
        real = slice(0, length)
        expected = [
            _direct_advantage(rewards[row, real].tolist(), values[row, real].tolist(), start, discount, decay)
            for start in range(length)
        ]
        assert advantages[row, real].tolist() == pytest.approx(expected, abs=1e-9)
        assert returns[row, real].tolist() == pytest.approx((advantages + values)[row, real].tolist())
        assert not advantages[row, length:].any()
        assert not returns[row, length:].any()


def test_gae_without_decay_or_discount_is_reward_to_go_minus_value() -> None:
    rewards, values = torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[0.5, 0.5, 0.5]])
    advantages, returns = generalised_advantages(
        rewards, values, torch.ones(1, 3), discount=1.0, trace_decay=1.0
    )
    assert returns.tolist() == [[7.0, 6.0, 4.0]]
    assert advantages.tolist() == [[6.5, 5.5, 3.5]]


def test_group_advantages_compare_answers_to_one_question() -> None:
    mask = _mask([2, 1, 2, 2], 2)
    scores = torch.tensor([[0.0, 1.0], [0.0, 9.0], [0.0, 5.0], [0.0, 5.0]]) * mask
    advantages = group_advantages(scores, mask, group_size=2)
    assert advantages[0].tolist() == pytest.approx([1.0, 1.0], abs=1e-4)
    assert advantages[1].tolist() == pytest.approx([-1.0, 0.0], abs=1e-4)
    assert not advantages[2:].any(), "equal scores teach nothing"


@given(seed=st.integers(0, 99), scale=st.floats(0.1, 10), shift=st.floats(-5, 5))
@settings(max_examples=20, deadline=None)
def test_group_advantages_do_not_see_scale_or_shift(seed: int, scale: float, shift: float) -> None:
    scores = torch.zeros(8, 3)
    scores[:, 2] = torch.randn(8, generator=torch.Generator().manual_seed(seed))
    mask, moved = torch.ones(8, 3), scores.clone()
    moved[:, 2] = scores[:, 2] * scale + shift
    torch.testing.assert_close(
        group_advantages(moved, mask, 4), group_advantages(scores, mask, 4), atol=1e-3, rtol=1e-3
    )
    assert group_advantages(scores, mask, 4).view(2, 4, 3).sum(dim=1).abs().max() < 1e-4


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_of_a_policy_with_itself_is_zero(estimator: KLEstimator) -> None:
    log_probs = torch.tensor([-0.1, -2.0, -30.0])
    assert not estimate_kl(log_probs, log_probs, estimator).any()


def _expected_kl(estimator: KLEstimator) -> tuple[float, float, float]:
    """Expectation and deviation of an estimator under p, and the true KL(p || q)."""
    p, q = torch.tensor([0.5, 0.3, 0.2]).double(), torch.tensor([0.4, 0.4, 0.2]).double()
    each = estimate_kl(p.log(), q.log(), estimator)
    mean = (p * each).sum()
    return float(mean), float((p * (each - mean) ** 2).sum().sqrt()), float((p * (p / q).log()).sum())


def test_kl_estimators_are_unbiased_and_k3_varies_least() -> None:
    k1, k1_deviation, true = _expected_kl("k1")
    k3, k3_deviation, _ = _expected_kl("k3")
    k2, _, _ = _expected_kl("k2")
    assert k1 == pytest.approx(true)
    assert k3 == pytest.approx(true)
    assert k2 == pytest.approx(true, rel=0.05), "k2 is biased a little"
    assert k3_deviation < k1_deviation / 3


@given(difference=st.floats(-8, 8))
def test_k2_and_k3_are_never_negative(difference: float) -> None:
    log_probs, reference = torch.tensor([-9.0]).double(), torch.tensor([-9.0 + difference]).double()
    assert float(estimate_kl(log_probs, reference, "k2")) >= 0
    assert float(estimate_kl(log_probs, reference, "k3")) >= 0


def test_penalty_is_taken_off_token_by_token() -> None:
    rewards = penalise_kl(torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, -0.5]]), 0.1)
    assert rewards.tolist() == [[pytest.approx(-0.05), pytest.approx(1.05)]]


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [
        (1.0, 2.0, -2.0),
        (1.5, 2.0, -2.4),  # no more to gain above 1 + clip
        (0.5, 2.0, -1.0),
        (0.5, -2.0, 1.6),  # no more to gain below 1 - clip
        (1.5, -2.0, 3.0),  # harm is never clipped
    ],
)
def test_policy_loss_is_clipped_only_where_it_would_gain(ratio: float, advantage: float, loss: float) -> None:
    log_probs = torch.tensor([math.log(ratio)], requires_grad=True)
    computed = clipped_policy_loss(log_probs, torch.zeros(1), torch.tensor([advantage]), clip=0.2)
    assert computed.item() == pytest.approx(loss)
    computed.sum().backward()  # type: ignore[no-untyped-call]
    clipped = (ratio > 1.2 and advantage > 0) or (ratio < 0.8 and advantage < 0)
    assert log_probs.grad is not None
    assert (log_probs.grad.item() == 0) == clipped


def test_value_loss_takes_the_worse_of_new_and_clipped() -> None:
    loss = clipped_value_loss(torch.tensor([1.0, 0.1]), torch.zeros(2), torch.tensor([1.0, 0.1]), clip=0.5)
    assert loss.tolist() == [pytest.approx(0.125), 0.0]


def test_masked_numbers_do_not_see_padding() -> None:
    mask = _mask([2, 3], 4)
    values = torch.randn(2, 4, generator=torch.Generator().manual_seed(0))
    spoilt = values.masked_fill(mask == 0, 1e6)
    assert masked_mean(spoilt, mask) == pytest.approx(float(values[mask == 1].mean()), rel=1e-5)
    white = whiten(spoilt, mask)
    assert not white[mask == 0].any()
    assert float(white[mask == 1].mean()) == pytest.approx(0, abs=1e-5)
    assert float(white[mask == 1].std(correction=0)) == pytest.approx(1, abs=1e-4)
    assert masked_mean(values, torch.zeros(2, 4)) == 0


def test_entropy_counts_impossible_tokens_as_nothing() -> None:
    distribution = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]).log()
    assert entropy(distribution).tolist() == [pytest.approx(math.log(2)), 0.0]


def test_clip_higher_lets_a_ratio_rise_further_than_it_may_fall() -> None:
    log_probs, old, gain = torch.log(torch.tensor([1.25, 1.35, 0.7])), torch.zeros(3), torch.ones(3)
    ppo = clipped_policy_loss(log_probs, old, gain, 0.2)
    dapo = clipped_policy_loss(log_probs, old, gain, 0.2, clip_high=0.28)
    assert ppo.tolist() == pytest.approx([-1.2, -1.2, -0.7])
    assert dapo.tolist() == pytest.approx([-1.25, -1.28, -0.7])


def test_groups_of_equal_scores_teach_nothing() -> None:
    scores = torch.tensor([0.0, 1.0, 1.0, 1.0, 0.5, 0.25])
    assert informative_groups(scores, 2).tolist() == [True, True, False, False, True, True]
    advantages = group_advantages(scores[:, None], torch.ones(6, 1), 2)
    assert (advantages[:, 0] != 0).tolist() == informative_groups(scores, 2).tolist()


def test_the_weight_of_an_old_answer_is_its_ratio_cut_from_above() -> None:
    now, drawn = torch.log(torch.tensor([0.5, 0.9, 0.1])), torch.log(torch.tensor([0.5, 0.1, 0.4]))
    assert off_policy_weight(now, drawn, limit=2.0).tolist() == pytest.approx([1.0, 2.0, 0.25])


def test_whitening_over_workers_is_that_of_the_whole() -> None:
    values, mask = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), _mask([3, 1, 2, 3], 3)
    whole = whiten(values, mask)
    parts = [slice(0, 1), slice(1, 4)]
    # Each worker's sums, as all-reduce would add them up: first for the mean, then for the variance.
    sums = [torch.stack([(values * mask).sum(), mask.sum()])]
    mean = masked_mean(values, mask)
    sums.append(torch.stack([((values - mean) ** 2 * mask).sum(), mask.sum()]))
    for rows in parts:
        totals = iter(sums)
        found = whiten(values[rows], mask[rows], lambda _, totals=totals: next(totals))  # type: ignore[misc]
        torch.testing.assert_close(found, whole[rows])
