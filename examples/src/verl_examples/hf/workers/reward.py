"""The reward: judges answers as texts. It needs no torch, and its arguments are lists."""

from __future__ import annotations

from verl_dispatch import Dispatch, Worker, register

from verl_examples.hf.rewards import reward_named


class RewardWorker(Worker):
    """Applies one reward to pairs of an answer and what is expected."""

    def __init__(self, reward: str) -> None:
        super().__init__()
        self.reward = reward_named(reward)

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def score(self, answers: list[str], expected: list[str]) -> list[float]:
        """One number for each answer."""
        return [float(self.reward(*pair)) for pair in zip(answers, expected, strict=True)]
