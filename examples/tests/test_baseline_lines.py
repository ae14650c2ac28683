"""The rule by which the comparison counts lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "baselines"))

from lines import code_lines

PROGRAM = '''"""What it is.

More of it.
"""

import os  # the system

# only a comment


class Part:
    """A part."""

    name = """two
lines"""

    def size(self) -> int:
        """How large."""
        return len(
            # inside
            self.name
        )


def nothing() -> None:
    """Only words."""
'''


def test_blanks_comments_and_docstrings_do_not_count() -> None:
    code = ["import os  # the system", "class Part:", '    name = """two', 'lines"""']
    code += ["    def size(self) -> int:", "        return len(", "            self.name", "        )"]
    lines = PROGRAM.splitlines()
    assert [lines[number - 1] for number in sorted(code_lines(PROGRAM))] == [*code, "def nothing() -> None:"]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", set()),
        ("\n\n", set()),
        ('"""only words"""', set()),
        ('x = """a\n\nb"""', {1, 2, 3}),
        ('def f():\n    """words"""; return 1', {1}),
        ("x = [\n    1,\n\n    2,\n]", {1, 2, 4, 5}),
    ],
)
def test_edges(source: str, expected: set[int]) -> None:
    assert code_lines(source) == expected
