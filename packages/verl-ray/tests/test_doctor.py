"""The doctor names what will bite, with the remedy, and says so with its exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from verl_ray.doctor import facts
from verl_ray.doctor.checks import check
from verl_ray.doctor.cli import main, report_as_text
from verl_ray.doctor.facts import ClusterFacts, DiskFacts, DoctorFacts, gather_facts
from verl_ray.pools.cluster import NodeFacts

GIB = 1024**3
NODE = NodeFacts("abcdef01", "10.0.0.1", {"CPU": 8, "object_store_memory": 4 * GIB}, {"CPU": 3}, {})
HEALTHY = DoctorFacts(
    python="3.12.0",
    versions={"ray": "2.60.0"},
    environ={},
    under_uv_run=False,
    shared_memory=DiskFacts("/dev/shm", 8 * GIB, 8 * GIB),
    session_disk=DiskFacts("/tmp", 100 * GIB, 50 * GIB),
    cluster=ClusterFacts(nodes=(NODE,)),
)


def test_a_healthy_machine_has_no_findings() -> None:
    assert check(HEALTHY) == []
    text = report_as_text(HEALTHY, [])
    assert "node 10.0.0.1 (abcdef): CPU 3 of 8, object_store_memory 0.0 GiB of 4.0 GiB" in text
    assert text.endswith("nothing found that would bite")


def test_without_a_cluster_the_machine_is_shown_as_ray_would_count_it() -> None:
    here = gather_facts({}).machine
    assert here["CPU"] >= 1
    assert here["memory"] > 0
    facts = replace(HEALTHY, cluster=ClusterFacts(), machine={"CPU": 4.0, "GPU": 1.0, "memory": 2.0 * GIB})
    text = report_as_text(facts, [])
    assert "no Ray cluster is running; a pool would start one on this machine" in text
    assert "(CPU 4, GPU 1, memory 2.0 GiB)" in text


def test_bytecode_is_missed_only_where_it_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path))
    assert gather_facts({"PYTHONDONTWRITEBYTECODE": "1"}).compiles_torch_anew
    assert not gather_facts({}).compiles_torch_anew
    monkeypatch.setattr(facts, "_has_bytecode", lambda package: package == "torch")
    assert not gather_facts({"PYTHONDONTWRITEBYTECODE": "1"}).compiles_torch_anew


@pytest.mark.parametrize(
    ("changed", "level", "what", "remedy"),
    [
        ({"versions": {"ray": "2.40.0"}}, "error", "ray is 2.40.0", "ray>=2.51"),
        ({"versions": {}}, "error", "ray is not installed", "pip install"),
        ({"under_uv_run": True}, "warning", "uv run", "RAY_ENABLE_UV_RUN_RUNTIME_ENV=0"),
        (
            {"environ": {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}},
            "error",
            "HIP_VISIBLE_DEVICES='1', CUDA_VISIBLE_DEVICES='0'",
            "unset",
        ),
        ({"environ": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "yes"}}, "warning", "'yes'", "=1"),
        ({"environ": {"RANK": "0", "WORLD_SIZE": "1"}}, "warning", "RANK, WORLD_SIZE", "torchrun"),
        ({"compiles_torch_anew": True}, "warning", "PYTHONDONTWRITEBYTECODE", "compileall"),
        (
            {"shared_memory": DiskFacts("/dev/shm", GIB // 16, 0)},
            "error",
            "/dev/shm holds 0.1 GiB",
            "--shm-size",
        ),
        ({"session_disk": DiskFacts("/tmp", 100 * GIB, GIB)}, "error", "1.0 GiB of 100.0 GiB", "RAY_TMPDIR"),
        ({"cluster": ClusterFacts(error="10.0.0.9: refused")}, "error", "10.0.0.9: refused", "RAY_ADDRESS"),
        ({"cluster": ClusterFacts(nodes=(NODE,), dead=("10.0.0.7",))}, "warning", "10.0.0.7", "restart"),
        ({"cluster": ClusterFacts(nodes=(replace(NODE, free={}),))}, "warning", "all 8 CPU", "shut other"),
        (
            {"cluster": ClusterFacts(nodes=(replace(NODE, total={"object_store_memory": GIB // 4}),))},
            "warning",
            "object store of 0.2 GiB",
            "--object-store-memory",
        ),
    ],
)
def test_each_thing_that_bites_is_named_with_its_remedy(
    changed: dict[str, object], level: str, what: str, remedy: str
) -> None:
    (finding,) = check(replace(HEALTHY, **changed))  # type: ignore[arg-type]
    assert finding.level == level
    assert what in finding.what
    assert remedy in finding.remedy


def test_uv_run_with_the_hook_off_is_fine() -> None:
    facts = replace(HEALTHY, under_uv_run=True, environ={"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"})
    assert check(facts) == []


def test_errors_come_first() -> None:
    facts = replace(HEALTHY, under_uv_run=True, versions={})
    assert [finding.level for finding in check(facts)] == ["error", "warning"]


def _doctor(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = ("UV_RUN_RECURSION_DEPTH", "RAY_ENABLE_UV_RUN_RUNTIME_ENV")
    environ = {name: value for name, value in os.environ.items() if name not in ours} | variables
    command = [sys.executable, "-m", "verl_ray", "doctor", *arguments]
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.usefixtures("running_ray")
def test_the_command_line_in_json_with_an_error() -> None:
    done = _doctor("--json", HIP_VISIBLE_DEVICES="1", CUDA_VISIBLE_DEVICES="0")
    report = json.loads(done.stdout)
    assert done.returncode == 1, done.stderr
    assert not report["ok"]
    assert "HIP_VISIBLE_DEVICES='1'" in report["findings"][0]["what"]
    assert report["versions"]["ray"]


@pytest.mark.parametrize("how", [["--address", "127.0.0.1:1"], []], ids=["address", "variable"])
def test_an_address_where_nobody_answers_is_told_in_time(how: list[str]) -> None:
    begin = time.monotonic()
    done = _doctor(*how, RAY_ADDRESS="[::1]:1")
    assert time.monotonic() - begin < 60
    assert done.returncode == 1
    where = r"127\.0\.0\.1:1" if how else r"\[::1\]:1"
    assert re.search(f"the Ray cluster cannot be joined: {where}: .*(refused|assign)", done.stdout)


@pytest.mark.usefixtures("running_ray")
def test_the_command_line_warns_of_the_uv_hook() -> None:
    done = _doctor(UV_RUN_RECURSION_DEPTH="1")
    # This machine may have faults of its own, such as a small /dev/shm.
    assert done.returncode == (1 if "error:" in done.stdout else 0), done.stderr
    assert "warning: under `uv run`, ray.init() uploads the working directory" in done.stdout
    assert "export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0" in done.stdout
    fine = _doctor(UV_RUN_RECURSION_DEPTH="1", RAY_ENABLE_UV_RUN_RUNTIME_ENV="0")
    assert "uv run" not in fine.stdout


@pytest.mark.usefixtures("shared_ray")
def test_the_running_cluster_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["doctor"], {})
    out = capsys.readouterr().out
    assert "CPU 8 of 8" in out
    assert "GPU 4 of 4" in out
    assert code == (1 if "error:" in out else 0)
