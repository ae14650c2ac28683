"""`verl-grpo`: post-train a Hugging Face model on questions whose answers a rule can check."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from verl_examples.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED, SettingsError
from verl_examples.hf.installed import needs_hugging_face, needs_vllm
from verl_examples.hf.rewards import reward_named
from verl_examples.hf.settings import Settings
from verl_examples.question_file import QuestionFileError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the last line of stdout is the result as JSON."""
    # Ray would otherwise build the environment anew for every worker of a program started by `uv run`.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    # Ranks whose answers nobody waits for fail with those that are waited for, which say it.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    parser = _parser()
    given = vars(parser.parse_args(arguments))
    try:
        return _run(given)
    except (SettingsError, QuestionFileError, ImportError) as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        sys.stderr.write(
            f"{parser.prog}: stopped; --resume goes on from the last checkpoint in {given['out']}\n"
        )
        return EXIT_INTERRUPTED


def _run(given: dict[str, Any]) -> int:
    resume = given.pop("resume")
    settings = settings_of(given)
    reward_named(settings.reward)
    needs_hugging_face()
    if settings.rollout == "vllm":
        needs_vllm()
    # Only now, so that a mistyped option is answered at once.
    from verl_dispatch import WorkerGroupError
    from verl_ray import ResourceUnavailable

    from verl_examples.hf.models import load_tokenizer
    from verl_examples.hf.questions import Questions
    from verl_examples.hf.run import run

    try:
        tokenizer = load_tokenizer(settings.model, settings.trust_remote_code)
    except OSError as error:
        raise SettingsError(
            "model", settings.model, f"a folder or id that transformers loads ({error})"
        ) from error
    try:
        result = run(settings, Questions.read(settings.data, tokenizer), resume=resume)
    except (ResourceUnavailable, WorkerGroupError) as error:
        sys.stderr.write(f"verl-grpo: {error}\n")
        return EXIT_FAILED if isinstance(error, WorkerGroupError) else EXIT_BAD_INPUT
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def settings_of(given: dict[str, Any]) -> Settings:
    """The settings of a command line, with the defaults that follow from other options."""
    if given["algorithm"] == "ppo" and given["answers_per_question"] is None:
        given["answers_per_question"] = 1
    given["stop"] = tuple(given["stop"] or ())
    if given["clip_high"] is None:
        given["clip_high"] = given["clip_low"]
    known = {field.name for field in fields(Settings)}
    return Settings(**{name: value for name, value in given.items() if name in known and value is not None})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="verl-grpo", description=__doc__)
    _add_what(parser.add_argument_group("what is trained, on what"))
    _add_where(parser.add_argument_group("where it runs"))
    _add_how(parser.add_argument_group("how it learns"))
    _add_long_runs(parser.add_argument_group("long runs"))
    return parser


def _add_what(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument
    option("--model", required=True, help="folder, or id at Hugging Face, of a causal language model")
    option("--trust-remote-code", action="store_true", help="run code that comes with the model")
    option("--data", type=Path, metavar="FILE", default=Settings.data,
           help='JSONL with "prompt", a text or chat messages, and "answer"; or a folder saved by `datasets` '
                "(default: sorting digits)")  # fmt: skip
    option("--reward", metavar="RULE", default=Settings.reward,
           help="exact, last-number, regex:PATTERN with a group, or module:function "
                "(default: %(default)s)")  # fmt: skip
    option("--out", type=Path, metavar="FOLDER", default=Settings.out, help="default: %(default)s")


def _add_where(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument
    option("--backend", choices=("ray", "local"), default=Settings.backend,
           help="Ray workers, or this process, where a breakpoint works (default: %(default)s)")  # fmt: skip
    _number(group, "--workers", "processes that train, the weights in shards over them")
    option("--rollout", choices=("colocated", "separate", "vllm"), default=Settings.rollout,
           help="answers by the processes that train, by others, or by others with vLLM, which needs GPUs "
                "(default: %(default)s)")  # fmt: skip
    _number(group, "--rollout-workers", "those others")
    _number(group, "--reward-workers", "processes that judge")
    _number(group, "--gpus", "one for each process that trains or generates")


def _add_how(group: argparse._ArgumentGroup) -> None:
    option = group.add_argument
    option("--algorithm", choices=("grpo", "ppo"), default=Settings.algorithm, help="default: %(default)s")
    _number(group, "--steps", "steps of reinforcement")
    _number(group, "--seed", "decides questions and answers")
    _number(group, "--answers-per-step", "answers drawn in one step")
    option("--answers-per-question", type=int, metavar="N",
           help="how many of them to the same question "
                f"(default: {Settings.answers_per_question}, with PPO 1)")  # fmt: skip
    _number(group, "--answers-per-update", "answers in one gradient step")
    _number(group, "--answers-per-pass", "answers that a model sees at once; fewer take less memory")
    _number(group, "--max-answer-tokens", "where an answer is cut off")
    option("--stop", action="append", metavar="TEXT", help="a text that ends an answer; may be given again")
    _number(group, "--temperature", "of sampling")
    _number(group, "--learning-rate", "of the actor")
    _number(group, "--kl-coefficient", "weight of the divergence from the start; 0: no reference")
    _number(group, "--clip-low", "how far a probability ratio may fall")
    option(
        "--clip-high",
        type=float,
        metavar="X",
        help="how far it may rise, as in DAPO (default: as --clip-low)",
    )
    option("--dynamic-sampling", action="store_true",
           help="replace questions whose answers are all right or all wrong, as in DAPO")  # fmt: skip
    option("--one-step-off", action="store_true",
           help="generate for the next step during this one; needs --rollout separate or vllm")  # fmt: skip
    _number(group, "--warm-up-steps", "supervised steps before reinforcement")
    _number(group, "--warm-up-questions", "questions whose answers they show")


def _add_long_runs(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--resume", action="store_true", help="go on from the last checkpoint in --out")
    _number(group, "--evaluate-every", "steps between measurements on held-out questions")
    _number(group, "--checkpoint-every", "steps between checkpoints")
    _number(group, "--keep-checkpoints", "how many of the last ones stay")
    _number(group, "--max-restarts", "how often workers that died are started again")
    group.add_argument("--trace", type=Path, metavar="FILE",
                       help="write where the time of step 2 went, for https://ui.perfetto.dev")  # fmt: skip


def _number(group: argparse._ArgumentGroup, option: str, meaning: str) -> None:
    """An option with the type and default that the settings say."""
    default = getattr(Settings, option.removeprefix("--").replace("-", "_"))
    metavar = "N" if isinstance(default, int) else "X"
    group.add_argument(option, type=type(default), metavar=metavar, default=default,
                       help=f"{meaning} (default: %(default)s)")  # fmt: skip
