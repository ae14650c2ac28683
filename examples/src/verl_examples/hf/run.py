"""One run from start to end: groups up, warm-up, steps, records, groups down; it survives workers' deaths."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from verl_dispatch import WorkerGroupError

from verl_examples.errors import SettingsError
from verl_examples.hf.checkpoints import Checkpoints, read_position
from verl_examples.hf.driver import Trainer
from verl_examples.hf.questions import Questions
from verl_examples.hf.roles import Roles, running_roles
from verl_examples.hf.settings import Settings
from verl_examples.hf.tensorboard import TensorBoard
from verl_examples.progress import console, shown
from verl_examples.records import Records, kept_records


def run(settings: Settings, questions: Questions, *, resume: bool = False) -> dict[str, Any]:
    """Train as told and return the summary: accuracies, speed, restarts, where the model is.

    However the run ends, what was measured until then is in the output folder.

    Raises:
        SettingsError: there is nothing to resume, or it was started with other settings.
    """
    if resume:
        _check_resumable(settings)
    screen = console()
    title = f"{settings.algorithm.upper()} on {settings.data.stem}, {settings.model}"
    screen.print(f"starting {settings.workers} worker{'s' * (settings.workers > 1)} ({settings.backend}) ...")
    # Where there is no room for the roles, an earlier run's records stay.
    with running_roles(settings) as roles, kept_records(settings.out, title, resume=resume) as records:
        attempts = Attempts(roles, questions, settings, records, screen)
        start = time.perf_counter()
        trainer = attempts.train(resume)
        seconds = time.perf_counter() - start
        roles.actor.save_model(settings.out / "model")
    return {
        "accuracy_before": trainer.position.accuracy_before,
        "accuracy_warmed_up": trainer.position.accuracy_warmed_up,
        "accuracy_after": trainer.measured.accuracy,
        "warm_up_steps": settings.warm_up_steps,
        "restarts": attempts.restarts,
        "seconds": round(seconds, 1),
        "model": str(settings.out / "model"),
        "out": str(settings.out),
    }


class Attempts:
    """Trains to the end, from the last checkpoint again where workers die."""

    def __init__(
        self, roles: Roles, questions: Questions, settings: Settings, records: Records, screen: Console
    ) -> None:
        self.restarts = 0
        self._roles, self._questions, self._settings = roles, questions, settings
        self._records, self._screen = records, screen

    def train(self, resume: bool) -> Trainer:
        """Go through all steps, however many attempts that takes.

        Raises:
            WorkerGroupError: a worker raised, or more died than `max_restarts` allows.
        """
        while True:
            try:
                return self._attempt(resume)
            except WorkerGroupError as error:
                resume = latest_checkpoint(self._settings) is not None
                # What a living worker raised, it would raise again.
                if not resume or self.restarts == self._settings.max_restarts or not self._roles.lost_any():
                    raise
                self.restarts += 1
                self._screen.print(f"{str(error).splitlines()[0]}; starting again from the last checkpoint")
                self._roles.restart()

    def _attempt(self, resume: bool) -> Trainer:
        trainer = Trainer(self._roles, self._questions, self._settings)
        self._begin(trainer, resume)
        accuracy = self._records.accuracy_before = trainer.position.accuracy_warmed_up
        board = TensorBoard(self._settings.out / "tensorboard", trainer.position.step)
        for report in shown(trainer.steps(), self._settings.steps, accuracy, self._screen):
            self._records.add(report)
            board.add(report)
            if report.accuracy is not None:
                self._show_an_answer(trainer)
        return trainer

    def _begin(self, trainer: Trainer, resume: bool) -> None:
        checkpoint = latest_checkpoint(self._settings)
        if resume and checkpoint is not None:
            trainer.go_on(checkpoint)
            self._records.rewind(trainer.position.step)
            self._screen.print(f"going on after step {trainer.position.step}")
        else:
            trainer.begin()
            before, after = trainer.position.accuracy_before, trainer.position.accuracy_warmed_up
            held_out = len(self._questions.held_out)
            self._screen.print(
                f"warmed up: accuracy {before:.3f} -> {after:.3f} on {held_out} held-out questions"
            )

    def _show_an_answer(self, trainer: Trainer) -> None:
        shown = trainer.measured
        self._screen.print(
            f"    {shown.question.prompt!r} -> {shown.answer!r}  reward {shown.score:g}", style="dim"
        )


def latest_checkpoint(settings: Settings) -> Path | None:
    """The folder of the last checkpoint of a run."""
    return Checkpoints(settings.out / "checkpoints", settings.keep_checkpoints).latest()


def _check_resumable(settings: Settings) -> None:
    checkpoint = latest_checkpoint(settings)
    if checkpoint is None:
        raise SettingsError(
            "resume", str(settings.out), "a folder with a checkpoint; without --resume a run begins"
        )
    then, now = read_position(checkpoint), settings.identity()
    for name, value in now.items():
        if then.settings.get(name) != value:
            raise SettingsError(name, value, f"{then.settings.get(name)}, as in the run that is resumed")
