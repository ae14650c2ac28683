"""What a run is told: the algorithm, its sizes and its rates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_examples.errors import SettingsError
from verl_examples.question_file import DEFAULT_FILE

Algorithm = Literal["ppo", "grpo"]
Backend = Literal["ray", "local"]


@dataclass(frozen=True)
class Settings:
    """All that decides a run; two runs with equal settings give the same curve on the same machine.

    Attributes:
        answers_per_step: answers drawn and learnt from in one step, over all workers.
        answers_per_question: how many of them go to the same question, the group of GRPO.
        answers_per_update: answers in one gradient step, over all workers.
        epochs: how often a step's answers are gone through.
        warm_up_questions: training questions whose answers are shown before reinforcement starts.
    """

    algorithm: Algorithm = "ppo"
    backend: Backend = "ray"
    workers: int = 2
    gpus: int = 0
    steps: int = 60
    seed: int = 0
    data: Path = DEFAULT_FILE
    out: Path = Path("verl-ppo-out")

    answers_per_step: int = 256
    answers_per_question: int = 1
    answers_per_update: int = 128
    epochs: int = 2
    temperature: float = 1.0
    actor_learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    policy_clip: float = 0.2
    value_clip: float = 0.5
    kl_coefficient: float = 0.02
    discount: float = 1.0
    trace_decay: float = 0.95
    max_gradient_norm: float = 1.0
    warm_up_questions: int = 40
    warm_up_steps: int = 80
    warm_up_learning_rate: float = 1e-3
    evaluate_every: int = 5

    def __post_init__(self) -> None:
        for name in ("workers", "steps", "answers_per_step", "answers_per_question", "answers_per_update"):
            if getattr(self, name) < 1:
                raise SettingsError(name, getattr(self, name), "at least 1")
        if self.gpus not in (0, self.workers):
            raise SettingsError("gpus", self.gpus, f"0, or one for each of the {self.workers} workers")
        if self.algorithm == "grpo" and self.answers_per_question < 2:
            raise SettingsError("answers_per_question", self.answers_per_question, "at least 2 with grpo")
        self._check_divisible("answers_per_update", self.workers)
        self._check_divisible("answers_per_step", self.answers_per_update)
        self._check_divisible("answers_per_step", self.answers_per_question)

    def _check_divisible(self, name: str, divisor: int) -> None:
        if getattr(self, name) % divisor:
            raise SettingsError(name, getattr(self, name), f"a multiple of {divisor}")
