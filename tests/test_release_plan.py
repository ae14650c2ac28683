"""What the plan of a release says about a package, its history and its siblings."""

import subprocess
from pathlib import Path

import pytest
from affected import packages
from release_plan import Plan, plan_of, report, tag_problems

STUB = "from low.code import count as count\n"
CODE = "def count(rows, start=0):\n    return len(rows) + start\n"


class Workspace:
    """A git repository with a package `low` and a package `high` that needs it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.write("pyproject.toml", '[tool.uv.workspace]\nmembers = ["packages/*"]\n')
        self.version("low", "0.1.0")
        self.version("high", "0.1.0", 'dependencies = ["low>=0.1,<0.2"]')
        self.write("packages/low/src/low/__init__.py", "")
        self.write("packages/low/src/low/__init__.pyi", STUB)
        self.write("packages/low/src/low/code.py", CODE)
        self.git("init", "--quiet")
        self.commit()

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def version(self, name: str, version: str, more: str = "") -> None:
        self.write(
            f"packages/{name}/pyproject.toml", f'[project]\nname = "{name}"\nversion = "{version}"\n{more}\n'
        )
        self.write(f"packages/{name}/CHANGELOG.md", f"# Changelog\n\n## {version}\n\n- Something.\n")

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=tests", "-c", "user.email=tests@localhost", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=self.root, check=True)

    def commit(self) -> None:
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "a change")

    def release(self, tag: str) -> None:
        self.git("tag", tag)
        self.commit()

    def plans(self) -> dict[str, Plan]:
        known = packages(self.root)
        return {package.name: plan_of(package, known, self.root) for package in known}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path)


def test_before_the_first_release_everything_is_due_lowest_layer_first(workspace: Workspace) -> None:
    plans = workspace.plans()
    assert [(plan.last, plan.problems) for plan in plans.values()] == [(None, ()), (None, ())]
    assert report([*plans.values()]).endswith("due, in this order: low-v0.1.0 high-v0.1.0")


def test_a_release_makes_a_package_due_again_only_once_it_changes(workspace: Workspace) -> None:
    workspace.release("low-v0.1.0")
    assert not workspace.plans()["low"].is_due
    workspace.write("packages/low/tests/test_low.py", "")
    workspace.commit()
    assert not workspace.plans()["low"].is_due
    workspace.write("packages/low/src/low/more.py", "")
    workspace.commit()
    assert workspace.plans()["low"].changes == 1


def test_a_change_needs_a_newer_version(workspace: Workspace) -> None:
    workspace.release("low-v0.1.0")
    workspace.write("packages/low/src/low/more.py", "")
    workspace.commit()
    (problem,) = workspace.plans()["low"].problems
    assert "0.1.0 is not newer than low-v0.1.0" in problem


def test_the_newest_release_is_by_number_and_not_the_one_under_way(workspace: Workspace) -> None:
    for tag in ("low-v0.9.0", "low-v0.10.0"):
        workspace.release(tag)
    workspace.git("tag", "low-v0.11.0")
    assert workspace.plans()["low"].last == "low-v0.10.0"


@pytest.mark.parametrize(
    ("changelog", "said"),
    [("# Changelog\n", "'nothing'"), ("## 0.2.0\n", "'0.2.0'"), ("## 0.1.0\n\n", "says nothing")],
)
def test_the_version_is_in_the_changelog_with_something_to_say(
    workspace: Workspace, changelog: str, said: str
) -> None:
    workspace.write("packages/low/CHANGELOG.md", changelog)
    (problem,) = workspace.plans()["low"].problems
    assert said in problem


def test_bounds_admit_the_siblings_that_are_here(workspace: Workspace) -> None:
    workspace.version("low", "0.2.0")
    (problem,) = workspace.plans()["high"].problems
    assert "does not admit low 0.2.0" in problem


BREAKS = {
    "a parameter goes": ("code.py", CODE.replace(", start=0", "").replace(" + start", "")),
    "a name goes": ("__init__.pyi", ""),
}


@pytest.mark.parametrize("change", BREAKS)
@pytest.mark.parametrize(("version", "num_problems"), [("0.1.1", 1), ("0.2.0", 0)])
def test_a_patch_breaks_no_public_name(
    workspace: Workspace, change: str, version: str, num_problems: int
) -> None:
    workspace.release("low-v0.1.0")
    workspace.version("low", version)
    file, text = BREAKS[change]
    workspace.write(f"packages/low/src/low/{file}", text)
    workspace.commit()
    problems = workspace.plans()["low"].problems
    assert len(problems) == num_problems
    assert all("count" in problem for problem in problems)


def test_a_tag_is_that_of_a_package_whose_changelog_is_closed(workspace: Workspace) -> None:
    plans = [*workspace.plans().values()]
    assert tag_problems("low-v0.1.0", plans, workspace.root) == []
    assert "low-v0.1.0" in tag_problems("low-v0.2.0", plans, workspace.root)[0]
    workspace.write("packages/low/CHANGELOG.md", "# Changelog\n\n## 0.1.0 (unreleased)\n\n- Something.\n")
    assert "(unreleased)" in tag_problems("low-v0.1.0", plans, workspace.root)[0]
