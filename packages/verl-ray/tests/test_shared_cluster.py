"""The cluster that the tests here share: children join that one and no other, and one leak is one failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# The run below starts a second cluster beside the one of this run.
pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.usefixtures("running_ray")]

LEAKING = """
import subprocess
import sys

import pytest
import ray

pytestmark = pytest.mark.usefixtures("shared_ray")

def test_leaks():
    ray.get(ray.util.placement_group([{"CPU": 1}]).ready())

def test_after():
    pass

def test_children_join_this_cluster():
    program = "import ray; ray.init('auto'); print(ray.get_runtime_context().gcs_address)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.split() == [ray.get_runtime_context().gcs_address], done.stderr
"""


def test_one_leak_is_one_failure_and_children_join_the_suites_own_cluster(tmp_path: Path) -> None:
    conftest = (Path(__file__).parent / "conftest.py").read_text()
    # A leak is certain here: no need to wait for half a minute.
    hasty = conftest.replace("timeout_s: float = 30.0", "timeout_s: float = 2.0")
    (tmp_path / "conftest.py").write_text(hasty)
    (tmp_path / "test_leaking.py").write_text(LEAKING)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=250,
        cwd=tmp_path,
        check=False,
    )
    assert "3 passed, 1 error" in run.stdout, run.stdout
    assert "the test left resources reserved: free are {'CPU': 7.0" in run.stdout
