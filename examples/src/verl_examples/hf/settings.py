"""What a run is told: the model, where it runs, and how it learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from verl_examples.command import option
from verl_examples.errors import SettingsError
from verl_examples.question_file import DEFAULT_FILE
from verl_examples.settings import HOW, WHAT, WHERE, RunSettings

LONG = "long runs"

_MAY_CHANGE = {
    "backend", "checkpoint_every", "keep_checkpoints", "max_restarts",
    "out", "reward_workers", "steps", "trace",
}  # fmt: skip
"""What a run may be resumed with otherwise: its numbers do not depend on it."""


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """As `RunSettings`, and what comes with a model from elsewhere and with long runs.

    Attributes:
        model: folder or id of a causal language model.
        off_policy_limit: most that an answer counts for being likelier now than where it was drawn.
    """

    model: str
    trust_remote_code: bool = option(False, WHAT, "run code that comes with the model")
    data: Path = option(
        DEFAULT_FILE,
        WHAT,
        'JSONL with "prompt", a text or chat messages, and "answer"; or a folder saved by `datasets`',
        shown="sorting digits",
    )
    reward: str = option(
        "exact", WHAT, "exact, last-number, regex:PATTERN with a group, or module:function", metavar="RULE"
    )
    out: Path = option(Path("verl-grpo-out"), WHAT, "what the run leaves", metavar="FOLDER")
    workers: int = option(1, WHERE, "processes that train, the weights in shards over them")
    rollout: Literal["colocated", "separate", "vllm"] = option(
        "colocated",
        WHERE,
        "answers by the processes that train, by others, or by others with vLLM, which needs GPUs",
    )
    rollout_workers: int = option(1, WHERE, "processes that answer, unless --rollout is colocated")
    reward_workers: int = option(1, WHERE, "processes that judge")
    algorithm: Literal["grpo", "ppo"] = option("grpo", HOW, "by groups of answers, or with a critic")
    steps: int = option(40, HOW, "steps of reinforcement")
    answers_per_pass: int = option(64, HOW, "answers that a model sees at once; fewer take less memory")
    max_answer_tokens: int = option(16, HOW, "where an answer is cut off")
    stop: tuple[str, ...] = option((), HOW, "a text that ends an answer; may be given again", metavar="TEXT")
    clip_low: float = option(0.2, HOW, "how far a probability ratio may fall and still count")
    clip_high: float = option(0.2, HOW, "how far it may rise, as in DAPO", shown="as --clip-low")
    dynamic_sampling: bool = option(
        False, HOW, "replace questions whose answers are all right or all wrong, as in DAPO"
    )
    off_policy_limit: float = 2.0
    one_step_off: bool = option(
        False, HOW, "generate for the next step during this one; needs --rollout separate or vllm"
    )
    checkpoint_every: int = option(20, LONG, "steps between checkpoints")
    keep_checkpoints: int = option(2, LONG, "how many of the last ones stay")
    max_restarts: int = option(2, LONG, "how often workers that died are started again")
    trace: Path | None = option(
        None, LONG, "write where the time of step 2 went, for https://ui.perfetto.dev"
    )

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """The settings of a command line, with the defaults that follow from other options."""
        defaults: dict[str, Any] = {"clip_high": given.get("clip_low", cls.clip_high)}
        if given.get("algorithm") == "ppo":
            defaults["answers_per_question"] = 1
        return cls(**{**defaults, **given, "stop": tuple(given.get("stop", ()))})

    @property
    def generates_apart(self) -> bool:
        """Whether answers come from processes of their own."""
        return self.rollout != "colocated"

    @property
    def processes(self) -> int:
        """How many train or generate."""
        return self.workers + (self.rollout_workers if self.generates_apart else 0)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_at_least_one(
            "rollout_workers", "reward_workers", "answers_per_pass", "max_answer_tokens",
            "checkpoint_every", "keep_checkpoints",
        )  # fmt: skip
        if self.rollout == "vllm" and self.backend == "local":
            expected = "'ray' with rollout 'vllm', which needs processes; 'separate' goes with 'local'"
            raise SettingsError("backend", "local", expected)
        if self.rollout == "vllm" and not self.gpus:
            expected = f"{self.processes} with rollout 'vllm', one a process; 'separate' goes without"
            raise SettingsError("gpus", 0, expected)
        if self.backend == "local" and self.workers > 1:
            raise SettingsError("workers", self.workers, "1 with backend 'local': shards need processes")
        if self.one_step_off and not self.generates_apart:
            expected = "rollout 'separate' or 'vllm': a process does one thing at a time"
            raise SettingsError("one_step_off", True, expected)
        if self.temperature <= 0:
            raise SettingsError(
                "temperature", self.temperature, "more than 0; held-out answers are greedy anyway"
            )

    def identity(self) -> dict[str, str]:
        """The settings that decide the numbers of a run, as texts; `--resume` must find them unchanged."""
        names = [field.name for field in fields(self) if field.name not in _MAY_CHANGE]
        return {name: str(getattr(self, name)) for name in names}
