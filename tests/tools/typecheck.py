"""mypy strict over each package by itself, so that test modules of different packages may share names; beside
it pyright over their sources, and how much of what they export it knows the type of."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_COMPLETE = 0.99
"""The share of a package's public names whose types all checkers must agree on."""


def targets() -> list[str]:
    """The folders that are checked, one mypy run each."""
    packages = (str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("packages/*")))
    return [*packages, "docs", "examples", "tests", "conftest.py"]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a program of this environment, which is also the one that it looks at."""
    folder = str(Path(sys.executable).parent)
    path = os.pathsep.join([folder, os.environ.get("PATH", "")])
    return subprocess.run(
        [f"{folder}/{command[0]}", *command[1:]],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def said(name: str, done: subprocess.CompletedProcess[str], failed: bool) -> int:
    """Tell what a check said, and count it if it failed."""
    sys.stdout.write(f"{name}: {(done.stdout + done.stderr).strip()}\n")
    sys.stdout.flush()
    return int(failed)


def mypy() -> int:
    """The number of folders in which mypy finds errors; one after the other, for they share a cache."""
    runs = ((target, run("mypy", target)) for target in targets())
    return sum(said(f"mypy {target}", done, done.returncode != 0) for target, done in runs)


def pyright() -> int:
    """Whether pyright finds errors in the sources, and the number of packages that are not typed enough."""
    sources = [marker.parent for marker in sorted(ROOT.glob("packages/*/src/*/py.typed"))]
    done = run("pyright", "--level", "error", *map(str, sources))
    failures = said("pyright", done, done.returncode != 0)
    for package in (path.name for path in sources):
        done = run("pyright", "--verifytypes", package, "--ignoreexternal", "--outputjson")
        complete = json.loads(done.stdout)["typeCompleteness"]["completenessScore"]
        done.stdout = f"{complete:.1%} of its public names have a type, expected {LEAST_COMPLETE:.0%}"
        failures += said(f"pyright --verifytypes {package}", done, complete < LEAST_COMPLETE)
    return failures


def samples() -> str:
    """How many calls and mistakes the samples hold, of which `tests/typing` has checkers judge each one."""
    right, wrong = (
        sum(file.read_text().count(mark) for file in ROOT.glob(f"tests/typing/{kind}_*.py"))
        for kind, mark in (("ok", "assert_type("), ("bad", "# type: ignore["))
    )
    return f"samples: {right} right expressions, {wrong} lines that must be refused\n"


def main() -> int:
    """Run both side by side and return the number of checks that failed; `--count` only counts samples."""
    if sys.argv[1:] == ["--count"]:
        sys.stdout.write(samples())
        return 0
    with ThreadPoolExecutor() as pool:
        return sum(pool.map(lambda check: check(), (mypy, pyright)))


if __name__ == "__main__":
    sys.exit(main())
