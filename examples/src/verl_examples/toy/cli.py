"""`verl-ppo`: post-train a small model on questions whose answers a rule can check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_examples.command import command, parser_of
from verl_examples.question_file import read_questions
from verl_examples.toy.settings import Settings

OPTIONS = ("data", "out", "backend", "workers", "gpus", "algorithm", "steps", "seed")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the last line of stdout is the result as JSON."""
    parser = parser_of("verl-ppo", __doc__, Settings, OPTIONS)
    given = vars(parser.parse_args(arguments))
    out = given.get("out", Settings.out)
    return command(parser.prog, lambda: _run(given), f"what was measured so far is in {out}")


def _run(given: Mapping[str, Any]) -> dict[str, Any]:
    settings = Settings.of(given)
    questions = read_questions(settings.data)
    # Only now, so that a mistyped option is answered at once.
    from verl_examples.toy.run import run

    return run(settings, questions)
