"""Say which suites a change reaches: changed paths on stdin, the rows of CI's matrix as JSON on stdout.

A change of a package reaches it and every package that needs it; a change outside them that every suite
depends on (the lock, the root configuration, CI itself) reaches all. The packages are those of the workspace.
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
# All for which ray and torch have wheels.
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
SHARED = {"pyproject.toml", "uv.lock", ".github", ".ci", "conftest.py", "justfile", "tests"}


@dataclass(frozen=True)
class Package:
    """One package of the workspace.

    Attributes:
        needs: itself and the packages of the workspace that it needs, directly or not.
    """

    name: str
    folder: str
    needs: frozenset[str]


def packages(root: Path = ROOT) -> list[Package]:
    """The packages of the workspace, lowest layer first."""
    patterns = _toml(root)["tool"]["uv"]["workspace"]["members"]
    folders = [file.parent for pattern in patterns for file in root.glob(f"{pattern}/pyproject.toml")]
    projects = {folder: _toml(folder)["project"] for folder in folders}
    direct = {project["name"]: _names(project.get("dependencies", ())) for project in projects.values()}
    found = [
        Package(project["name"], str(folder.relative_to(root)), _closure(project["name"], direct))
        for folder, project in projects.items()
    ]
    return sorted(found, key=lambda package: (len(package.needs), package.name))


def _toml(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text())


def _names(requirements: Iterable[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in requirements}


def _closure(name: str, direct: Mapping[str, set[str]]) -> frozenset[str]:
    return frozenset({name}).union(*(_closure(each, direct) for each in direct[name] & direct.keys()))


def affected(paths: Iterable[str], among: Sequence[Package]) -> list[Package]:
    """The packages to test for a change of `paths`, lowest layer first."""
    changed: set[str] = set()
    for path in map(PurePosixPath, paths):
        if path.parts and path.parts[0] in SHARED:
            return list(among)
        changed |= {package.name for package in among if path.is_relative_to(package.folder)}
    return [package for package in among if package.needs & changed]


def matrix(chosen: Iterable[Package]) -> list[dict[str, str]]:
    """One row per package and Python with the newest dependencies, and one with the oldest."""
    rows = []
    for package in chosen:
        where = {"package": package.name, "folder": package.folder}
        rows += [where | {"python": python, "resolution": "highest"} for python in PYTHONS]
        rows.append(where | {"python": PYTHONS[0], "resolution": "lowest-direct"})
    return rows


if __name__ == "__main__":
    known = packages()
    chosen = known if "--all" in sys.argv else affected((line.strip() for line in sys.stdin), known)
    sys.stdout.write(json.dumps(matrix(chosen)) + "\n")
