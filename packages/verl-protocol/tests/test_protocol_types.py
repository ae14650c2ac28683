"""A user's program passes mypy --strict without an ignore, and mistakes are found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
def test_programs_are_checked_by_mypy() -> None:
    pytest.importorskip("mypy")
    files = [str(HERE / name) for name in ("typing_ok_protocol.py", "typing_bad_protocol.py")]
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", *files]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "type: ignore" not in (HERE / "typing_ok_protocol.py").read_text()
