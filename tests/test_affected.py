"""CI's matrix follows the packages that the workspace has, and its path filter what they need."""

import tomllib
from pathlib import Path

import pytest
from affected import PYTHONS, affected, matrix, packages

ROOT = Path(__file__).resolve().parents[1]
ALL = ["verl-protocol", "verl-dispatch", "verl-ray", "verl-examples"]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["packages/verl-protocol/src/verl_protocol/batch.py"], ALL),
        (["packages/verl-dispatch/README.md"], ALL[1:]),
        (["packages/verl-ray/tests/test_x.py", "docs/index.md"], ALL[2:]),
        (["packages/verl-ray/a.py", "packages/verl-dispatch/a.py"], ALL[1:]),
        (["examples/src/verl_examples/cli.py", "README.md"], ["verl-examples"]),
        (["uv.lock"], ALL),
        (["conftest.py"], ALL),
        ([".github/workflows/ci.yml"], ALL),
        (["docs/modes.md", "README.md"], []),
        ([], []),
    ],
)
def test_change_reaches_what_needs_it(paths: list[str], expected: list[str]) -> None:
    assert [package.name for package in affected(paths, packages())] == expected


def test_a_new_folder_is_in_the_matrix(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.uv.workspace]\nmembers = ["packages/*"]\n')
    for name, needs in {"verl-new": '"verl-base>=0.1,<0.2", "numpy>=1"', "verl-base": ""}.items():
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(f'[project]\nname = "{name}"\ndependencies = [{needs}]\n')
    found = packages(tmp_path)
    assert [(package.name, package.folder) for package in found] == [
        ("verl-base", "packages/verl-base"),
        ("verl-new", "packages/verl-new"),
    ]
    assert affected(["packages/verl-base/README.md"], found) == found
    assert {row["folder"] for row in matrix(found)} == {"packages/verl-base", "packages/verl-new"}


def test_matrix_has_every_python_and_the_oldest_dependencies() -> None:
    rows = matrix(packages())
    assert {row["package"] for row in rows} == set(ALL)
    for name in ALL:
        own = [(row["python"], row["resolution"]) for row in rows if row["package"] == name]
        assert own == [*((python, "highest") for python in PYTHONS), ("3.11", "lowest-direct")]


def test_matrix_begins_at_the_oldest_python_that_the_packages_take() -> None:
    for package in packages():
        project = tomllib.loads((ROOT / package.folder / "pyproject.toml").read_text())["project"]
        assert project["requires-python"] == f">={PYTHONS[0]}"
