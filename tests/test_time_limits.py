"""A test that waits for ever fails when its time is up, and the tests after it still run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent

HANGING = """
import time
import pytest

def wait_as_ray_does():
    while True:
        try:
            time.sleep(60)
        except KeyboardInterrupt:
            raise
        except BaseException:
            pass

@pytest.fixture
def slow_to_begin():
    wait_as_ray_does()

@pytest.fixture
def slow_to_end():
    yield
    wait_as_ray_does()

def test_waits():
    wait_as_ray_does()

def test_begins(slow_to_begin):
    raise AssertionError("not reached")

def test_ends(slow_to_end):
    pass

def test_after():
    pass
"""


def test_waits_end_at_the_limit(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "conftest.py").read_text())
    (tmp_path / "test_hanging.py").write_text(HANGING)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "--timeout=1", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=tmp_path,
    )
    assert "1 failed, 2 passed, 2 errors" in run.stdout
    assert run.stdout.count("Failed: Timeout (>1.0s)") >= 3
