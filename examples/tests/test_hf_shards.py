"""Weights in shards: two ranks hold what one holds, and compute what one computes."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_dispatch.workers.rank import free_port
from verl_examples.hf.jagged import Sequences, jagged, padded
from verl_examples.hf.models import answer_log_probs, load_causal_lm
from verl_examples.hf.settings import Settings
from verl_examples.hf.sharding import whole_weights
from verl_examples.hf.workers.actor import ActorWorker
from verl_examples.hf.workers.critic import CriticWorker
from verl_protocol import DataProto

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf")

WORLD = 2


def _batch(rows: slice) -> DataProto:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(4, 260, (length,), generator=generator) for length in (3, 9, 5, 4, 2, 7, 6, 8)]
    columns = {"prompts": jagged(tokens[:4][rows]), "responses": jagged(tokens[4:][rows])}
    return DataProto.from_dict(columns, meta_info={"step": 1})


def _settings(tiny: Path, workers: int) -> Settings:
    return Settings(model=str(tiny), workers=workers, answers_per_update=4, answers_per_pass=1, epochs=2)


def _train(actor: ActorWorker, rows: slice) -> dict[str, Any]:
    """What a rank finds: log-probabilities before, the loss's part, whole weights after, and its own size."""
    batch = _batch(rows)
    sequences = Sequences.of(batch, actor.device)
    with torch.no_grad():
        log_probs = answer_log_probs(actor.network, sequences, 1.0)
    metrics = [actor.gradient_step(actor.optimizer, batch, actor._imitation_loss) for _ in range(2)]
    held = sum(
        getattr(weight, "to_local", lambda w=weight: w)().numel() for weight in actor.network.parameters()
    )
    return {"log_probs": log_probs, "metrics": metrics, "weights": whole_weights(actor.network), "held": held}


def _criticise(critic: CriticWorker, rows: slice) -> dict[str, Any]:
    """Advantages, whitened over all ranks, and what a step on the value loss makes of the critic."""
    batch = _batch(rows)
    no_surprise = jagged([torch.zeros(len(row)) for row in batch.tensor("responses").unbind()])
    scores = torch.tensor([1.0, 0.0, 0.5, 2.0])[rows]
    batch.union(DataProto.from_dict({"old_log_probs": no_surprise, "scores": scores}))
    batch.union(critic.compute_values(batch))
    batch.union(critic.compute_advantages(batch))
    metrics = critic.gradient_step(critic.optimizer, batch, critic._value_loss)
    advantages = padded(batch.tensor("advantages"))
    return {"advantages": advantages, "metrics": metrics, "weights": whole_weights(critic.network)}


def _one_rank(folder: Path, tiny: Path) -> None:
    """What a rank does in a process of its own."""
    actor = ActorWorker(_settings(tiny, WORLD))
    # Uneven in tokens, even in rows.
    found = _train(actor, slice(actor.rank, None, WORLD))
    actor.save(folder / "checkpoint")
    found["critic"] = _criticise(CriticWorker(_settings(tiny, WORLD)), slice(actor.rank, None, WORLD))
    torch.save(found, folder / f"{actor.rank}.pt")
    actor.process_group().barrier()
    actor.process_group().destroy()


def _environment(rank: int, world_size: int, port: int = 0) -> dict[str, str]:
    place = {"RANK": rank, "WORLD_SIZE": world_size, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": world_size}
    return {name: str(value) for name, value in place.items()} | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def _run_ranks(folder: Path, tiny: Path) -> list[dict[str, Any]]:
    port = free_port("127.0.0.1")
    ranks = [
        subprocess.Popen(
            [sys.executable, __file__, str(folder), str(tiny)],
            env=os.environ | _environment(rank, WORLD, port),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(WORLD)
    ]
    complaints = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], complaints
    return [torch.load(folder / f"{rank}.pt") for rank in range(WORLD)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the two ranks leave what they found, and a checkpoint."""
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(folder: Path, tiny: Path) -> list[dict[str, Any]]:
    """What each of two ranks with shards found."""
    return _run_ranks(folder, tiny)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in _environment(0, 1).items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def plain(tiny: Path) -> ActorWorker:
    """An actor of one rank, without shards."""
    return ActorWorker(_settings(tiny, 1))


def _check_rows(column: str, ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    for rank, found in enumerate(ranks):
        width = found[column].shape[1]
        torch.testing.assert_close(found[column], alone[column][rank::WORLD, :width], atol=1e-5, rtol=0)


def _check_weights(ranks: list[dict[str, Any]], alone: dict[str, Any]) -> None:
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(ranks[0]["weights"][name], weight, atol=1e-5, rtol=0)


def test_two_ranks_with_shards_compute_what_one_computes(
    plain: ActorWorker, ranks: list[dict[str, Any]]
) -> None:
    alone = _train(plain, slice(None))
    assert sum(found["held"] for found in ranks) == pytest.approx(alone["held"], rel=0.01)
    _check_rows("log_probs", ranks, alone)
    for step, metrics in enumerate(alone["metrics"]):
        parts = [found["metrics"][step]["warm_up/loss"] for found in ranks]
        assert sum(parts) == pytest.approx(metrics["warm_up/loss"], abs=1e-5)
    _check_weights(ranks, alone)


def test_a_critic_in_shards_whitens_and_learns_over_all_ranks(
    ranks: list[dict[str, Any]], tiny: Path
) -> None:
    alone = _criticise(CriticWorker(_settings(tiny, 1)), slice(None))
    critics = [found["critic"] for found in ranks]
    _check_rows("advantages", critics, alone)
    parts = [found["metrics"]["critic/loss"] for found in critics]
    assert sum(parts) == pytest.approx(alone["metrics"]["critic/loss"], abs=1e-5)
    _check_weights(critics, alone)


def test_what_two_ranks_wrote_one_reads(
    plain: ActorWorker, ranks: list[dict[str, Any]], folder: Path
) -> None:
    plain.load(folder / "checkpoint")
    for name, weight in whole_weights(plain.network).items():
        assert torch.equal(weight, ranks[0]["weights"][name])


def test_a_saved_model_is_one_for_plain_transformers(plain: ActorWorker, tmp_path: Path) -> None:
    plain.gradient_step(plain.optimizer, _batch(slice(None)), plain._imitation_loss)
    plain.save_model(tmp_path / "model")
    model = load_causal_lm(str(tmp_path / "model"), torch.float32)
    sequences = Sequences.of(_batch(slice(None)), torch.device("cpu"))
    ours, theirs = (answer_log_probs(network, sequences, 1.0) for network in (plain.network, model))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


if __name__ == "__main__":
    _one_rank(*map(Path, sys.argv[1:]))
    # All is written. Threads of torch now and then abort a process whose interpreter winds down, which is not
    # what is tested here.
    os._exit(0)
