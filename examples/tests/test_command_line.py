"""`verl-ppo` as a user calls it: the whole path in one process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from verl_examples.errors import EXIT_BAD_INPUT, EXIT_INTERRUPTED
from verl_examples.progress import console, shown
from verl_examples.report import StepReport
from verl_examples.toy.cli import main
from verl_examples.toy.driver import Trainer
from verl_examples.toy.model import ModelConfig, Transformer

# torch warns when a checkpoint is loaded in a process that has seen a sparse tensor, as other tests make.
pytestmark = pytest.mark.filterwarnings("ignore:Validating sparse tensor invariants:UserWarning")

REPORTED = {"step", "reward", "accuracy", "kl", "samples_per_s", "actor/loss", "actor/clipped"}


def _metrics(out: Path, *, timed: bool = False) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in record.items() if timed or k != "samples_per_s"} for record in records]


def _run_local(out: Path, *options: str) -> list[dict[str, Any]]:
    assert main(["--backend", "local", "--steps", "2", "--out", str(out), *options]) == 0
    return _metrics(out)


def _check_run(out: Path, summary: dict[str, Any], steps: int) -> None:
    assert set(summary) == {"accuracy_before", "accuracy_after", "samples_per_s", "out"}
    assert summary["out"] == str(out)
    assert summary["samples_per_s"] > 0
    records = _metrics(out, timed=True)
    assert [record["step"] for record in records] == list(range(1, steps + 1))
    assert records[-1]["accuracy"] == summary["accuracy_after"]
    assert set(records[0]) >= REPORTED
    assert (out / "learning.png").read_bytes().startswith(b"\x89PNG")
    checkpoint = torch.load(out / "checkpoint.pt", weights_only=True)
    Transformer(ModelConfig(**checkpoint["model"]), seed=1).load_state_dict(checkpoint["weights"]["actor"])


def test_ppo_in_this_process_writes_everything_and_closes_with_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = _run_local(tmp_path, "--workers", "2")
    printed = capsys.readouterr()
    _check_run(tmp_path, json.loads(printed.out.splitlines()[-1]), steps=2)
    assert len(printed.out.splitlines()) == 1, "progress belongs on stderr"
    assert "samples/s" in printed.err
    assert {"critic/loss"} <= set(records[0])
    assert records[0]["kl"] == pytest.approx(0, abs=1e-6), "the first answers come from the reference itself"


def test_the_same_seed_gives_the_same_curve_and_another_one_does_not(tmp_path: Path) -> None:
    first = _run_local(tmp_path / "a", "--workers", "2", "--algorithm", "grpo")
    torch.manual_seed(123)
    again = _run_local(tmp_path / "b", "--workers", "2", "--algorithm", "grpo")
    other = _run_local(tmp_path / "c", "--workers", "2", "--algorithm", "grpo", "--seed", "1")
    assert first == again
    assert first != other
    assert "critic/loss" not in first[0]


def test_any_question_file_and_any_number_of_workers_go(tmp_path: Path) -> None:
    file = tmp_path / "parity.jsonl"
    file.write_text("".join(f'{{"prompt": "{n}?", "answer": "{"eo"[n % 2]}"}}\n' for n in range(100, 145)))
    for workers in ("1", "3"):
        out = tmp_path / workers
        assert len(_run_local(out, "--workers", workers, "--data", str(file))) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere.jsonl"], "nowhere.jsonl: cannot be read"),
        (["--workers", "0"], "workers is 0, expected at least 1"),
        (["--steps", "0"], "steps is 0, expected at least 1"),
        (["--workers", "2", "--gpus", "1"], "gpus is 1, expected 0, or one for each of the 2 processes"),
    ],
)
def test_bad_options_are_named_before_anything_starts(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == EXIT_BAD_INPUT
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out


def test_a_malformed_line_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "q"}\n')
    assert main(["--data", str(file)]) == EXIT_BAD_INPUT
    assert f"{file}, line 2: has no 'answer'" in capsys.readouterr().err


def test_bad_input_is_named_without_loading_torch(tmp_path: Path) -> None:
    code = """
import sys
from verl_examples.toy.cli import main
statuses = {main(["--steps", "0"]), main(["--data", "nowhere.jsonl"])}
print(statuses, {"torch", "numpy", "rich", "ray"} & set(sys.modules))
"""
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert found.stdout == f"{{{EXIT_BAD_INPUT}}} set()\n"


@pytest.mark.parametrize("ends_with", [KeyboardInterrupt, RuntimeError])
def test_a_run_that_ends_early_leaves_what_it_measured(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ends_with: type[BaseException],
) -> None:
    class Stopped(Trainer):
        def steps(self) -> Iterator[StepReport]:
            yield from islice(super().steps(), 2)
            raise ends_with

    monkeypatch.setattr("verl_examples.toy.run.Trainer", Stopped)
    options = ["--backend", "local", "--workers", "1", "--steps", "9", "--out", str(tmp_path)]
    if ends_with is KeyboardInterrupt:
        assert main(options) == EXIT_INTERRUPTED
        assert f"what was measured so far is in {tmp_path}" in capsys.readouterr().err
    else:
        with pytest.raises(ends_with):
            main(options)
    assert [record["step"] for record in _metrics(tmp_path)] == [1, 2]
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "checkpoint.pt").exists()


def test_shown_samples_a_second_are_those_of_all_steps(capsys: pytest.CaptureFixture[str]) -> None:
    rates = [100.0, 300.0, 300.0]
    reports = [StepReport(step, 0.5, 0.5, 0.0, rate, {}) for step, rate in enumerate(rates, start=1)]
    assert list(shown(reports, 3, 0.1, console())) == reports
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[-2] for line in lines] == ["100", "150", "180"]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_the_policy_learns(algorithm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--algorithm", algorithm, "--backend", "local", "--workers", "1", "--steps", "20"]
    assert main([*options, "--out", str(tmp_path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["accuracy_after"] > summary["accuracy_before"] + 0.3
