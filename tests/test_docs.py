"""Every program of the README, the guides and the tour runs, and prints what the page says that it prints.

Fragments that are not meant to run stand in blocks marked `py`. Programs run in this process, those on Ray on
one cluster; the README's first one also by itself, as a reader runs it.
"""

import contextlib
import importlib
import io
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# Under `uv run` Ray would start its workers through uv again; this must be set before `import ray`.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"

import ray

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("README.md", "CONTRIBUTING.md", "docs/*.md", "packages/*/README.md", "examples/README.md")
PAGES = [page for pattern in PATTERNS for page in sorted(ROOT.glob(pattern))]
PACKAGES = ("verl_protocol", "verl_dispatch", "verl_ray")
TOUR = sorted(path for path in (ROOT / "examples/tour").glob("*.py") if path.stem != "__main__")
BLOCK = re.compile(
    r"^```(?:python|\{literalinclude\} (?P<file>\S+\.py))\n(?P<code>.*?)^```\n"
    r"(?:\s*(?:It prints|Prints|which prints)[^\n]*\n+```text\n(?P<prints>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Program:
    """The Python blocks of a page up to one that says what is printed, which share a namespace; or a file."""

    page: Path
    name: str
    code: str
    prints: str | None

    @property
    def label(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.name}"


def programs(page: Path) -> list[Program]:
    found: list[Program] = []
    code = ""
    for match in BLOCK.finditer(page.read_text()):
        if file := match["file"]:
            found.append(Program(page, Path(file).stem, (page.parent / file).read_text(), match["prints"]))
            continue
        code += match["code"] + "\n"
        if match["prints"] is not None:
            found.append(Program(page, str(len(found)), code, match["prints"]))
            code = ""
    if code:
        found.append(Program(page, str(len(found)), code, None))
    return found


FIRST, *PROGRAMS = [program for page in PAGES for program in programs(page)]


@pytest.fixture(scope="module")
def one_ray() -> Iterator[None]:
    """A Ray for all programs of this module, whatever else runs on this machine."""
    ray.init(
        address="local",
        num_cpus=6,
        include_dashboard=False,
        log_to_driver=False,
        ignore_reinit_error=True,
    )
    yield
    ray.shutdown()


def output_of(script: Path) -> str:
    """What a program prints that is run in this process as if it were the only one, without Ray's remarks."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    return re.sub(r".*\(raylet\).*\n", "", printed.getvalue())


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.label)
def test_program_runs_and_prints_what_the_page_says(
    program: Program, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text(program.code)
    if "verl_ray" in program.code:
        request.getfixturevalue("one_ray")
        monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(sys, "breakpointhook", lambda: None)
    monkeypatch.chdir(tmp_path)
    printed = output_of(script)
    assert program.prints is None or printed == program.prints


def test_the_first_program_of_the_readme_runs_by_itself(tmp_path: Path) -> None:
    assert FIRST.page == ROOT / "README.md"
    (tmp_path / "mine.py").write_text(FIRST.code)
    environment = os.environ | {"RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, "mine.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == FIRST.prints


def test_every_example_of_the_tour_is_short_and_shown_with_what_it_prints() -> None:
    shown = {program.name for program in programs(ROOT / "docs/tour.md") if program.prints}
    assert shown == {path.stem for path in TOUR}
    assert [path.stem for path in TOUR if len(path.read_text().splitlines()) > 40] == []


def test_the_pictures_are_those_of_today() -> None:
    drawn = runpy.run_path(str(ROOT / "docs/draw.py"))["pictures"]()
    assert {path.stem: path.read_text() for path in (ROOT / "docs/pictures").glob("*.svg")} == drawn


def test_a_breakpoint_in_a_method_of_a_local_group_stops_in_each_rank(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: ranks.append(sys._getframe(1).f_locals["self"].rank))
    output_of(ROOT / "examples/tour/local_group.py")
    assert ranks == [0, 1, 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert [target for target in targets if not (page.parent / target).exists()] == []


def rooms_of(package: str) -> set[str]:
    """The files of a package that docs/architecture.md names, by their paths."""
    page = (ROOT / "docs/architecture.md").read_text()
    section = re.split(r"^##+ ", page.split(f"### {package}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    named, room = set(), ""
    for row in re.findall(r"^\|(.*)\|$", section, re.MULTILINE)[2:]:
        first, files = row.split("|")[:2]
        # A file that stands in no room follows an empty cell at the top, or after the last room.
        room = first.strip() or room
        for file in re.findall(r"`(\w+\.py)`", files):
            places = [f"{room}/{file}", file] if room else [file]
            named.add(next((place for place in places if (sources(package) / place).exists()), places[0]))
    return named


def sources(package: str) -> Path:
    return ROOT / "packages" / package.replace("_", "-") / "src" / package


@pytest.mark.parametrize("package", PACKAGES)
def test_the_architecture_names_every_file_in_its_room(package: str) -> None:
    there = {str(path.relative_to(sources(package))) for path in sources(package).rglob("*.py")}
    needed = {
        path for path in there if not path.startswith("conformance/") and not path.endswith("__init__.py")
    }
    named = rooms_of(package)
    assert needed - named == set()
    assert named - there == set()


def test_every_name_of_the_porting_guide_is_where_it_says() -> None:
    page = (ROOT / "docs/porting.md").read_text()
    rows = re.findall(r"^- `verl[\w`., ]* → `(verl_[\w.]+)`: (.*)$", page, re.MULTILINE)
    assert len(rows) == 5
    named = [(module, name) for module, names in rows for name in re.findall(r"`(\w+)`", names)]
    assert [each for each in named if not hasattr(importlib.import_module(each[0]), each[1])] == []


def test_every_error_has_its_cause_and_remedy() -> None:
    page = (ROOT / "docs/errors.md").read_text()
    modules = [importlib.import_module(f"{package}.errors") for package in PACKAGES]
    named = {name for module in modules for name, value in vars(module).items() if is_error(value)}
    assert [name for name in sorted(named) if f"`{name}`" not in page] == []


def is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)
