"""The PPO job of `ppo_group.py`, written by hand with mpi4py.

    mpiexec -n 2 python -m mpi4py examples/baselines/ppo_mpi.py --steps 20 --out FOLDER

Every rank runs this program. Rank 0 draws the questions, hands them out, joins the answers, computes
advantages and hands these out again; the ranks answer, score and learn. `-m mpi4py` ends all ranks when one
raises.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from learner import Columns, Learner, Metrics, add_advantages, average, encoded, share_right
from mpi4py import MPI
from torch import Tensor
from verl_examples.question_file import read_questions
from verl_examples.records import write_record
from verl_examples.toy.checkpoint import save_checkpoint
from verl_examples.toy.data import endless_batches
from verl_examples.toy.model import ModelConfig
from verl_examples.toy.settings import Settings
from verl_examples.toy.tokenizer import CharTokenizer

COMM = MPI.COMM_WORLD
RANK, WORLD_SIZE = COMM.Get_rank(), COMM.Get_size()


def scatter_rows(columns: Columns | None) -> Columns:
    """This rank's share of rank 0's rows; shares are made even by repeating the last row."""
    parts: list[Columns] | None = None
    if columns is not None:
        num_rows = len(next(iter(columns.values())))
        share = -(-num_rows // WORLD_SIZE)
        index = torch.arange(share * WORLD_SIZE).clamp(max=num_rows - 1).chunk(WORLD_SIZE)
        parts = [{name: column[rows] for name, column in columns.items()} for rows in index]
    part: Columns = COMM.scatter(parts)
    return part


def gather_rows(columns: Columns, num_rows: int) -> Columns | None:
    """On rank 0 the rows of all ranks in order, without those that made the shares even; None elsewhere."""
    parts: list[Columns] | None = COMM.gather(columns)
    if parts is None:
        return None
    return {name: torch.cat([part[name] for part in parts])[:num_rows] for name in columns}


def average_over_ranks(metrics: Metrics) -> Metrics:
    """The mean of each number; the same on every rank."""
    each: list[Metrics] = COMM.allgather(metrics)
    return average(each)


def all_reduce(tensor: Tensor) -> None:
    COMM.Allreduce(MPI.IN_PLACE, tensor.numpy())


def held_out_accuracy(learner: Learner, batch: Columns | None, num_rows: int) -> float:
    """Share of held-out questions whose likeliest answer is right; 0 on ranks other than 0."""
    part = scatter_rows(batch)
    learner.answer(part, temperature=0.0)
    joined = gather_rows({"token_level_scores": part["token_level_scores"]}, num_rows)
    return 0.0 if joined is None else share_right(joined)


def train(settings: Settings, learner_class: type[Learner]) -> dict[str, Any] | None:
    """Run the job; the summary on rank 0, None elsewhere."""
    questions = read_questions(settings.data)
    tokenizer = CharTokenizer.for_texts(text for each in questions for text in (each.prompt, each.answer))
    model = ModelConfig(tokenizer.vocabulary_size, questions.prompt_width + questions.answer_width)
    learner = learner_class(settings, model, questions.answer_width, RANK, WORLD_SIZE, all_reduce)
    shown, held_out, metrics_file = None, None, None
    if RANK == 0:
        settings.out.mkdir(parents=True, exist_ok=True)
        metrics_file = (settings.out / "metrics.jsonl").open("w", encoding="utf-8")
        shown = encoded(list(questions.train[: settings.warm_up_questions]), questions, tokenizer)
        held_out = encoded(list(questions.held_out), questions, tokenizer)
        shown["responses"] = shown["answers"]
    learner.warm_up(scatter_rows(shown))
    before = accuracy = held_out_accuracy(learner, held_out, len(questions.held_out))
    batches = endless_batches(questions.train, settings.answers_per_step, settings.seed)
    begin = time.perf_counter()
    for step in range(1, settings.steps + 1):
        start = time.perf_counter()
        drawn = next(batches)
        part = scatter_rows(encoded(drawn, questions, tokenizer) if RANK == 0 else None)
        learner.answer(part, settings.temperature)
        learner.evaluate_answers(part)
        batch = gather_rows(part, len(drawn))
        kl = 0.0 if batch is None else add_advantages(batch, settings)
        metrics = average_over_ranks(learner.learn(scatter_rows(batch), step))
        seconds = time.perf_counter() - start
        measured = step % settings.evaluate_every == 0 or step == settings.steps
        accuracy = held_out_accuracy(learner, held_out, len(questions.held_out)) if measured else accuracy
        if batch is not None and metrics_file is not None:
            record: dict[str, Any] = {"step": step, "reward": share_right(batch), "kl": kl}
            record["accuracy"] = accuracy if measured else None
            record["samples_per_s"] = len(drawn) / seconds
            write_record(metrics_file, record | metrics)
    if metrics_file is None:
        return None
    metrics_file.close()
    rate = settings.steps * settings.answers_per_step / (time.perf_counter() - begin)
    save_checkpoint(settings.out / "checkpoint.pt", model, tokenizer, learner.weights())
    return {"accuracy_before": before, "accuracy_after": accuracy, "samples_per_s": round(rate, 1)}


def main(learner_class: type[Learner] = Learner, arguments: list[str] | None = None) -> int:
    """Read the options, train, and print the summary on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--out", type=Path, default=Path("ppo-mpi-out"))
    options = parser.parse_args(arguments)
    settings = Settings(workers=WORLD_SIZE, steps=options.steps, seed=options.seed, out=options.out)
    summary = train(settings, learner_class)
    if summary is not None:
        sys.stdout.write(json.dumps(summary | {"out": str(options.out)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
