"""Promises of the workspace that uv itself does not check."""

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
MEMBERS = sorted(
    path.parent for path in [*ROOT.glob("packages/*/pyproject.toml"), ROOT / "examples/pyproject.toml"]
)


def project(member: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((member / "pyproject.toml").read_text())["project"]
    return table


VERSIONS = {project(member)["name"]: Version(project(member)["version"]) for member in MEMBERS}


def sibling_requirements(member: Path) -> list[Requirement]:
    requirements = [Requirement(text) for text in project(member)["dependencies"]]
    return [requirement for requirement in requirements if requirement.name in VERSIONS]


def test_all_four_packages_are_members() -> None:
    assert set(VERSIONS) == {"verl-protocol", "verl-dispatch", "verl-ray", "verl-examples"}


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_sibling_bounds_exist_and_admit_the_current_version(member: Path) -> None:
    for requirement in sibling_requirements(member):
        operators = {specifier.operator for specifier in requirement.specifier}
        assert operators == {">=", "<"}, f"{member.name}: {requirement} needs a lower and an upper bound"
        assert requirement.specifier.contains(VERSIONS[requirement.name]), f"{member.name}: {requirement}"


def test_every_package_above_the_protocol_names_its_siblings() -> None:
    names = {member.name: {r.name for r in sibling_requirements(member)} for member in MEMBERS}
    assert names["verl-protocol"] == set()
    assert "verl-protocol" in names["verl-dispatch"]
    assert "verl-dispatch" in names["verl-ray"]


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_each_package_is_complete(member: Path) -> None:
    (module,) = (member / "src").iterdir()
    for needed in ("README.md", "CHANGELOG.md", "tests", f"src/{module.name}/py.typed"):
        assert (member / needed).exists(), f"{member.name} lacks {needed}"
    assert str(VERSIONS[project(member)["name"]]) in (member / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_build_backend_has_an_upper_bound(member: Path) -> None:
    build = tomllib.loads((member / "pyproject.toml").read_text())["build-system"]
    (backend,) = [Requirement(text) for text in build["requires"]]
    assert any(specifier.operator == "<" for specifier in backend.specifier)


def test_files_speak_of_the_project_alone() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    machine_path = re.compile(r"(?<![\w.$}/-])/(work|root|home/\w+)/")
    found = [
        f"{name}:{number}"
        for name in tracked
        if name != "uv.lock"
        and (ROOT / name).suffix in {".py", ".md", ".toml", ".yml", ""}
        and (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if machine_path.search(line)
    ]
    assert found == []
