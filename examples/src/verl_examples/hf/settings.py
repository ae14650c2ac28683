"""What a run is told: the model, the algorithm, its sizes and its rates."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from verl_examples.errors import SettingsError
from verl_examples.question_file import DEFAULT_FILE

_MAY_CHANGE = {
    "backend", "checkpoint_every", "keep_checkpoints", "max_restarts",
    "out", "reward_workers", "steps", "trace",
}  # fmt: skip
"""What a run may be resumed with otherwise: its numbers do not depend on it."""


@dataclass(frozen=True)
class Settings:
    """All that decides a run; two runs with equal settings give the same curve on the same machine.

    Attributes:
        model: folder or id of a causal language model.
        workers: processes that train; with more than one, each holds a shard of the weights.
        rollout: where answers are generated: in the processes that train, in some of their own, or there by
            vLLM.
        rollout_workers: processes that generate, where they have some of their own.
        gpus: one for each process that trains or generates; 0 for CPUs.
        answers_per_step: answers drawn and learnt from in one step, over all workers.
        answers_per_question: how many of them go to the same question, the group of GRPO.
        answers_per_update: answers in one gradient step, over all workers.
        answers_per_pass: answers that a worker's model sees at once; the less, the less memory.
        epochs: how often a step's answers are gone through.
        clip_low: how far below 1 a ratio of probabilities may gain anything.
        clip_high: how far above 1.
        dynamic_sampling: replace questions whose answers are all right or all wrong, which teach nothing.
        off_policy_limit: most that an answer counts for being likelier now than where it was drawn.
        kl_coefficient: weight of the divergence from the model that the run started from; 0 for none.
        warm_up_questions: training questions whose answers are shown before reinforcement starts.
        one_step_off: generate the answers of the next step while this one is learnt from.
        checkpoint_every: steps between checkpoints.
        keep_checkpoints: how many of the last ones stay.
        max_restarts: how often workers that died are started again.
        trace: file for the calls of the second step, as https://ui.perfetto.dev shows them.
    """

    model: str
    data: Path = DEFAULT_FILE
    out: Path = Path("verl-grpo-out")
    reward: str = "exact"
    algorithm: Literal["grpo", "ppo"] = "grpo"
    backend: Literal["ray", "local"] = "ray"
    workers: int = 1
    rollout: Literal["colocated", "separate", "vllm"] = "colocated"
    rollout_workers: int = 1
    reward_workers: int = 1
    gpus: int = 0
    trust_remote_code: bool = False
    steps: int = 40
    seed: int = 0

    answers_per_step: int = 256
    answers_per_question: int = 8
    answers_per_update: int = 128
    answers_per_pass: int = 64
    epochs: int = 2
    max_answer_tokens: int = 16
    stop: tuple[str, ...] = ()
    temperature: float = 1.0
    learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    clip_low: float = 0.2
    clip_high: float = 0.2
    value_clip: float = 0.5
    dynamic_sampling: bool = False
    off_policy_limit: float = 2.0
    kl_coefficient: float = 0.02
    discount: float = 1.0
    trace_decay: float = 0.95
    max_gradient_norm: float = 1.0
    warm_up_questions: int = 40
    warm_up_steps: int = 40
    warm_up_learning_rate: float = 3e-3
    one_step_off: bool = False
    evaluate_every: int = 5
    show_every: int = 0
    checkpoint_every: int = 20
    keep_checkpoints: int = 2
    max_restarts: int = 2
    trace: Path | None = None

    def __post_init__(self) -> None:
        at_least_one = (
            "workers", "rollout_workers", "reward_workers", "steps", "answers_per_step",
            "answers_per_question", "answers_per_update", "answers_per_pass", "epochs", "max_answer_tokens",
            "checkpoint_every", "keep_checkpoints", "evaluate_every",
        )  # fmt: skip
        for name in at_least_one:
            if getattr(self, name) < 1:
                raise SettingsError(name, getattr(self, name), "at least 1")
        processes = self.workers + (self.rollout_workers if self.generates_apart else 0)
        if self.gpus not in (0, processes):
            expected = f"0, or one for each of the {processes} processes that train or generate"
            raise SettingsError("gpus", self.gpus, expected)
        if self.rollout == "vllm" and not (self.gpus and self.backend == "ray"):
            expected = f"gpus {processes} and backend 'ray' with it, or 'separate', which goes without"
            raise SettingsError("rollout", "vllm", expected)
        if self.backend == "local" and self.workers > 1:
            raise SettingsError("workers", self.workers, "1 with backend 'local': shards need processes")
        if self.algorithm == "grpo" and self.answers_per_question < 2:
            raise SettingsError("answers_per_question", self.answers_per_question, "at least 2 with grpo")
        if self.one_step_off and not self.generates_apart:
            expected = "rollout 'separate' or 'vllm': a process does one thing at a time"
            raise SettingsError("one_step_off", True, expected)
        if self.temperature <= 0:
            raise SettingsError(
                "temperature", self.temperature, "more than 0; held-out answers are greedy anyway"
            )
        self._check_divisible("answers_per_update", self.workers)
        self._check_divisible("answers_per_step", self.answers_per_update)
        self._check_divisible("answers_per_step", self.answers_per_question)

    @property
    def generates_apart(self) -> bool:
        """Whether answers come from processes of their own."""
        return self.rollout != "colocated"

    def identity(self) -> dict[str, str]:
        """The settings that decide the numbers of a run, as texts; `--resume` must find them unchanged."""
        names = [field.name for field in fields(self) if field.name not in _MAY_CHANGE]
        return {name: str(getattr(self, name)) for name in names}

    def _check_divisible(self, name: str, divisor: int) -> None:
        if getattr(self, name) % divisor:
            raise SettingsError(name, getattr(self, name), f"a multiple of {divisor}")
