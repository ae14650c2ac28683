"""Promises of the workspace that uv itself does not check."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
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


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with wheel and sdist of every package."""
    uv = os.environ.get("UV") or shutil.which("uv") or pytest.skip("uv is not there to build with")
    folder = tmp_path_factory.mktemp("dist")
    # Wheels from the sdists, as an installer builds that finds no wheel.
    run(uv, "build", "--quiet", "--all-packages", "--out-dir", str(folder), str(ROOT))
    return folder


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: member.name)
def test_what_is_built_carries_the_licence_and_the_source_also_the_changelog(
    member: Path, built: Path
) -> None:
    licence = (ROOT / "LICENSE").read_bytes()
    name = project(member)["name"].replace("-", "_")
    with zipfile.ZipFile(next(built.glob(f"{name}-*.whl"))) as wheel:
        (file,) = [file for file in wheel.namelist() if file.endswith(".dist-info/licenses/LICENSE")]
        assert wheel.read(file) == licence
    with tarfile.open(next(built.glob(f"{name}-*.tar.gz"))) as sdist:
        folder = sdist.getnames()[0].partition("/")[0]
        for file in ("LICENSE", "CHANGELOG.md"):
            packed = sdist.extractfile(f"{folder}/{file}")
            assert packed is not None
            assert packed.read() == (member / file).read_bytes()


PROGRAM = """
from typing import assert_type

import torch
import verl_ray
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register
from verl_protocol import DataProto


class Doubler(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def double(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"x": data.tensor("x") * 2})


def main() -> None:
    pool = verl_ray.RayResourcePool([2], use_gpu=False)
    with LocalWorkerGroup(Doubler, pool.world_size) as group:
        answer = group.double(DataProto.from_dict({"x": torch.arange(4)}))
    assert_type(answer, DataProto)
    print(answer.tensor("x").tolist(), Doubler.__module__, verl_ray.__file__)
"""
MYPY = """
[mypy]
strict = true
plugins = verl_dispatch.mypy_plugin
[mypy-torch.*,tensordict.*,numpy.*,ray.*,safetensors.*]
follow_imports = skip
"""
"""What others ship takes a minute to read, and is not what is looked at."""


@pytest.fixture(scope="module")
def elsewhere(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder outside the workspace with an environment of the wheels; what they need comes from ours."""
    uv, folder = os.environ.get("UV") or shutil.which("uv") or "uv", tmp_path_factory.mktemp("elsewhere")
    run(uv, "venv", "--quiet", "--no-project", "--python", sys.executable, str(folder / "environment"))
    wheels = sorted(map(str, built.glob("*.whl")))
    python = str(folder / "environment/bin/python")
    run(uv, "pip", "install", "--quiet", "--offline", "--no-deps", "--python", python, *wheels)
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder)
    # Only a folder to look in: of the packages that are linked there, and not copied, nothing is seen.
    (Path(packages.stdout.strip()) / "others.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (folder / "mypy.ini").write_text(MYPY)
    (folder / "program.py").write_text(PROGRAM + "\n\nmain()\n")
    return folder


def run(*command: str, cwd: Path = ROOT, returncode: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == returncode, done.stdout + done.stderr
    return done


def test_wheels_work_outside_the_workspace(elsewhere: Path) -> None:
    done = run(str(elsewhere / "environment/bin/python"), "-P", "program.py", cwd=elsewhere)
    answer, _, place = done.stdout.rpartition(" __main__ ")
    assert answer == "[0, 2, 4, 6]"
    assert Path(place).is_relative_to(elsewhere)


def test_type_checkers_find_the_types_of_wheels(elsewhere: Path) -> None:
    mypy = (str(elsewhere / "environment/bin/python"), "-P", "-m", "mypy")
    assert "Success" in run(*mypy, "program.py", cwd=elsewhere).stdout
    wrong = "    number: int = answer\n    group.double(3)\n    verl_ray.nothing()\n"
    (elsewhere / "wrong.py").write_text(PROGRAM + wrong)
    said = run(*mypy, "wrong.py", cwd=elsewhere, returncode=1).stdout
    kinds = re.findall(r"\[([\w-]+)\]$", said, re.MULTILINE)
    assert kinds == ["assignment", "arg-type", "attr-defined"], said


def test_pre_commit_checks_what_just_lint_checks() -> None:
    hooks = re.findall(r"^ +entry: (.*)$", (ROOT / ".pre-commit-config.yaml").read_text(), re.MULTILINE)
    recipe = re.search(r"^lint:\n((?:    .*\n)+)", (ROOT / "justfile").read_text(), re.MULTILINE)
    assert recipe is not None
    assert hooks == [line.strip() for line in recipe[1].splitlines()]


def test_recipes_hand_on_arguments_as_they_were_given() -> None:
    text = (ROOT / "justfile").read_text()
    assert "\nset positional-arguments\n" in text
    # Put into the line they would be split at every blank: `just bench ray --only "small call"`.
    assert re.findall(r"\{\{ *ARGS *\}\}", text) == []
    assert len(re.findall(r"^[a-z-]+ .*\*ARGS:$", text, re.MULTILINE)) == text.count(' "$@"') - 1


def test_a_benchmark_that_is_not_there_is_refused_before_ray_starts() -> None:
    bench = (sys.executable, "tests/tools/bench.py", "ray", "--only", "unknown")
    done = subprocess.run(bench, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "--only is 'unknown', expected words of one of: small call; " in done.stderr
    assert (done.returncode, done.stdout) == (1, "")
    assert "Started a local Ray instance" not in done.stderr


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
