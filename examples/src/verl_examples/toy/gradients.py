"""One optimiser step over all data-parallel workers: the step that one worker makes on the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


def data_parallel_step(
    optimizer: torch.optim.Optimizer,
    loss_per_token: Tensor,
    mask: Tensor,
    all_reduce: Callable[[Tensor], object],
    max_norm: float,
) -> float:
    """Descend the mean loss over the real tokens of *all* workers; return this worker's part of that mean.

    Workers hold different numbers of tokens, so summed gradients and the token count travel in one
    all-reduce, and the division comes after it.

    Args:
        all_reduce: sums a tensor over all workers, in place.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    loss = (loss_per_token * mask).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    num_tokens = _average_gradients(parameters, mask.sum(), all_reduce)
    nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return float(loss.detach() / num_tokens)


def _average_gradients(
    parameters: Iterable[nn.Parameter], num_tokens: Tensor, all_reduce: Callable[[Tensor], object]
) -> Tensor:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([num_tokens.view(1), *(gradient.flatten() for gradient in gradients)])
    all_reduce(flat)
    total = flat[0].clamp(min=1)
    start = 1
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient) / total)
        start += gradient.numel()
    return total
