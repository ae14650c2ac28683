"""Say which packages are due for a release and whether each is ready; build them and try what was built.

A release is a tag such as `verl-ray-v0.2.0`. A package is due if its sources or metadata differ from its last
tag; tags on this very commit are releases under way, not the last ones. What is built is installed with the
ordinary resolver into fresh environments, lowest layer first, and tested there, away from the workspace.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import griffe
from affected import ROOT, Package, packages
from packaging.requirements import Requirement
from packaging.version import Version

UV = os.environ.get("UV") or shutil.which("uv") or "uv"
# What each package's suite says about it without a cluster, in seconds.
SMOKE = {
    "verl-protocol": ("test_protocol_package.py", "test_batch_construction.py", "test_wire_batch.py"),
    "verl-dispatch": ("test_fresh_process.py", "test_group_modes.py", "test_mesh.py"),
    "verl-ray": ("test_pool_spec.py", "test_sealed_answers.py", "test_templates_and_messages.py"),
    "verl-examples": ("test_algorithms.py", "test_questions.py"),
}


@dataclass(frozen=True)
class Plan:
    """What there is to say about one package.

    Attributes:
        last: tag of its last release, None before the first.
        changes: commits since then that touch what is released.
        problems: why it cannot be released as it is.
    """

    package: Package
    version: Version
    last: str | None
    changes: int
    problems: tuple[str, ...]

    @property
    def tag(self) -> str:
        """The tag of the release that is due."""
        return f"{self.package.name}-v{self.version}"

    @property
    def is_due(self) -> bool:
        """Whether there is anything to release."""
        return self.last is None or self.changes > 0


def plan_of(package: Package, among: Sequence[Package], root: Path = ROOT) -> Plan:
    """Look at one package, its history and its siblings."""
    project = _project(root / package.folder)
    version, last = Version(project["version"]), last_tag(package.name, root)
    released = [f"{package.folder}/{name}" for name in ("src", "pyproject.toml", "README.md")]
    commits = _git(root, "log", "--format=%h", f"{last}..HEAD", "--", *released) if last else ""
    changes = len(commits.split())
    problems: list[str] = []
    if last is None or changes:
        problems += version_problems(package, version, last)
        problems += changelog_problems(root / package.folder, version)
    problems += bound_problems(project, {each.name: _project(root / each.folder) for each in among})
    if last is not None and changes:
        problems += api_problems(package, version, last, root)
    return Plan(package, version, last, changes, tuple(problems))


def last_tag(name: str, root: Path = ROOT) -> str | None:
    """The tag of the newest release that is not this very commit."""
    here = set(_git(root, "tag", "--points-at", "HEAD").split())
    tags = [tag for tag in _git(root, "tag", "--list", f"{name}-v*").split() if tag not in here]
    return max(tags, key=lambda tag: _version_of(name, tag), default=None)


def _version_of(name: str, tag: str) -> Version:
    return Version(tag.removeprefix(f"{name}-v"))


def version_problems(package: Package, version: Version, last: str | None) -> Iterator[str]:
    """A version that was released already, or is older."""
    if last is not None and version <= _version_of(package.name, last):
        yield f"version {version} is not newer than {last}: uv version --package {package.name} --bump minor"


def changelog_problems(folder: Path, version: Version) -> Iterator[str]:
    """A version without lines in the changelog, or under another heading than the first."""
    sections = re.split(r"^## ", (folder / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    title, _, lines = sections[0].partition("\n") if sections else ("nothing", "", "")
    if title.split()[0] != str(version):
        yield f"CHANGELOG.md starts with {title!r}, expected a section for {version}"
    elif not lines.strip():
        yield f"CHANGELOG.md says nothing about {version}"


def bound_problems(project: dict[str, Any], siblings: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Bounds on siblings that do not admit the versions they have here."""
    for requirement in map(Requirement, project.get("dependencies", ())):
        sibling = siblings.get(requirement.name)
        if sibling and not requirement.specifier.contains(sibling["version"], prereleases=True):
            yield f"{requirement} does not admit {requirement.name} {sibling['version']}"


def api_problems(package: Package, version: Version, last: str, root: Path = ROOT) -> Iterator[str]:
    """Public names that break their users, in a version that says that none does."""
    before = _version_of(package.name, last)
    if version.release[:2] != before.release[:2]:
        return
    for breakage in api_breakages(package, last, root):
        yield f"{breakage}; {version} is a patch of {before}, which breaks nothing"


def api_breakages(package: Package, last: str, root: Path = ROOT) -> list[str]:
    """What users of the public names have to change since a tag."""
    module, places = package.name.replace("-", "_"), [f"{package.folder}/src"]
    old = griffe.load_git(module, ref=last, repo=root, search_paths=places, resolve_aliases=True)
    new = griffe.load(module, search_paths=[root / places[0]], resolve_aliases=True)
    found = griffe.find_breaking_changes(_with_public_names(old), _with_public_names(new))
    explained = (each.explain(griffe.ExplanationStyle.ONE_LINE) for each in found)
    return [re.sub(r"\x1b\[\d*m", "", text).strip() for text in explained]  # without colours


def _with_public_names(module: Any) -> Any:
    # The names of a package are those that its stub imports as themselves; its modules are its own affair.
    for name, member in module.members.items():
        member.public = name == "errors" or (member.is_alias and not name.startswith("_"))
    return module


# --- What is built, and whether it works --------------------------------------------------------------------


def build(into: Path) -> None:
    """A wheel and an sdist of every package; wheels are built from the sdists, as installers do."""
    for built_before in into.glob("verl_*"):
        built_before.unlink()
    _run(UV, "build", "--quiet", "--all-packages", "--out-dir", str(into))


def passes(package: Package, among: Sequence[Package], dist: Path, full: bool) -> bool:
    """Whether a fresh environment with this package alone imports no sibling above it, and its tests pass."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        python = str(place / "environment/bin/python")
        _run(UV, "venv", "--quiet", "--no-project", str(place / "environment"))
        _run(UV, "pip", "install", "--quiet", "--python", python, *_requirements(package, dist))
        above = [each.name for each in among if each.name not in package.needs]
        if strangers := {each["name"] for each in _installed(python)} & {*above}:
            raise RuntimeError(f"{package.name} brought {sorted(strangers)}")
        copy = place / package.folder
        shutil.copytree(ROOT / package.folder, copy, ignore=shutil.ignore_patterns("src", "__pycache__"))
        for name in ("conftest.py", "pyproject.toml"):
            shutil.copy(ROOT / name, place)
        names = [""] if full else SMOKE[package.name]
        chosen = [str(copy / "tests" / name) for name in names]
        command = [python, "-P", "-m", "pytest", "-q", *chosen]
        return subprocess.run(command, cwd=place, check=False).returncode == 0


def _requirements(package: Package, dist: Path) -> list[str]:
    """What its tests need, with this package and those below it from their wheels."""
    table = tomllib.loads((ROOT / package.folder / "pyproject.toml").read_text())
    needed = [Requirement(text) for text in table["dependency-groups"]["test"]]
    extras = {requirement.name: ",".join(sorted(requirement.extras)) for requirement in needed}
    wheels = {name: next(dist.glob(f"{name.replace('-', '_')}-*.whl")).resolve() for name in package.needs}
    others = [str(requirement) for requirement in needed if requirement.name not in wheels]
    return [*others, *(f"{name}[{extras.get(name, '')}] @ {path.as_uri()}" for name, path in wheels.items())]


def _installed(python: str) -> list[dict[str, str]]:
    listed = subprocess.run(
        [UV, "pip", "list", "--python", python, "--format", "json"], capture_output=True, check=True
    )
    found: list[dict[str, str]] = json.loads(listed.stdout)
    return found


def _project(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    return table


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


# --- What is said -------------------------------------------------------------------------------------------


def report(plans: Sequence[Plan]) -> str:
    """One line for each package, one for each problem, and the tags that are due, lowest layer first."""
    lines = [f"{'package':<15} {'last release':<24} {'here':<8} since then"]
    for plan in plans:
        since = "everything" if plan.last is None else f"{plan.changes} commits"
        lines.append(f"{plan.package.name:<15} {plan.last or 'none yet':<24} {plan.version!s:<8} {since}")
        lines += [f"  ! {problem}" for problem in plan.problems]
    due = [plan.tag for plan in plans if plan.is_due]
    return "\n".join([*lines, "", f"due, in this order: {' '.join(due) or 'none'}"])


def tag_problems(tag: str, plans: Sequence[Plan], root: Path = ROOT) -> list[str]:
    """Why a tag is not that of a package as it is here, ready to be released."""
    plan = next((each for each in plans if each.tag == tag), None)
    if plan is None:
        return [f"no package has the version of tag {tag}; here are {', '.join(each.tag for each in plans)}"]
    heading = (root / plan.package.folder / "CHANGELOG.md").read_text().split("\n## ")[1]
    unreleased = "(unreleased)" in heading.partition("\n")[0]
    return [f"CHANGELOG.md of {plan.package.name} says (unreleased)"] if unreleased else []


def main() -> int:
    """Print the plan; build, install and test unless told not to. Returns the number of problems."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only-plan", action="store_true", help="build and test nothing")
    parser.add_argument("--full", action="store_true", help="run the whole suites, not a few seconds of each")
    parser.add_argument("--tag", help="release of one package: check that this tag is its due")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where wheels and sdists go")
    chosen = parser.parse_args()
    known = packages()
    plans = [plan_of(package, known) for package in known]
    print(report(plans), flush=True)
    tagged = tag_problems(chosen.tag, plans) if chosen.tag else []
    for problem in tagged:
        print(f"  ! {problem}", flush=True)
    failures = sum(len(plan.problems) for plan in plans) + len(tagged)
    if not chosen.only_plan:
        build(chosen.dist)
        for plan in plans:
            works = passes(plan.package, known, chosen.dist, chosen.full)
            print(f"{plan.package.name} by itself: {'works' if works else 'FAILS'}", flush=True)
            failures += not works
    return failures


if __name__ == "__main__":
    sys.exit(main())
