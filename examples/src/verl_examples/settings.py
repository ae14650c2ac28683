"""What both programs are told: the algorithm, its sizes and its rates."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verl_examples.command import option
from verl_examples.errors import SettingsError
from verl_examples.question_file import DEFAULT_FILE

WHAT, WHERE, HOW = "what is trained, on what", "where it runs", "how it learns"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """All that decides a run; two runs with equal settings give the same curve on the same machine.

    Attributes:
        epochs: how often a step's answers are gone through.
    """

    data: Path = option(
        DEFAULT_FILE, WHAT, 'JSONL with "prompt" and "answer" in each line', shown="sorting digits"
    )
    out: Path = option(Path("out"), WHAT, "what the run leaves", metavar="FOLDER")
    backend: Literal["ray", "local"] = option(
        "ray", WHERE, "Ray workers, or this process, where a breakpoint works"
    )
    workers: int = option(1, WHERE, "processes that train")
    gpus: int = option(0, WHERE, "one for each process that trains or generates")
    algorithm: Literal["ppo", "grpo"] = option("ppo", HOW, "with a critic, or by groups of answers")
    steps: int = option(60, HOW, "steps of reinforcement")
    seed: int = option(0, HOW, "decides questions and answers")
    answers_per_step: int = option(256, HOW, "answers drawn and learnt from in one step, over all workers")
    answers_per_question: int = option(8, HOW, "how many of them to the same question", shown="8, with PPO 1")
    answers_per_update: int = option(128, HOW, "answers in one gradient step, over all workers")
    epochs: int = 2
    temperature: float = option(1.0, HOW, "of sampling")
    learning_rate: float = option(1e-3, HOW, "of the policy")
    critic_learning_rate: float = 1e-3
    value_clip: float = 0.5
    kl_coefficient: float = option(0.02, HOW, "weight of the divergence from the start; 0: no reference")
    discount: float = 1.0
    trace_decay: float = 0.95
    max_gradient_norm: float = 1.0
    warm_up_questions: int = option(40, HOW, "training questions whose answers are shown at the start")
    warm_up_steps: int = option(40, HOW, "supervised steps on them, before reinforcement")
    warm_up_learning_rate: float = 3e-3
    evaluate_every: int = option(5, HOW, "steps between measurements on held-out questions")

    @property
    def processes(self) -> int:
        """How many run a model that trains or generates."""
        return self.workers

    def __post_init__(self) -> None:
        self._check_at_least_one(
            "workers", "steps", "answers_per_step", "answers_per_question", "answers_per_update",
            "epochs", "evaluate_every",
        )  # fmt: skip
        if self.gpus not in (0, self.processes):
            expected = f"0, or one for each of the {self.processes} processes that train or generate"
            raise SettingsError("gpus", self.gpus, expected)
        if self.algorithm == "grpo" and self.answers_per_question < 2:
            raise SettingsError("answers_per_question", self.answers_per_question, "at least 2 with grpo")
        self._check_divisible("answers_per_update", self.workers)
        self._check_divisible("answers_per_step", self.answers_per_update)
        self._check_divisible("answers_per_step", self.answers_per_question)

    def _check_at_least_one(self, *names: str) -> None:
        for name in names:
            if getattr(self, name) < 1:
                raise SettingsError(name, getattr(self, name), "at least 1")

    def _check_divisible(self, name: str, divisor: int) -> None:
        if getattr(self, name) % divisor:
            raise SettingsError(name, getattr(self, name), f"a multiple of {divisor}")
