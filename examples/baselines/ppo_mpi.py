"""The PPO job of `verl-ppo`, written by hand with mpi4py: what `compare.py` measures the library against.

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
from mpi4py import MPI
from torch import Tensor, nn
from verl_examples.algorithms import (
    clipped_policy_loss,
    clipped_value_loss,
    entropy,
    estimate_kl,
    generalised_advantages,
    masked_mean,
    penalise_kl,
    whiten,
)
from verl_examples.data import Question, Questions, endless_batches, read_questions
from verl_examples.generation import answer_distribution, answer_log_probs, generate
from verl_examples.model import ModelConfig, Transformer, ValueModel
from verl_examples.records import save_checkpoint, write_record
from verl_examples.settings import Settings
from verl_examples.tokenizer import PAD, CharTokenizer

COMM = MPI.COMM_WORLD
RANK, WORLD_SIZE = COMM.Get_rank(), COMM.Get_size()
Columns = dict[str, Tensor]
Metrics = dict[str, float]


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
    return {name: sum(one[name] for one in each) / WORLD_SIZE for name in sorted(metrics)}


def average(metrics: list[Metrics]) -> Metrics:
    """The mean of each number over mini-batches."""
    return {name: sum(each[name] for each in metrics) / len(metrics) for name in metrics[0]}


def data_parallel_step(
    optimizer: torch.optim.Optimizer, loss_per_token: Tensor, mask: Tensor, max_norm: float
) -> float:
    """Descend the mean loss over the real tokens of all ranks; return this rank's part of that mean."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    optimizer.zero_grad()
    loss = (loss_per_token * mask).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([mask.sum().view(1), *(gradient.flatten() for gradient in gradients)])
    COMM.Allreduce(MPI.IN_PLACE, flat.numpy())
    num_tokens, start = flat[0].clamp(min=1), 1
    for gradient in gradients:
        gradient.copy_(flat[start : start + gradient.numel()].view_as(gradient) / num_tokens)
        start += gradient.numel()
    nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return float(loss.detach() / num_tokens)


class Rank:
    """Policy, reference and critic of one rank."""

    def __init__(self, settings: Settings, model: ModelConfig, answer_width: int) -> None:
        torch.set_num_threads(1)
        self.settings, self.answer_width = settings, answer_width
        self.actor = Transformer(model, settings.seed)
        self.reference = Transformer(model, settings.seed)
        self.critic = ValueModel(model, settings.seed)
        self.policy_optimizer = self.optimizer(self.actor, settings.actor_learning_rate)
        self.value_optimizer = self.optimizer(self.critic, settings.critic_learning_rate)
        self.generator = torch.Generator().manual_seed(settings.seed * 1000 + RANK)

    def optimizer(self, network: nn.Module, learning_rate: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(network.parameters(), lr=learning_rate, betas=(0.9, 0.99), weight_decay=0)

    def warm_up(self, part: Columns) -> None:
        """Imitate known answers, then start reference and critic from the policy."""
        optimizer = self.optimizer(self.actor, self.settings.warm_up_learning_rate)
        for _ in range(self.settings.warm_up_steps):
            log_probs, _ = self.log_probs(self.actor, part)
            mask = (part["responses"] != PAD).float()
            data_parallel_step(optimizer, -log_probs, mask, self.settings.max_gradient_norm)
        self.reference.load_state_dict(self.actor.state_dict())
        self.critic.transformer.load_state_dict(self.actor.state_dict())

    def answer(self, part: Columns, temperature: float) -> None:
        """Add `responses`, `response_mask` and the reward, 1 on the last token of a right answer."""
        responses = generate(
            self.actor, part["prompts"], self.answer_width, temperature=temperature, generator=self.generator
        )
        mask = (responses != PAD).float()
        right = (responses == part["answers"]).all(dim=1).float()
        last = mask.sum(dim=1).long().sub(1).clamp(min=0)
        part["responses"], part["response_mask"] = responses, mask
        part["token_level_scores"] = torch.zeros_like(mask).scatter(1, last[:, None], right[:, None])

    @torch.no_grad()
    def evaluate_answers(self, part: Columns) -> None:
        """Add what policy, reference and critic say about the answers."""
        part["old_log_probs"] = self.log_probs(self.actor, part)[0]
        part["ref_log_prob"] = self.log_probs(self.reference, part)[0]
        part["values"] = self.compute_values(part)

    def log_probs(self, network: Transformer, part: Columns) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the answers, and the whole distribution."""
        tokens = torch.cat([part["prompts"], part["responses"]], dim=1)
        distribution = answer_distribution(network, tokens, self.answer_width)
        return answer_log_probs(distribution, part["responses"]), distribution

    def compute_values(self, part: Columns) -> Tensor:
        """The value before each answer token."""
        tokens = torch.cat([part["prompts"], part["responses"]], dim=1)[:, :-1]
        values: Tensor = self.critic(tokens, (tokens != PAD).long())
        return values[:, -self.answer_width :]

    def learn(self, part: Columns, step: int) -> Metrics:
        """A few epochs of mini-batches for the policy, then for the critic."""
        left = 1 - (step - 1) / self.settings.steps
        self.policy_optimizer.param_groups[0]["lr"] = self.settings.actor_learning_rate * left
        self.value_optimizer.param_groups[0]["lr"] = self.settings.critic_learning_rate * left
        share = self.settings.answers_per_update // WORLD_SIZE
        num_rows = len(part["prompts"])
        slices = [slice(start, start + share) for start in range(0, num_rows, share)] * self.settings.epochs
        batches = [{name: column[rows] for name, column in part.items()} for rows in slices]
        policy = average([self.update_actor(batch) for batch in batches])
        return policy | average([self.update_critic(batch) for batch in batches])

    def update_actor(self, batch: Columns) -> Metrics:
        log_probs, distribution = self.log_probs(self.actor, batch)
        old, mask, clip = batch["old_log_probs"], batch["response_mask"], self.settings.policy_clip
        loss = clipped_policy_loss(log_probs, old, batch["advantages"], clip)
        total = data_parallel_step(self.policy_optimizer, loss, mask, self.settings.max_gradient_norm)
        outside = ((log_probs - old).exp() - 1).abs() > clip
        return {
            "actor/loss": total,
            "actor/clipped": float(masked_mean(outside.float(), mask)),
            "actor/entropy": float(masked_mean(entropy(distribution.detach()), mask)),
        }

    def update_critic(self, batch: Columns) -> Metrics:
        values, clip = self.compute_values(batch), self.settings.value_clip
        loss = clipped_value_loss(values, batch["values"], batch["returns"], clip)
        mask, limit = batch["response_mask"], self.settings.max_gradient_norm
        return {"critic/loss": data_parallel_step(self.value_optimizer, loss, mask, limit)}


def encoded(questions: list[Question], parts: Questions, tokenizer: CharTokenizer) -> Columns:
    """Prompts padded on the left, answers on the right."""
    prompts = tokenizer.encode_prompts([question.prompt for question in questions], parts.prompt_width)
    answers = tokenizer.encode_answers([question.answer for question in questions], parts.answer_width)
    return {"prompts": prompts, "answers": answers}


def add_advantages(batch: Columns, settings: Settings) -> float:
    """Add what is learnt from, on rank 0; return the divergence from the reference, nats a token."""
    mask, old, reference = batch["response_mask"], batch["old_log_probs"], batch["ref_log_prob"]
    kl = estimate_kl(old, reference, "k1")
    advantages, batch["returns"] = generalised_advantages(
        penalise_kl(batch["token_level_scores"], kl, settings.kl_coefficient),
        batch["values"],
        mask,
        discount=settings.discount,
        trace_decay=settings.trace_decay,
    )
    batch["advantages"] = whiten(advantages, mask)
    return float(masked_mean(estimate_kl(old, reference, "k3"), mask))


def share_right(batch: Columns) -> float:
    return float(batch["token_level_scores"].sum()) / len(batch["token_level_scores"])


def held_out_accuracy(rank: Rank, batch: Columns | None, num_rows: int) -> float:
    """Share of held-out questions whose likeliest answer is right; 0 on ranks other than 0."""
    part = scatter_rows(batch)
    rank.answer(part, temperature=0.0)
    joined = gather_rows({"token_level_scores": part["token_level_scores"]}, num_rows)
    return 0.0 if joined is None else share_right(joined)


def train(settings: Settings, rank_class: type[Rank] = Rank) -> dict[str, Any] | None:
    """Run the job; the summary on rank 0, None elsewhere."""
    questions = read_questions(settings.data)
    tokenizer = CharTokenizer.for_texts(text for each in questions for text in (each.prompt, each.answer))
    model = ModelConfig(tokenizer.vocabulary_size, questions.prompt_width + questions.answer_width)
    rank = rank_class(settings, model, questions.answer_width)
    shown, held_out = None, None
    if RANK == 0:
        settings.out.mkdir(parents=True, exist_ok=True)
        shown = encoded(list(questions.train[: settings.warm_up_questions]), questions, tokenizer)
        held_out = encoded(list(questions.held_out), questions, tokenizer)
        shown["responses"] = shown["answers"]
    rank.warm_up(scatter_rows(shown))
    before = accuracy = held_out_accuracy(rank, held_out, len(questions.held_out))
    metrics_file = (settings.out / "metrics.jsonl").open("w", encoding="utf-8") if RANK == 0 else None
    batches = endless_batches(questions.train, settings.answers_per_step, settings.seed)
    begin = time.perf_counter()
    for step in range(1, settings.steps + 1):
        start = time.perf_counter()
        drawn = next(batches)
        part = scatter_rows(encoded(drawn, questions, tokenizer) if RANK == 0 else None)
        rank.answer(part, settings.temperature)
        rank.evaluate_answers(part)
        batch = gather_rows(part, len(drawn))
        kl = 0.0 if batch is None else add_advantages(batch, settings)
        metrics = average_over_ranks(rank.learn(scatter_rows(batch), step))
        seconds = time.perf_counter() - start
        measured = step % settings.evaluate_every == 0 or step == settings.steps
        accuracy = held_out_accuracy(rank, held_out, len(questions.held_out)) if measured else accuracy
        if batch is not None and metrics_file is not None:
            record: dict[str, Any] = {"step": step, "reward": share_right(batch), "kl": kl}
            record["accuracy"] = accuracy if measured else None
            record["samples_per_s"] = len(drawn) / seconds
            write_record(metrics_file, record | metrics)
    if metrics_file is None:
        return None
    metrics_file.close()
    rate = settings.steps * settings.answers_per_step / (time.perf_counter() - begin)
    weights = {"actor": rank.actor.state_dict(), "critic": rank.critic.state_dict()}
    save_checkpoint(settings.out / "checkpoint.pt", model, tokenizer, weights)
    return {"accuracy_before": before, "accuracy_after": accuracy, "samples_per_s": round(rate, 1)}


def main(rank_class: type[Rank] = Rank, arguments: list[str] | None = None) -> int:
    """Read the options, train, and print the summary on rank 0."""
    parser = argparse.ArgumentParser(description="The PPO job of verl-ppo by hand with mpi4py.")
    parser.add_argument("--steps", type=int, default=Settings.steps)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--out", type=Path, default=Path("verl-ppo-mpi-out"))
    options = parser.parse_args(arguments)
    summary = train(
        Settings(workers=WORLD_SIZE, steps=options.steps, seed=options.seed, out=options.out), rank_class
    )
    if summary is not None:
        sys.stdout.write(json.dumps(summary | {"out": str(options.out)}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
