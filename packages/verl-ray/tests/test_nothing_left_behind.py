"""However a driver ends, its workers and its placement groups end with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import ray

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_ray"), pytest.mark.timeout(120)]

# Ctrl-C shall work although this process may ignore it, as shells arrange in the background.
PROGRAM = """
import signal
import time
from pathlib import Path

signal.signal(signal.SIGINT, signal.default_int_handler)

import ray
from verl_dispatch import Dispatch, Worker, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

class Sleeper(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, begun):
        Path(begun).touch()
        time.sleep(600)

ray.init("auto", log_to_driver=False)
pool = RayResourcePool([1], use_gpu=False, max_colocate_count=1)
group = RayWorkerGroup(pool, RayClassWithInitArgs(Sleeper))
watch = group.watch(every_s=0.1)
print("up", flush=True)
{rest}
"""


def run(rest: str, *, interrupt_at: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM.format(rest=rest)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            first = program.stdout.readline()
            if interrupt_at is not None:
                while program.poll() is None and not interrupt_at.exists():
                    time.sleep(0.05)
                program.send_signal(signal.SIGINT)
            output, errors = program.communicate(timeout=60)
        finally:
            program.kill()
    assert first == "up\n", errors
    return subprocess.CompletedProcess(command, program.returncode, output, errors)


def all_cpus() -> float:
    resources: Callable[[], dict[str, float]] = ray.cluster_resources
    return resources()["CPU"]


def test_a_driver_that_just_ends(wait_until_free: Callable[[], dict[str, float]]) -> None:
    done = run("")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert wait_until_free()["CPU"] == all_cpus()


def test_an_interrupt_in_the_middle_of_a_call(
    wait_until_free: Callable[[], dict[str, float]], tmp_path: Path
) -> None:
    begun = tmp_path / "begun"
    done = run(f"with pool, group:\n    group.sleep({str(begun)!r})", interrupt_at=begun)
    assert "KeyboardInterrupt" in done.stderr
    assert wait_until_free()["CPU"] == all_cpus()
