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
from verl_examples.hf.jagged import Sequences, jagged
from verl_examples.hf.models import answer_log_probs, load_causal_lm
from verl_examples.hf.settings import Settings
from verl_examples.hf.sharding import whole_weights
from verl_examples.hf.workers.actor import ActorWorker
from verl_protocol import DataProto

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf")

WORLD = 2


def _batch(rows: slice) -> DataProto:
    generator = torch.Generator().manual_seed(0)
    tokens = [torch.randint(4, 260, (length,), generator=generator) for length in (3, 9, 5, 4, 2, 7, 6, 8)]
    columns = {"prompts": jagged(tokens[:4][rows]), "responses": jagged(tokens[4:][rows])}
    return DataProto.from_dict(columns, meta_info={"step": 1})


def _settings(tiny: Path, workers: int) -> Settings:
    return Settings(str(tiny), workers=workers, answers_per_update=4, answers_per_pass=1, epochs=2)


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


def _one_rank(folder: Path, tiny: Path) -> None:
    """What a rank does in a process of its own."""
    actor = ActorWorker(_settings(tiny, WORLD))
    # Uneven in tokens, even in rows.
    found = _train(actor, slice(actor.rank, None, WORLD))
    actor.save(folder / "checkpoint")
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


@pytest.fixture
def plain(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> ActorWorker:
    """An actor of one rank, without shards."""
    for name, value in _environment(0, 1).items():
        monkeypatch.setenv(name, value)
    return ActorWorker(_settings(tiny, 1))


def test_two_ranks_with_shards_compute_what_one_computes(
    plain: ActorWorker, tiny: Path, tmp_path: Path
) -> None:
    ranks = _run_ranks(tmp_path, tiny)
    alone = _train(plain, slice(None))
    for rank, found in enumerate(ranks):
        rows = alone["log_probs"][rank::WORLD, : found["log_probs"].shape[1]]
        torch.testing.assert_close(found["log_probs"], rows, atol=1e-5, rtol=0)
    assert sum(found["held"] for found in ranks) == pytest.approx(alone["held"], rel=0.01)
    for step, metrics in enumerate(alone["metrics"]):
        parts = [found["metrics"][step]["warm_up/loss"] for found in ranks]
        assert sum(parts) == pytest.approx(metrics["warm_up/loss"], abs=1e-5)
    for name, weight in alone["weights"].items():
        torch.testing.assert_close(ranks[0]["weights"][name], weight, atol=1e-5, rtol=0)

    # What two ranks wrote, one reads.
    plain.load(tmp_path / "checkpoint")
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
