"""The twin of the MPI program, in one process: its worker answers, scores and learns."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from verl_dispatch import Broadcast, LocalWorkerGroup
from verl_examples.question_file import read_questions
from verl_examples.toy.model import ModelConfig
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import CharTokenizer
from verl_protocol import DataProto

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "baselines"))

from learner import Learner, add_advantages, encoded, share_right
from ppo_group import PPOWorker

SETTINGS = Settings(workers=2, answers_per_step=8, answers_per_update=4, epochs=1, warm_up_steps=1, steps=1)


def test_the_worker_does_every_stage_of_a_step() -> None:
    questions = read_questions(SETTINGS.data)
    tokenizer = CharTokenizer.for_texts(text for each in questions for text in (each.prompt, each.answer))
    model = ModelConfig(tokenizer.vocabulary_size, questions.prompt_width + questions.answer_width)
    drawn = DataProto.from_dict(encoded(list(questions.train[:7]), questions, tokenizer), auto_padding=True)
    sizes = (model, questions.answer_width)
    with LocalWorkerGroup(PPOWorker, 2, Learner, SETTINGS, *sizes, concurrent=True) as group:
        first = group.weights()["actor"]
        group.warm_up(drawn.union(DataProto.from_dict({"responses": drawn.tensor("answers")})))
        batch = group.answer(drawn, Broadcast(1.0), Broadcast(True)).tensors()
        add_advantages(batch, SETTINGS)
        metrics = list(group.learn(DataProto.from_dict(batch, auto_padding=True), Broadcast(1)))
        last = group.weights()["actor"]
    assert batch["prompts"].equal(drawn.tensor("prompts"))
    assert 0 <= share_right(batch) <= 1
    assert [sorted(each) for each in metrics] == [
        ["actor/clipped", "actor/entropy", "actor/loss", "critic/loss"]
    ] * 2
    assert any(not torch.equal(weight, last[name]) for name, weight in first.items())
