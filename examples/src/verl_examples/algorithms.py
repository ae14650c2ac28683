"""PPO and GRPO as pure functions on tensors of shape (rows, answer tokens).

Sources:
- GAE: Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
  arXiv:1506.02438, equation 16.
- PPO: Schulman et al. 2017, "Proximal Policy Optimization Algorithms", arXiv:1707.06347, equation 7.
- k1, k2 and k3: Schulman 2020, "Approximating KL Divergence", http://joschu.net/blog/kl-approx.html.
- GRPO: Shao et al. 2024, "DeepSeekMath", arXiv:2402.03300, section 4.1 (its KL term, equation 4, is k3).
- Reward minus a per-token KL penalty: Ouyang et al. 2022, "Training language models to follow instructions
  with human feedback", arXiv:2203.02155, section 3.5.
- Clip-higher and dynamic sampling: Yu et al. 2025, "DAPO", arXiv:2503.14476, sections 3.1 and 3.2.
- Answers of an earlier policy: Hilton et al. 2021, "Batch size-invariance for policy optimization",
  arXiv:2110.00641, equation 3; the weight is cut as in Espeholt et al. 2018, "IMPALA", arXiv:1802.01561.

`mask` is 1 on answer tokens and 0 on padding, in every function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

KLEstimator = Literal["k1", "k2", "k3"]


def masked_mean(values: Tensor, mask: Tensor, add_up: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Mean over the tokens where `mask` is 1; 0 where there is none.

    Args:
        add_up: sums a tensor over all workers in place, for the mean over the tokens of all.
    """
    sums = torch.stack([(values * mask).sum(), mask.sum()])
    total, count = (sums if add_up is None else add_up(sums)).unbind()
    return total / count.clamp(min=1)


def whiten(values: Tensor, mask: Tensor, add_up: Callable[[Tensor], Tensor] | None = None) -> Tensor:
    """Shift and scale to mean 0 and deviation 1 over the tokens of `mask`, see `masked_mean`."""
    mean = masked_mean(values, mask, add_up)
    variance = masked_mean((values - mean) ** 2, mask, add_up)
    return (values - mean) * torch.rsqrt(variance + 1e-8) * mask


def estimate_kl(log_probs: Tensor, reference_log_probs: Tensor, estimator: KLEstimator) -> Tensor:
    """Per-token estimate of KL(policy || reference) from tokens that the policy drew.

    k1 and k3 are unbiased; k2 and k3 are never negative; k3 varies less than k1.

    >>> estimate_kl(torch.tensor([-1.0]), torch.tensor([-1.5]), "k1")
    tensor([0.5000])
    """
    ratio = reference_log_probs - log_probs
    if estimator == "k1":
        return -ratio
    if estimator == "k2":
        return ratio**2 / 2
    return torch.expm1(ratio) - ratio


def penalise_kl(scores: Tensor, kl: Tensor, coefficient: float) -> Tensor:
    """Rewards per token: the scores minus `coefficient` times the divergence from the reference."""
    return scores - coefficient * kl


def generalised_advantages(
    rewards: Tensor, values: Tensor, mask: Tensor, *, discount: float, trace_decay: float
) -> tuple[Tensor, Tensor]:
    """GAE over answers that end where the mask ends: `(advantages, returns)`, both 0 on padding.

    With d[t] = r[t] + discount * v[t+1] - v[t], the advantage is the sum over k of
    (discount * trace_decay)**k * d[t+k]; the return is advantage + value.
    """
    values, rewards = values * mask, rewards * mask
    advantages = torch.zeros_like(rewards)
    following = torch.zeros(rewards.shape[0], device=rewards.device)
    next_value = torch.zeros_like(following)
    for column in reversed(range(rewards.shape[1])):
        error = rewards[:, column] + discount * next_value - values[:, column]
        following = (error + discount * trace_decay * following) * mask[:, column]
        advantages[:, column] = following
        next_value = values[:, column]
    return advantages, (advantages + values) * mask


def group_advantages(scores: Tensor, mask: Tensor, group_size: int) -> Tensor:
    """GRPO: an answer's score against the others to the same question, the same for each of its tokens.

    Rows `i * group_size` to `(i + 1) * group_size` answer question i. Equal scores teach nothing.
    """
    totals = (scores * mask).sum(dim=1).view(-1, group_size)
    deviation = totals.std(dim=1, keepdim=True, correction=0)
    centred = (totals - totals.mean(dim=1, keepdim=True)) / (deviation + 1e-6)
    return centred.view(-1, 1) * mask


def informative_groups(scores: Tensor, group_size: int) -> Tensor:
    """DAPO's dynamic sampling: which rows belong to a group whose scores differ, a mask of (rows,).

    >>> informative_groups(torch.tensor([1.0, 0.0, 1.0, 1.0]), 2).tolist()
    [True, True, False, False]
    """
    groups = scores.view(-1, group_size)
    return (groups.amax(dim=1) > groups.amin(dim=1)).repeat_interleave(group_size)


def off_policy_weight(old_log_probs: Tensor, drawn_log_probs: Tensor, limit: float) -> Tensor:
    """How much likelier each token is where learning starts than where it was drawn, `limit` at most."""
    return torch.exp(old_log_probs - drawn_log_probs).clamp(max=limit)


def clipped_policy_loss(
    log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip: float, clip_high: float | None = None
) -> Tensor:
    """PPO's loss per token: what the better of the raw and the clipped probability ratio would lose.

    Args:
        clip_high: DAPO's clip-higher: the ratio may rise by so much; None for `clip`, as in PPO.
    """
    ratio = torch.exp(log_probs - old_log_probs)
    highest = 1 + (clip if clip_high is None else clip_high)
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, highest) * advantages)


def clipped_value_loss(values: Tensor, old_values: Tensor, returns: Tensor, clip: float) -> Tensor:
    """Half the squared error per token, with the new value kept within `clip` of the old one."""
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (clipped - returns) ** 2)


def entropy(distribution: Tensor) -> Tensor:
    """Entropy in nats of log-probabilities over the last dimension; impossible tokens count 0."""
    return -(distribution.exp() * distribution.masked_fill(distribution.isneginf(), 0.0)).sum(dim=-1)
