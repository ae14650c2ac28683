"""Every Python block of the README and the guides runs, and prints what the page says that it prints.

Fragments that are not meant to run stand in blocks marked `py`.
"""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("README.md", "docs/*.md", "packages/*/README.md", "examples/README.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
BLOCK = re.compile(
    r"^```python\n(?P<code>.*?)^```\n"
    r"(?:\s*(?:It prints|Prints|which prints)[^\n]*\n+```text\n(?P<prints>.*?)^```)?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Program:
    """The Python blocks of a page up to one that says what is printed; they share a namespace."""

    page: Path
    number: int
    code: str
    prints: str | None

    @property
    def label(self) -> str:
        return f"{self.page.relative_to(ROOT)}-{self.number}"


def programs(page: Path) -> list[Program]:
    found: list[Program] = []
    code = ""
    for match in BLOCK.finditer(page.read_text()):
        code += match["code"] + "\n"
        if match["prints"] is not None:
            found.append(Program(page, len(found), code, match["prints"]))
            code = ""
    if code:
        found.append(Program(page, len(found), code, None))
    return found


PROGRAMS = [program for page in PAGES for program in programs(page)]


def test_the_readme_shows_a_program_and_what_it_prints() -> None:
    assert any(program.page.name == "README.md" and program.prints for program in PROGRAMS)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.label)
def test_program_runs_and_prints_what_the_page_says(program: Program, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(program.code)
    # Each program starts a Ray of its own, whatever runs on this machine.
    environment = os.environ | {"RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0", "RAY_ADDRESS": "local"}
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if program.prints is not None:
        assert done.stdout == program.prints


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


@pytest.mark.parametrize("package", ["verl_protocol", "verl_dispatch", "verl_ray"])
def test_the_architecture_names_every_file_in_its_room(package: str) -> None:
    there = {str(path.relative_to(sources(package))) for path in sources(package).rglob("*.py")}
    needed = {
        path for path in there if not path.startswith("conformance/") and not path.endswith("__init__.py")
    }
    named = rooms_of(package)
    assert needed - named == set()
    assert named - there == set()
