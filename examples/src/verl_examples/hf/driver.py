"""The single controller: one plain loop that calls groups of workers as if each were one object."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from verl_protocol import DataProto

from verl_examples.algorithms import group_advantages
from verl_examples.hf.checkpoints import Checkpoints, Position, read_ahead, read_position
from verl_examples.hf.jagged import jagged
from verl_examples.hf.questions import Questions, prompt_batch
from verl_examples.hf.roles import Roles
from verl_examples.hf.sampler import Draw, Measured, Sampler
from verl_examples.hf.settings import Settings
from verl_examples.report import StepReport

# Ranks get as many rows each, which shards need, and about as many tokens.
_BALANCED: dict[str, Any] = {"balance": "num_tokens", "equal_size": True}

TRACED_STEP = 2
"""What happens once, such as a first call, is over then."""


class Trainer:
    """Warm-up, steps, measurements and checkpoints of one run."""

    position: Position
    measured: Measured

    def __init__(self, roles: Roles, questions: Questions, settings: Settings) -> None:
        self.roles, self.settings = roles, settings
        self._questions = questions
        self._seconds: dict[str, float] = {}
        self._sampler = Sampler(roles, questions, settings, self._clock)
        self._checkpoints = Checkpoints(settings.out / "checkpoints", settings.keep_checkpoints)
        self._started_from = settings.out / "started-from"
        self._ahead: Draw | DataProto | None = None

    # --- how a run begins, or goes on ----------------------------------------------------------------------

    def begin(self) -> None:
        """Measure the model as it came, show it a few answers, and keep what reinforcement starts from."""
        self._checkpoints.clear()
        before = self._sampler.measure()
        if self.settings.warm_up_steps:
            self._warm_up()
        self._hand_over_weights()
        self.measured = self._sampler.measure()
        self.roles.actor.save_model(self._started_from)
        self._load_reference()
        accuracies = (before.accuracy, self.measured.accuracy)
        self.position = Position(0, 0, *accuracies, self.settings.identity())
        self._save_checkpoint()

    def go_on(self, checkpoint: Path) -> None:
        """Put every role where it was at a checkpoint."""
        self.position, self._ahead = read_position(checkpoint), read_ahead(checkpoint)
        self._sampler.drawn = self.position.drawn
        self.roles.actor.load(checkpoint / "actor")
        if self.roles.critic is not None:
            self.roles.critic.load(checkpoint / "critic")
        self._load_reference()
        self._measure()

    def _warm_up(self) -> None:
        shown = self._questions.train[: self.settings.warm_up_questions]
        answers = jagged([torch.tensor(question.answer_tokens) for question in shown])
        self.roles.actor.warm_up(prompt_batch(shown).union(DataProto.from_dict({"responses": answers})))

    def _load_reference(self) -> None:
        if self.roles.reference is not None:
            self.roles.reference.load_model(self._started_from)

    # --- steps ---------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[StepReport]:
        """Train, one report a step; the last step is always measured and kept."""
        settings = self.settings
        for step in range(self.position.step + 1, settings.steps + 1):
            self._seconds = {}
            start = time.perf_counter()
            with self._traced(step):
                batch = self._next_batch(step)
                metrics = self._learn(batch, step)
            metrics |= self._speed(batch, time.perf_counter() - start)
            last = step == settings.steps
            measured = last or step % settings.evaluate_every == 0
            if measured:
                self._measure()
            self.position = replace(self.position, step=step)
            if last or step % settings.checkpoint_every == 0:
                self._save_checkpoint()
            yield StepReport(
                step=step,
                reward=float(batch.tensor("scores").mean()),
                accuracy=self.measured.accuracy if measured else None,
                kl=metrics.pop("kl", 0.0),
                samples_per_s=metrics.pop("samples_per_s"),
                metrics=metrics,
            )

    def _traced(self, step: int) -> AbstractContextManager[Any]:
        path = self.settings.trace
        return nullcontext() if path is None or step != TRACED_STEP else self.roles.traced(path)

    def _next_batch(self, step: int) -> DataProto:
        """Answers to learn from; with `one_step_off` those for the next step are on their way then."""
        batch = self._finish_ahead() or self._sampler.finish(self._draw(step - 1))
        more = self.settings.one_step_off and step < self.settings.steps
        self._ahead = self._draw(step - 1) if more else None
        return batch

    def _draw(self, version: int) -> Draw:
        self._hand_over_weights()
        return self._sampler.start(version)

    def _finish_ahead(self) -> DataProto | None:
        """The answers for the next step, waited for, where some are on their way."""
        if isinstance(self._ahead, Draw):
            self._ahead = self._sampler.finish(self._ahead)
        return self._ahead

    def _learn(self, batch: DataProto, step: int) -> dict[str, float]:
        """Let actor and critic learn from the answers; their numbers are means over all tokens."""
        actor, reference, critic = self.roles.actor, self.roles.reference, self.roles.critic
        lag = step - 1 - batch.meta_info.pop("version")
        batch = batch.select(non_tensor_batch_keys=[])
        batch.meta_info["step"] = step
        with self._clock("actor"):
            batch.union(actor.compute_log_prob.options(**_BALANCED)(batch))
        if reference is not None:
            with self._clock("reference"):
                batch.union(reference.compute_ref_log_prob.options(**_BALANCED)(batch))
        if critic is None:
            batch.union(DataProto.from_dict({"advantages": self._group_advantages(batch.tensor("scores"))}))
        else:
            with self._clock("critic"):
                batch.union(critic.compute_values.options(**_BALANCED)(batch))
                batch.union(critic.compute_advantages.options(**_BALANCED)(batch))
        with self._clock("actor"):
            per_rank = list(actor.update_actor.options(**_BALANCED)(batch))
        if critic is not None:
            with self._clock("critic"):
                per_rank += critic.update_critic.options(**_BALANCED)(batch)
        return {"off_policy/lag": lag} | _added_up(per_rank)

    def _group_advantages(self, scores: Tensor) -> Tensor:
        """One advantage for all tokens of an answer, (rows, 1)."""
        column = scores[:, None].float()
        return group_advantages(column, torch.ones_like(column), self.settings.answers_per_question)

    def _hand_over_weights(self) -> None:
        """Actor to rollout: the driver passes a reference on and never sees the weights."""
        with self._clock("weights"):
            self.roles.rollout.load_weights(self.roles.actor.weights()[0])

    # --- what is measured and kept -------------------------------------------------------------------------

    def _measure(self) -> None:
        self._finish_ahead()
        self._hand_over_weights()
        self.measured = self._sampler.measure()

    def _save_checkpoint(self) -> None:
        ahead = self._finish_ahead()
        self.position = replace(self.position, drawn=self._sampler.drawn)
        self._checkpoints.write(self.position, ahead, self._save_workers)

    def _save_workers(self, folder: Path) -> None:
        self.roles.actor.save(folder / "actor")
        if self.roles.critic is not None:
            self.roles.critic.save(folder / "critic")

    def _speed(self, batch: DataProto, seconds: float) -> dict[str, float]:
        tokens = float(batch.tensor("num_tokens").sum())
        by_role = {f"seconds/{role}": spent for role, spent in self._seconds.items()}
        return {"samples_per_s": len(batch) / seconds, "tokens_per_s": tokens / seconds} | by_role

    @contextmanager
    def _clock(self, role: str) -> Iterator[None]:
        """Adds up the seconds that the driver waited for a role."""
        start = time.perf_counter()
        yield
        self._seconds[role] = self._seconds.get(role, 0.0) + time.perf_counter() - start


def _added_up(per_rank: list[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for metrics in per_rank for name in metrics)
    return {name: sum(metrics.get(name, 0.0) for metrics in per_rank) for name in names}
