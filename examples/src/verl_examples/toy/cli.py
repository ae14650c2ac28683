"""`verl-ppo`: post-train a small model on questions whose answers a rule can check."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from verl_examples.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED, SettingsError
from verl_examples.question_file import DEFAULT_FILE, QuestionFileError, read_questions
from verl_examples.toy.settings import Settings

GROUP_SIZE = 8


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the last line of stdout is the result as JSON."""
    # Ray would otherwise build the environment anew for every worker of a program started by `uv run`.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    try:
        settings = _settings(given)
        questions = read_questions(settings.data)
    except (SettingsError, QuestionFileError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return EXIT_BAD_INPUT
    try:
        # Only now, so that a mistyped option is answered at once.
        from verl_ray import ResourceUnavailable

        from verl_examples.toy.run import run
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    try:
        result = run(settings, questions)
    except ResourceUnavailable as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write(f"{parser.prog}: stopped; what was measured so far is in {settings.out}\n")
        return EXIT_INTERRUPTED
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _settings(given: dict[str, Any]) -> Settings:
    """The settings of a command line, with the defaults that follow from other options."""
    if given["workers"] is None:
        given["workers"] = given["gpus"] or Settings.workers
    if given["algorithm"] == "grpo":
        given["answers_per_question"] = GROUP_SIZE
    # Whole groups for every worker in each gradient step, whatever the number of workers.
    least = math.lcm(max(1, given["workers"]), GROUP_SIZE)
    given["answers_per_update"] = math.ceil(Settings.answers_per_update / least) * least
    given["answers_per_step"] = 2 * given["answers_per_update"]
    known = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in given.items() if name in known})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-ppo", description=__doc__)
    option = parser.add_argument
    option("--algorithm", choices=("ppo", "grpo"), default="ppo", help="default: %(default)s")
    option("--backend", choices=("ray", "local"), default="ray",
           help="Ray workers, or threads of this process (default: %(default)s)")  # fmt: skip
    option("--workers", type=int, metavar="N", help=f"data-parallel workers (default: {Settings.workers})")
    option("--gpus", type=int, metavar="N", default=0, help="GPUs, one a worker (default: 0, train on CPUs)")
    option("--steps", type=int, metavar="N", default=Settings.steps, help="default: %(default)s")
    option("--seed", type=int, metavar="N", default=Settings.seed, help="default: %(default)s")
    option("--data", type=Path, metavar="FILE", default=DEFAULT_FILE,
           help='questions, one {"prompt": ..., "answer": ...} a line (default: sorting digits)')  # fmt: skip
    option("--out", type=Path, metavar="FOLDER", default=Settings.out, help="default: %(default)s")
    return parser
