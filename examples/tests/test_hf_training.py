"""`verl-grpo` in this process: every part of a run, in seconds."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_examples.algorithms import informative_groups
from verl_examples.errors import EXIT_BAD_INPUT, EXIT_FAILED
from verl_examples.hf.cli import main
from verl_examples.hf.driver import Trainer
from verl_examples.hf.models import load_causal_lm, load_tokenizer
from verl_protocol import DataProto
from verl_protocol.batch.apart import set_apart
from verl_protocol.columns.remote import RemoteColumn

pytestmark = [
    pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf"),
    # torch warns when a checkpoint is loaded in a process that has seen a sparse tensor, as other tests make.
    pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning"),
]

SMALL = (
    "--backend local --answers-per-step 16 --answers-per-update 8 --answers-per-question 4 "
    "--answers-per-pass 5 --max-answer-tokens 4 --warm-up-steps 2 --warm-up-questions 6 "
    "--evaluate-every 2 --checkpoint-every 1 --reward operator:gt"
)
"""The reward says of any answer something to learn from: whether its text stands behind the expected one."""


@pytest.fixture
def small(tiny: Path, few_questions: Path) -> list[str]:
    """Options of a run that takes a second."""
    return [*SMALL.split(), "--model", str(tiny), "--data", str(few_questions)]


def _metrics(out: Path) -> list[dict[str, Any]]:
    """What was measured, without how long it took."""
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in record.items() if "_per_s" not in k and "seconds" not in k} for record in records
    ]


def _weights(out: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = load_causal_lm(str(out / "model"), torch.float32).state_dict()
    return weights


def _same(first: Path, second: Path) -> bool:
    ours, theirs = _weights(first), _weights(second)
    return _metrics(first) == _metrics(second) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_run_leaves_numbers_a_picture_checkpoints_and_a_model(
    small: list[str], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "trace.json"
    options = ["--steps", "3", "--keep-checkpoints", "2", "--trace", str(trace), "--out", str(tmp_path)]
    assert main([*small, *options]) == 0
    printed = capsys.readouterr()
    [line] = printed.out.splitlines()
    summary = json.loads(line)
    assert {"accuracy_before", "accuracy_warmed_up", "accuracy_after", "restarts", "model"} <= set(summary)
    assert "tokens/s" in printed.err
    assert "reward" in printed.err
    records = _metrics(tmp_path)
    assert [record["step"] for record in records] == [1, 2, 3]
    assert [record["accuracy"] is None for record in records] == [True, False, False]
    assert records[0]["kl"] == pytest.approx(0, abs=1e-6), "the first answers come from the reference itself"
    assert records[0]["off_policy/ratio"] == pytest.approx(1, abs=1e-4)
    assert {record["off_policy/lag"] for record in records} == {0}
    assert sorted(file.name for file in (tmp_path / "checkpoints").iterdir()) == [
        "step-000002",
        "step-000003",
    ]
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "tensorboard").exists() == (find_spec("tensorboard") is not None)
    assert all(role in trace.read_text() for role in ("update_actor", "generate", "compute_ref_log_prob"))
    assert load_tokenizer(summary["model"]).eos_token == load_tokenizer(str(tiny)).eos_token
    before = load_causal_lm(str(tiny), torch.float32).state_dict()
    assert any(not torch.equal(weight, before[name]) for name, weight in _weights(tmp_path).items())


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--algorithm", "ppo", "--answers-per-question", "1"],
        ["--rollout", "separate", "--rollout-workers", "2", "--one-step-off", "--dynamic-sampling"],
    ],
    ids=["grpo", "ppo", "one-step-off"],
)
def test_resuming_gives_the_numbers_and_weights_of_an_unbroken_run(
    small: list[str], tmp_path: Path, options: list[str]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert main([*small, *options, "--steps", "4", "--out", str(whole)]) == 0
    assert main([*small, *options, "--steps", "3", "--out", str(broken)]) == 0
    _end_before(broken, "step-000003")
    assert main([*small, *options, "--steps", "4", "--out", str(broken), "--resume"]) == 0
    assert _metrics(whole)[-1]["kl"] > 1e-4, "it learns"
    assert _same(whole, broken)


def _end_before(out: Path, checkpoint: str) -> None:
    """As if the run had been killed before this checkpoint; what was measured after the one before stays."""
    folder = out / "checkpoints" / checkpoint
    folder.rename(folder.with_name(f"{checkpoint}.unfinished"))


REWARDS = """
from pathlib import Path

calls = 0


def dies_once(answer, expected):
    global calls
    calls += 1
    mark = Path("has-died")
    if calls == 100 and not mark.exists():
        mark.touch()
        raise SystemExit(9)
    return len(answer) % 2


def lives(answer, expected):
    return len(answer) % 2


def raises(answer, expected):
    raise ValueError("no such answer")
"""


@pytest.fixture
def rewards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of rewards in the folder of the command; its name."""
    name = f"rewards_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(REWARDS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_after_a_death_the_run_goes_on_as_if_nothing_had_been(
    small: list[str], rewards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fine, hurt = tmp_path / "fine", tmp_path / "hurt"
    assert main([*small, "--steps", "4", "--reward", f"{rewards}:lives", "--out", str(fine)]) == 0
    capsys.readouterr()
    assert main([*small, "--steps", "4", "--reward", f"{rewards}:dies_once", "--out", str(hurt)]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["restarts"] == 1
    assert "starting again from the last checkpoint" in printed.err
    assert _same(fine, hurt)


def test_what_a_worker_raises_ends_the_run_and_is_said(
    small: list[str], rewards: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--steps", "4", "--reward", f"{rewards}:raises", "--out", str(tmp_path / "out")]
    assert main([*small, *options]) == EXIT_FAILED
    printed = capsys.readouterr()
    assert "ValueError: no such answer" in printed.err
    assert not printed.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "./nowhere"], "model is './nowhere', expected a folder or id that transformers loads"),
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--resume"], "expected a folder with a checkpoint"),
        (["--reward", "best"], "reward is 'best', expected exact, last-number"),
        (["--one-step-off"], "one_step_off is True, expected rollout 'separate'"),
    ],
)
def test_bad_options_are_named_before_anything_starts(
    small: list[str],
    tmp_path: Path,
    options: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([*small, "--out", str(tmp_path / "out"), *options]) == EXIT_BAD_INPUT
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_tokenizer_is_named(
    small: list[str], tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny, model, ignore=shutil.ignore_patterns("tokenizer*"))
    assert main([*small, "--model", str(model), "--out", str(tmp_path / "out")]) == EXIT_BAD_INPUT
    assert f"model is '{model}', expected a folder or id that transformers loads" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_other_settings_cannot_be_resumed_with(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*small, "--steps", "1", "--out", str(tmp_path)]) == 0
    assert main([*small, "--steps", "2", "--seed", "7", "--out", str(tmp_path), "--resume"]) == EXIT_BAD_INPUT
    assert "seed is '7', expected 0, as in the run that is resumed" in capsys.readouterr().err
    assert len(_metrics(tmp_path)) == 1


def test_resuming_a_run_that_is_done_says_what_it_came_to(
    small: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = [*small, "--steps", "2", "--out", str(tmp_path)]
    assert main(options) == 0
    first = json.loads(capsys.readouterr().out)
    assert main([*options, "--resume"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert {**again, "seconds": first["seconds"]} == first
    assert len(_metrics(tmp_path)) == 2


@pytest.mark.slow
def test_the_policy_learns(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--backend", "local", "--steps", "24", "--evaluate-every", "24"]
    assert main([*options, "--model", str(tiny), "--out", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["accuracy_after"] > summary["accuracy_warmed_up"] + 0.3


def test_the_driver_never_reads_the_columns_of_tokens(
    small: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    assert main([*small, "--steps", "2", "--out", str(near)]) == 0
    monkeypatch.setattr(set_apart, "__defaults__", (0,))
    unread: list[set[str]] = []
    learn = Trainer._learn

    def watched(self: Trainer, batch: DataProto, step: int) -> dict[str, float]:
        metrics = learn(self, batch, step)
        held = {key: column for key, column in batch._held().items() if isinstance(column, RemoteColumn)}
        unread.append({key for key, column in held.items() if column.fetched is None})
        return metrics

    monkeypatch.setattr(Trainer, "_learn", watched)
    assert main([*small, "--steps", "2", "--out", str(far)]) == 0
    assert _same(near, far)
    assert [{"prompts", "responses", "rollout_log_probs"} <= keys for keys in unread] == [True, True]


def test_with_dynamic_sampling_every_group_teaches(
    small: list[str], rewards: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores: list[torch.Tensor] = []
    learn = Trainer._learn

    def watched(self: Trainer, batch: DataProto, step: int) -> dict[str, float]:
        scores.append(batch.tensor("scores"))
        return learn(self, batch, step)

    monkeypatch.setattr(Trainer, "_learn", watched)
    options = [*small, "--steps", "2", "--max-answer-tokens", "2", "--reward", f"{rewards}:lives"]
    assert main([*options, "--out", str(tmp_path / "plain")]) == 0
    assert main([*options, "--out", str(tmp_path / "dynamic"), "--dynamic-sampling"]) == 0
    teaching = [int(informative_groups(each, 4).sum()) for each in scores]
    assert teaching[0] < 16, "without it some groups do not"
    assert teaching[2:] == [16, 16]
