"""The same movements by programs that are not Ray, where they are installed; each in processes of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path


def mpi_medians(workers: int, rounds: int, large_rows: int, small_rows: int, width: int) -> dict[str, float]:
    """Milliseconds by name of the work; empty without mpi4py and mpiexec."""
    beside = str(Path(sys.executable).parent)
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if mpiexec is None or find_spec("mpi4py") is None:
        return {}
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    script = str(Path(__file__).with_name("bench_mpi.py"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "medians.json"
        sizes = [str(number) for number in (rounds, large_rows, small_rows, width)]
        ranks = [mpiexec, *root, "--oversubscribe", "--bind-to", "none", "-n", str(workers + 1)]
        subprocess.run([*ranks, sys.executable, "-m", "mpi4py", script, *sizes, str(file)], check=True)
        found: dict[str, float] = json.loads(file.read_text())
    return found


def verl_medians(workers: int, rounds: int, site: str | None) -> dict[str, float]:
    """Milliseconds by name of the work; empty where verl is neither installed nor in the folder `site`."""
    if site is None and find_spec("verl") is None:
        return {}
    script = str(Path(__file__).with_name("bench_verl.py"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "medians.json"
        given = [str(workers), str(rounds), str(file), *([site] if site else [])]
        command = [sys.executable, script, *given]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=900)
        found: dict[str, float] = json.loads(file.read_text())
    return found
