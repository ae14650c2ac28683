"""Say which suites a change reaches: changed paths on stdin, the rows of CI's matrix as JSON on stdout.

The layers decide: a change of the protocol reaches everything above it; a change outside `packages/`
that every suite depends on (the lock, the root configuration, CI itself) reaches all.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import PurePosixPath

LAYERS = ("verl-protocol", "verl-dispatch", "verl-ray")
PYTHONS = ("3.11", "3.12", "3.13")
SHARED = {"pyproject.toml", "uv.lock", ".github", ".ci", "conftest.py", "justfile", "tests"}


def affected(paths: Iterable[str]) -> list[str]:
    """The packages to test for a change of `paths`, lowest layer first."""
    lowest = len(LAYERS)
    for path in paths:
        parts = PurePosixPath(path).parts
        if parts and parts[0] in SHARED:
            return list(LAYERS)
        if len(parts) > 1 and parts[0] == "packages" and parts[1] in LAYERS:
            lowest = min(lowest, LAYERS.index(parts[1]))
    return list(LAYERS[lowest:])


def matrix(packages: Iterable[str]) -> list[dict[str, str]]:
    """One row per package and Python with the newest dependencies, and one with the oldest."""
    rows = []
    for package in packages:
        rows += [{"package": package, "python": python, "resolution": "highest"} for python in PYTHONS]
        rows.append({"package": package, "python": PYTHONS[0], "resolution": "lowest-direct"})
    return rows


if __name__ == "__main__":
    chosen = LAYERS if "--all" in sys.argv else affected(line.strip() for line in sys.stdin)
    sys.stdout.write(json.dumps(matrix(chosen)) + "\n")
