"""What a run of the toy is told."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_examples.command import option
from verl_examples.settings import WHAT, WHERE, RunSettings

GROUP_SIZE = RunSettings.answers_per_question


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """As `RunSettings`, with two workers and one answer a question unless told otherwise."""

    out: Path = option(Path("verl-ppo-out"), WHAT, "what the run leaves", metavar="FOLDER")
    workers: int = option(2, WHERE, "processes that train", shown="2, or as many as --gpus")
    answers_per_question: int = 1
    policy_clip: float = 0.2
    warm_up_steps: int = 80
    warm_up_learning_rate: float = 1e-3

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Settings:
        """The settings of a command line, with the defaults that follow from other options."""
        workers = given.get("workers", given.get("gpus", 0) or cls.workers)
        # Whole groups for every worker in each gradient step, whatever the number of workers.
        least = math.lcm(max(1, workers), GROUP_SIZE)
        update = math.ceil(cls.answers_per_update / least) * least
        question = GROUP_SIZE if given.get("algorithm") == "grpo" else cls.answers_per_question
        sizes = {"answers_per_step": 2 * update, "answers_per_update": update}
        return cls(**{**given, **sizes, "workers": workers, "answers_per_question": question})
