"""`verl-grpo`: post-train a Hugging Face model on questions whose answers a rule can check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_examples.command import command, parser_of
from verl_examples.errors import SettingsError
from verl_examples.hf.installed import needs_hugging_face, needs_vllm
from verl_examples.hf.rewards import reward_named
from verl_examples.hf.settings import Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the last line of stdout is the result as JSON."""
    parser = parser_of("verl-grpo", __doc__, Settings, required="--model MODEL ")
    parser.add_argument(
        "--model", required=True, help="folder, or id at Hugging Face, of a causal language model"
    )
    parser.add_argument(
        "--resume", action="store_true", default=False, help="go on from the last checkpoint in --out"
    )
    given = vars(parser.parse_args(arguments))
    out = given.get("out", Settings.out)
    stopped = f"--resume goes on from the last checkpoint in {out}"
    return command(parser.prog, lambda: _run(**given), stopped)


def _run(resume: bool, **given: Any) -> dict[str, Any]:
    settings = Settings.of(given)
    reward_named(settings.reward)
    needs_hugging_face()
    if settings.rollout == "vllm":
        needs_vllm()
    # Only now, so that a mistyped option is answered at once.
    from verl_examples.hf.models import load_tokenizer
    from verl_examples.hf.questions import Questions
    from verl_examples.hf.run import run

    try:
        tokenizer = load_tokenizer(settings.model, settings.trust_remote_code)
    except (OSError, ValueError) as error:
        expected = f"a folder or id that transformers loads ({' '.join(str(error).split())})"
        raise SettingsError("model", settings.model, expected) from error
    return run(settings, Questions.read(settings.data, tokenizer), resume=resume)
