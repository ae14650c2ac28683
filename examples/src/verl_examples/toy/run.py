"""One run from start to end: groups up, warm-up, steps, records, groups down."""

from __future__ import annotations

import time
from typing import Any

from verl_examples.progress import console, shown
from verl_examples.question_file import Questions
from verl_examples.records import kept_records
from verl_examples.toy.checkpoint import save_checkpoint
from verl_examples.toy.driver import Trainer
from verl_examples.toy.model import ModelConfig
from verl_examples.toy.roles import Roles, running_roles
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import CharTokenizer


def run(settings: Settings, questions: Questions) -> dict[str, Any]:
    """Train as told and return the summary: accuracy before and after, answers a second, output folder.

    However the run ends, what was measured until then is in the output folder, as numbers and as a picture.
    """
    screen = console()
    tokenizer = CharTokenizer.for_texts(
        text for question in questions for text in (question.prompt, question.answer)
    )
    model = ModelConfig(tokenizer.vocabulary_size, questions.prompt_width + questions.answer_width)
    title = f"{settings.algorithm.upper()} on {settings.data.stem}, {settings.workers} workers"
    screen.print(f"starting {settings.workers} worker{'s' * (settings.workers > 1)} ({settings.backend}) ...")
    with (
        kept_records(settings.out, title) as records,
        running_roles(settings, model, tokenizer, questions.answer_width) as roles,
    ):
        trainer = Trainer(roles, questions, tokenizer, settings)
        records.accuracy_before = trainer.warm_up()
        screen.print(
            f"warmed up: accuracy {records.accuracy_before:.3f} "
            f"on {len(questions.held_out)} held-out questions"
        )
        start = time.perf_counter()
        for report in shown(trainer.steps(), settings.steps, records.accuracy_before, screen):
            records.add(report)
        seconds = time.perf_counter() - start
        save_checkpoint(settings.out / "checkpoint.pt", model, tokenizer, _weights(roles))
    return {
        "accuracy_before": records.accuracy_before,
        "accuracy_after": records.steps[-1].accuracy,
        "samples_per_s": round(settings.steps * settings.answers_per_step / seconds, 1),
        "out": str(settings.out),
    }


def _weights(roles: Roles) -> dict[str, Any]:
    weights = {"actor": roles.actor.weights()}
    if roles.critic is not None:
        weights["critic"] = roles.critic.weights()
    return weights
