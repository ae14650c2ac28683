"""How the programs are started, and what a run of them shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

HERE = Path(__file__).resolve().parent
PROGRAMS = ("verl-ppo", "group", "mpi")
TWINS = ("group", "mpi")
_VERL_PPO = "import sys; from verl_examples.toy.cli import main; sys.exit(main())"
_TROUBLE = re.compile(r"error|traceback|abort|signal|killed", re.IGNORECASE)
_FRAME = re.compile(r'File "[^"]*", line \d+, in (\w+)\n(?:\(\S+ pid=[^)]*\) )?\s*(.*)')
# The method that goes wrong, and the one of the group that was called to reach it.
_METHOD = re.compile(r"compute_values|'answer'|in answer\b")
_PLACES = ("compute_values", "strike", "answer")


class MissingMpiError(RuntimeError):
    """mpiexec or mpi4py is not installed."""

    def __init__(self) -> None:
        super().__init__("no mpiexec found; run this with `uv run --group bench`")


def command(program: str, workers: int, options: Sequence[str], fault: Sequence[str] = ()) -> list[str]:
    """The command line of one run; `fault` is the kind and the note of an injected one, for a twin."""
    script = [str(HERE / "faults.py"), program, *fault] if fault else [str(HERE / f"ppo_{program}.py")]
    if program == "mpi":
        # `-m mpi4py` ends all ranks when one raises; without it the others would wait for ever.
        return [*_mpiexec(workers), sys.executable, "-m", "mpi4py", *script, *options]
    start = ["-c", _VERL_PPO] if program == "verl-ppo" else script
    return [sys.executable, *start, "--workers", str(workers), *options]


def _mpiexec(workers: int) -> list[str]:
    beside = str(Path(sys.executable).parent)
    found = shutil.which("mpiexec", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if found is None:
        raise MissingMpiError
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    # Unbound, so that other load on the machine does not slow one rank alone.
    return [found, *root, "--oversubscribe", "--bind-to", "none", "-n", str(workers)]


@dataclass
class Output:
    """What a program wrote, and when it first wrote of trouble after `since`."""

    since: Path
    text: list[str] = field(default_factory=list)
    trouble_at: float | None = None

    def read(self, stream: IO[str]) -> None:
        for line in stream:
            self.text.append(line)
            if self.trouble_at is None and self.since.exists() and _TROUBLE.search(line):
                self.trouble_at = time.time()


@dataclass(frozen=True)
class FaultSeen:
    """What the user of a program saw of a fault; None where it went unnoticed."""

    program: str
    kind: str
    seconds_to_message: float | None
    seconds_to_end: float
    exit_code: int
    names_rank: bool
    names_method: bool
    names_line: bool
    message: str


@dataclass(frozen=True)
class Run:
    """One run: seconds in all, and the metrics of its steps."""

    seconds: float
    records: list[dict[str, float]]


def run(program: str, workers: int, steps: int, folder: Path) -> Run:
    """One run without faults.

    Raises:
        subprocess.CalledProcessError: the program failed.
    """
    options = ["--steps", str(steps), "--out", str(folder)]
    start = time.perf_counter()
    try:
        subprocess.run(command(program, workers, options), check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        sys.stderr.write(str(error.stderr))
        raise
    seconds = time.perf_counter() - start
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return Run(seconds, [json.loads(line) for line in lines])


def run_with_fault(program: str, workers: int, kind: str, folder: Path) -> FaultSeen:
    """One run in which the last rank goes wrong."""
    note = folder / "note"
    options = ["--steps", "1", "--out", str(folder / "out")]
    process = subprocess.Popen(
        command(program, workers, options, (kind, str(note))),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    output = Output(note)
    if process.stdout is not None:
        reader = threading.Thread(target=output.read, args=(process.stdout,), daemon=True)
        reader.start()
        reader.join(timeout=300)
    exit_code, ended = process.wait(timeout=60), time.time()
    return _seen(program, kind, float(note.read_text()), ended, exit_code, output, workers - 1)


def _seen(
    program: str, kind: str, struck: float, ended: float, exit_code: int, output: Output, rank: int
) -> FaultSeen:
    text = "".join(output.text)
    frames = _FRAME.findall(text)
    at = output.trouble_at if exit_code else None
    return FaultSeen(
        program=program,
        kind=kind,
        seconds_to_message=None if at is None else round(at - struck, 2),
        seconds_to_end=round(ended - struck, 2),
        exit_code=exit_code,
        names_rank=re.search(rf"rank[ =:]*{rank}\b", text, re.IGNORECASE) is not None,
        names_method=_METHOD.search(text) is not None,
        names_line=any("compute_values" in code or name in _PLACES for name, code in frames),
        message=text[-6000:],
    )
