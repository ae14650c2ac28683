"""Answers to learn from: questions drawn, answered, judged, and drawn again where they teach nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from verl_protocol import DataProto

from verl_examples.algorithms import informative_groups
from verl_examples.hf.questions import Question, Questions, prompt_batch
from verl_examples.hf.roles import Roles
from verl_examples.hf.settings import Settings

MOST_DRAWS_PER_STEP = 4
"""How often dynamic sampling draws for one step, before it makes do with what it has."""


@dataclass
class Draw:
    """Answers on their way, or there: `answered` is a future until then."""

    prompts: DataProto
    answered: Any
    version: int


@dataclass(frozen=True)
class Measured:
    """Share of held-out questions answered rightly, and one of them to look at."""

    accuracy: float
    question: Question
    answer: str
    score: float


class Sampler:
    """Has the rollout answer and the reward judge.

    Attributes:
        drawn: questions drawn so far; with the seed it tells all that will be drawn from here on.
    """

    def __init__(
        self,
        roles: Roles,
        questions: Questions,
        settings: Settings,
        clock: Callable[[str], AbstractContextManager[Any]],
    ) -> None:
        self._roles, self._questions, self._settings, self._clock = roles, questions, settings, clock
        self.drawn = 0

    def start(self, version: int) -> Draw:
        """Send the next questions to the rollout, which has weights of that version; does not wait."""
        settings = self._settings
        count = settings.answers_per_step // settings.answers_per_question
        drawn = self._questions.drawn(self.drawn, count, settings.seed)
        prompts = self._prompts(drawn, settings.temperature).repeat(
            settings.answers_per_question, interleave=True
        )
        self.drawn += count
        with self._clock("rollout"):
            return Draw(prompts, self._roles.rollout.generate.submit(prompts), version)

    def finish(self, draw: Draw) -> DataProto:
        """A step's answers with their `scores`, (rows,); all groups teach, if dynamic sampling finds enough.

        `meta_info["version"]` tells with which weights they were drawn.
        """
        batch = self._judged(draw)
        if not self._settings.dynamic_sampling:
            return batch
        teaching, spare = self._parted(batch)
        for _ in range(MOST_DRAWS_PER_STEP - 1):
            if len(teaching) >= len(batch):
                break
            more, spare = self._parted(self._judged(self.start(draw.version)))
            teaching = DataProto.concat([teaching, more])
        return DataProto.concat([teaching, spare])[: len(batch)]

    def measure(self) -> Measured:
        """The likeliest answers to the held-out questions."""
        questions = self._questions.held_out
        prompts = self._prompts(questions, temperature=0.0)
        batch = self._judged(Draw(prompts, self._roles.rollout.generate.submit(prompts), version=0))
        scores = batch.tensor("scores")
        return Measured(
            float(scores.double().mean()), questions[0], batch.column("text")[0], float(scores[0])
        )

    def _prompts(self, questions: Sequence[Question], temperature: float) -> DataProto:
        prompts = self._roles.rollout.put(prompt_batch(questions))
        prompts.meta_info |= {"temperature": temperature, "draw": self.drawn}
        return prompts

    def _judged(self, draw: Draw) -> DataProto:
        with self._clock("rollout"):
            batch = draw.prompts.union(draw.answered.result())
        with self._clock("reward"):
            size, workers = len(batch), self._roles.reward.world_size
            cuts = [slice(size * n // workers, size * (n + 1) // workers) for n in range(workers)]
            answers, expected = ([list(batch.column(key)[cut]) for cut in cuts] for key in ("text", "answer"))
            scores = [score for part in self._roles.reward.score(answers, expected) for score in part]
        batch.meta_info = {"version": draw.version}
        return batch.union(DataProto.from_dict({"scores": torch.tensor(scores)}))

    def _parted(self, batch: DataProto) -> tuple[DataProto, DataProto]:
        """Groups that teach, and the others."""
        teaches = informative_groups(batch.tensor("scores"), self._settings.answers_per_question)
        return batch[teaches], batch[~teaches]
