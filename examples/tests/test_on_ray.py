"""The commands on a Ray of their own: they learn, they agree with one process, they leave nothing behind."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import ray
from verl_examples.errors import EXIT_INTERRUPTED
from verl_examples.hf.cli import main as grpo
from verl_examples.toy.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(280)]
PPO, GRPO, PUBLISHED = "verl_examples.toy.cli", "verl_examples.hf.cli", "verl_examples.published"
MARK = "VERL_EXAMPLES_TEST_RUN"


def _start(module: str, *options: str, mark: str = "") -> subprocess.Popen[str]:
    # Ctrl-C shall work although this process may ignore it, as shells arrange in the background.
    listen = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{listen}; import sys; from {module} import main; sys.exit(main())"
    # A Ray of its own, whatever runs on this machine.
    environment = os.environ | {MARK: mark, "RAY_ADDRESS": "local"}
    command = [sys.executable, "-c", code, *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment)


def _untimed(out: Path) -> list[dict[str, float]]:
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    timed = ("samples_per_s", "tokens_per_s", "seconds/")
    return [{name: v for name, v in record.items() if not name.startswith(timed)} for record in records]


def _marked_processes(mark: str) -> dict[int, str]:
    """Command lines of the living processes that a marked program started, itself included."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:  # not ours to read, or gone meanwhile
            continue
    return found


def _marked(mark: str) -> list[str]:
    return list(_marked_processes(mark).values())


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.2)
    return condition()


def test_ray_learns_what_one_process_learns(tmp_path: Path) -> None:
    options = ["--workers", "2", "--steps", "2"]
    run = _start(PPO, *options, "--out", str(tmp_path / "ray"))
    stdout, stderr = run.communicate()
    assert run.returncode == 0, stderr
    summary = json.loads(stdout.splitlines()[-1])
    assert set(summary) == {"accuracy_before", "accuracy_after", "samples_per_s", "out"}
    assert {file.name for file in (tmp_path / "ray").iterdir()} == {
        "metrics.jsonl",
        "checkpoint.pt",
        "learning.png",
    }
    assert main([*options, "--backend", "local", "--out", str(tmp_path / "local")]) == 0
    assert _untimed(tmp_path / "ray") == _untimed(tmp_path / "local")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_interrupt_ends_the_run_and_all_it_started(tmp_path: Path) -> None:
    mark, metrics = uuid.uuid4().hex, tmp_path / "metrics.jsonl"
    run = _start(PPO, "--workers", "1", "--steps", "100000", "--out", str(tmp_path), mark=mark)
    started = _wait_until(lambda: run.poll() is not None or bool(_lines(metrics)), seconds=200)
    assert started, "no step within the time"
    assert run.poll() is None, run.communicate()[1]
    assert any("ray::" in command for command in _marked(mark)), "the workers carry the mark"

    run.send_signal(signal.SIGINT)
    with run:
        try:
            stdout, stderr = run.communicate(timeout=60)
        finally:
            run.kill()

    assert run.returncode == EXIT_INTERRUPTED, stderr
    assert "stopped" in stderr
    assert "Traceback" not in stderr
    assert not stdout
    assert _wait_until(lambda: not _marked(mark), seconds=30), _marked(mark)


def _lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_published_program_learns() -> None:
    run = _start(PUBLISHED)
    stdout, stderr = run.communicate()
    assert run.returncode == 0, stderr
    assert float(stdout.split()[-1]) > 0.9


SMALL_GRPO = (
    "--workers 2 --rollout separate --one-step-off --answers-per-step 16 --answers-per-update 8 "
    "--answers-per-question 4 --max-answer-tokens 4 --evaluate-every 2 --reward operator:gt"
)


@pytest.fixture
def own_ray(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A Ray that the runs of a test share."""
    monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    ray.init(address="local", logging_level=logging.WARNING, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf")
@pytest.mark.usefixtures("own_ray")
def test_a_resumed_run_of_shards_with_a_rollout_a_step_ahead_gives_the_numbers_of_an_unbroken_one(
    tiny: Path, few_questions: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    small = [*SMALL_GRPO.split(), "--checkpoint-every", "1", "--keep-checkpoints", "9", "--steps", "4"]
    files = ["--model", str(tiny), "--data", str(few_questions)]
    assert grpo([*small, *files, "--out", str(whole)]) == 0
    # What would be there had the run been killed in its fourth step, or in its third.
    shutil.copytree(whole, broken)
    for later in ("step-000003", "step-000004"):
        shutil.rmtree(broken / "checkpoints" / later)
    shutil.rmtree(broken / "model")
    assert grpo([*small, *files, "--out", str(broken), "--resume"]) == 0
    assert _untimed(whole)[-1]["kl"] > 1e-4, "it learns"
    assert _untimed(broken) == _untimed(whole)
    weights = "model/model.safetensors"
    assert (broken / weights).read_bytes() == (whole / weights).read_bytes()


@pytest.mark.skipif(find_spec("transformers") is None, reason="needs the extra hf")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_shards_with_a_rollout_a_step_ahead_survive_a_killed_worker_and_end_with_ctrl_c(
    tiny: Path, few_questions: Path, tmp_path: Path
) -> None:
    mark, metrics = uuid.uuid4().hex, tmp_path / "metrics.jsonl"
    small = [*SMALL_GRPO.split(), "--checkpoint-every", "2", "--steps", "100000"]
    files = ["--model", str(tiny), "--data", str(few_questions), "--out", str(tmp_path)]
    with _start(GRPO, *small, *files, mark=mark) as run:
        try:

            def is_past(step: int) -> bool:
                return run.poll() is not None or len(_lines(metrics)) > step

            assert _wait_until(lambda: is_past(3), seconds=150), "no step within the time"
            marked = _marked_processes(mark)
            trained = [pid for pid, command in marked.items() if "ray::WorkerDict_actor" in command]
            assert len(trained) == 2, list(marked.values())
            reached = len(_lines(metrics))
            os.kill(trained[1], signal.SIGKILL)
            assert _wait_until(lambda: is_past(reached + 6), seconds=80), "it did not go on"
            run.send_signal(signal.SIGINT)
            stdout, stderr = run.communicate(timeout=60)
        finally:
            run.kill()
    assert run.returncode == EXIT_INTERRUPTED, stderr
    assert "starting again from the last checkpoint" in stderr
    assert "stopped; --resume goes on" in stderr
    assert "Traceback" not in stderr
    assert "accuracy_after" not in stdout, "all that is there is Ray's word on the death"
    records = _untimed(tmp_path)
    assert [record["step"] for record in records] == list(range(1, len(records) + 1))
    assert [record["off_policy/lag"] for record in records] == [0] + [1] * (len(records) - 1)
    assert list((tmp_path / "checkpoints").glob("step-*/actor/*.distcp"))
    assert _wait_until(lambda: not _marked(mark), seconds=30), _marked(mark)
