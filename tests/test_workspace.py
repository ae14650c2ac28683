"""Promises of the workspace that uv itself does not check."""

import os
import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
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


def test_the_root_installs_every_member_from_the_workspace() -> None:
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert set(root["project"]["dependencies"]) == set(VERSIONS)
    assert root["tool"]["uv"]["sources"] == {name: {"workspace": True} for name in VERSIONS}
    assert {"verl-protocol", "verl-dispatch", "verl-ray", "verl-examples"} <= set(VERSIONS)


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
    # A copy, for uv packs no link.
    assert (member / "LICENSE").read_text() == (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_metadata_say_what_it_is_and_whose(member: Path) -> None:
    about = project(member)
    needed = ("description", "readme", "license", "authors", "keywords", "classifiers", "urls")
    assert [key for key in needed if not about.get(key)] == []
    assert "Typing :: Typed" in about["classifiers"]
    assert about["urls"]["Changelog"].endswith(f"/{member.relative_to(ROOT)}/CHANGELOG.md")


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_what_is_built_carries_the_licence_and_the_source_also_the_changelog(
    member: Path, tmp_path: Path
) -> None:
    uv = os.environ.get("UV") or shutil.which("uv") or pytest.skip("uv is not there to build with")
    # From the sdist, as an installer builds that finds no wheel.
    subprocess.run([uv, "build", "--quiet", "--out-dir", str(tmp_path), str(member)], check=True)
    licence = (ROOT / "LICENSE").read_bytes()
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(".dist-info/licenses/LICENSE")]
        assert wheel.read(name) == licence
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as sdist:
        folder = sdist.getnames()[0].partition("/")[0]
        for file in ("LICENSE", "CHANGELOG.md"):
            packed = sdist.extractfile(f"{folder}/{file}")
            assert packed is not None
            assert packed.read() == (member / file).read_bytes()


def test_pre_commit_checks_what_just_lint_checks() -> None:
    hooks = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    recipe = re.search(r"^lint:\n((?:    .*\n)+)", (ROOT / "justfile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert hooks == [line.strip() for line in recipe[1].splitlines()]


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
        and (ROOT / name).suffix in {".py", ".md", ".toml", ".yml", ".yaml", ""}
        and (ROOT / name).is_file()
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1)
        if machine_path.search(line)
    ]
    assert found == []
