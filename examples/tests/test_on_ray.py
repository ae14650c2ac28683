"""The commands on a Ray of their own: they learn, they agree with one process, they leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from verl_examples.toy.cli import EXIT_INTERRUPTED, main

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(280)]
PPO, PUBLISHED = "verl_examples.toy.cli", "verl_examples.published"
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
    return [{name: value for name, value in record.items() if name != "samples_per_s"} for record in records]


def _marked(mark: str) -> list[str]:
    """Command lines of the living processes that a marked program started, itself included."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes():
                found.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:  # not ours to read, or gone meanwhile
            continue
    return found


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
