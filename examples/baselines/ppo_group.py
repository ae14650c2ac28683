"""The PPO job of `ppo_mpi.py` with this library: one worker class, one loop.

python examples/baselines/ppo_group.py --workers 2 --steps 20 --out FOLDER
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from learner import Columns, Learner, Metrics, add_advantages, average, encoded, share_right
from verl_dispatch import Broadcast, Dispatch, Worker, register
from verl_examples.question_file import Question, read_questions
from verl_examples.records import write_record
from verl_examples.toy.checkpoint import save_checkpoint
from verl_examples.toy.data import endless_batches
from verl_examples.toy.model import ModelConfig
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import CharTokenizer
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class PPOWorker(Worker):
    """Policy, reference and critic of one rank."""

    def __init__(
        self, learner_class: type[Learner], settings: Settings, model: ModelConfig, width: int
    ) -> None:
        super().__init__()
        all_reduce = self.process_group().all_reduce
        self.learner = learner_class(settings, model, width, self.rank, self.world_size, all_reduce)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def warm_up(self, shown: DataProto) -> None:
        self.learner.warm_up(shown.tensors())

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def answer(self, batch: DataProto, temperature: float, evaluated: bool) -> DataProto:
        """The batch with the policy's answers, and with what all networks say of them."""
        part = batch.tensors()
        self.learner.answer(part, temperature)
        if evaluated:
            self.learner.evaluate_answers(part)
        return DataProto.from_dict(part)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def learn(self, batch: DataProto, step: int) -> Metrics:
        return self.learner.learn(batch.tensors(), step)

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def weights(self) -> dict[str, Columns]:
        return self.learner.weights()


def train(settings: Settings, learner_class: type[Learner]) -> dict[str, Any]:
    """Run the job and return its summary."""
    questions = read_questions(settings.data)
    tokenizer = CharTokenizer.for_texts(text for each in questions for text in (each.prompt, each.answer))
    model = ModelConfig(tokenizer.vocabulary_size, questions.prompt_width + questions.answer_width)
    worker = RayClassWithInitArgs(PPOWorker, learner_class, settings, model, questions.answer_width)

    def batch_of(some: list[Question]) -> DataProto:
        return DataProto.from_dict(encoded(some, questions, tokenizer), auto_padding=True)

    def accuracy_now() -> float:
        return share_right(group.answer(held_out, Broadcast(0.0), Broadcast(False)).tensors())

    settings.out.mkdir(parents=True, exist_ok=True)
    with RayResourcePool([settings.workers], use_gpu=False) as pool, RayWorkerGroup(pool, worker) as group:
        held_out = batch_of(list(questions.held_out))
        shown = batch_of(list(questions.train[: settings.warm_up_questions]))
        group.warm_up(shown.union(DataProto.from_dict({"responses": shown.tensor("answers")})))
        before = accuracy = accuracy_now()
        batches = endless_batches(questions.train, settings.answers_per_step, settings.seed)
        begin = time.perf_counter()
        with (settings.out / "metrics.jsonl").open("w", encoding="utf-8") as metrics_file:
            for step in range(1, settings.steps + 1):
                start = time.perf_counter()
                drawn = batch_of(next(batches))
                answered = group.answer(drawn, Broadcast(settings.temperature), Broadcast(True))
                batch = answered.tensors()
                kl = add_advantages(batch, settings)
                metrics = average(list(group.learn(DataProto.from_dict(batch), Broadcast(step))))
                seconds = time.perf_counter() - start
                measured = step % settings.evaluate_every == 0 or step == settings.steps
                accuracy = accuracy_now() if measured else accuracy
                record: dict[str, Any] = {"step": step, "reward": share_right(batch), "kl": kl}
                record["accuracy"] = accuracy if measured else None
                record["samples_per_s"] = len(answered) / seconds
                write_record(metrics_file, record | metrics)
        rate = settings.steps * settings.answers_per_step / (time.perf_counter() - begin)
        save_checkpoint(settings.out / "checkpoint.pt", model, tokenizer, group.weights())
    return {"accuracy_before": before, "accuracy_after": accuracy, "samples_per_s": round(rate, 1)}


def main(learner_class: type[Learner] = Learner, arguments: list[str] | None = None) -> int:
    """Read the options, train, and print the summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=Settings.workers)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--out", type=Path, default=Path("ppo-group-out"))
    options = parser.parse_args(arguments)
    settings = Settings(workers=options.workers, steps=options.steps, seed=options.seed, out=options.out)
    summary = train(settings, learner_class)
    sys.stdout.write(json.dumps(summary | {"out": str(options.out)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
