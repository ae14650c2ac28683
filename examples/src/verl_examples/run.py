"""One run from start to end: groups up, warm-up, steps, records, groups down."""

from __future__ import annotations

import time
from typing import Any

from verl_examples.data import Questions
from verl_examples.driver import StepReport, Trainer
from verl_examples.model import ModelConfig
from verl_examples.progress import console, shown
from verl_examples.records import metrics_record, plot_learning, save_checkpoint, write_record
from verl_examples.roles import Roles, running_roles
from verl_examples.settings import Settings
from verl_examples.tokenizer import CharTokenizer


def run(settings: Settings, questions: Questions) -> dict[str, Any]:
    """Train as told and return the summary: accuracy before and after, answers a second, output folder."""
    settings.out.mkdir(parents=True, exist_ok=True)
    screen = console()
    tokenizer = CharTokenizer.for_texts(
        text for question in questions for text in (question.prompt, question.answer)
    )
    model = ModelConfig(tokenizer.vocabulary_size, questions.prompt_width + questions.answer_width)
    screen.print(f"starting {settings.workers} worker{'s' * (settings.workers > 1)} ({settings.backend}) ...")
    with running_roles(settings, model, tokenizer, questions.answer_width) as roles:
        trainer = Trainer(roles, questions, tokenizer, settings)
        accuracy_before = trainer.warm_up()
        screen.print(
            f"warmed up: accuracy {accuracy_before:.3f} on {len(questions.held_out)} held-out questions"
        )
        start = time.perf_counter()
        reports = _train(trainer, settings, accuracy_before, screen)
        seconds = time.perf_counter() - start
        save_checkpoint(settings.out / "checkpoint.pt", model, tokenizer, _weights(roles))
    title = f"{settings.algorithm.upper()} on {settings.data.stem}, {settings.workers} workers"
    plot_learning(settings.out / "learning.png", reports, accuracy_before, title)
    return {
        "accuracy_before": accuracy_before,
        "accuracy_after": reports[-1].accuracy,
        "samples_per_s": round(settings.steps * settings.answers_per_step / seconds, 1),
        "out": str(settings.out),
    }


def _train(trainer: Trainer, settings: Settings, accuracy: float, screen: Any) -> list[StepReport]:
    reports = []
    with (settings.out / "metrics.jsonl").open("w", encoding="utf-8") as file:
        for report in shown(trainer.steps(), settings.steps, accuracy, screen):
            write_record(file, metrics_record(report))
            reports.append(report)
    return reports


def _weights(roles: Roles) -> dict[str, Any]:
    weights = {"actor": roles.actor.weights()}
    if roles.critic is not None:
        weights["critic"] = roles.critic.weights()
    return weights
