"""Tables for people: as text, and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

_UNITS = ("B", "kB", "MB", "GB", "TB")


def text_table(head: Sequence[str], rows: Iterable[Sequence[str]], left: Collection[int] = ()) -> str:
    """Lines of aligned cells, numbers to the right.

    Args:
        head: names of the columns.
        rows: their cells.
        left: indices of columns with words, which stand to the left.

    >>> print(text_table(["name", "ms"], [["score", "12.5"], ["fit", "3.0"]], left=(0,)))
    name     ms
    score  12.5
    fit     3.0
    """
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if at in left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def html_table(head: Sequence[str], rows: Iterable[Sequence[str]], title: str = "") -> str:
    """The same as HTML, everything escaped.

    >>> html_table(["name"], [["<b>"]])
    '<table><tr><th>name</th></tr><tr><td>&lt;b&gt;</td></tr></table>'
    """
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    lines = [_html_line("th", head), *(_html_line("td", row) for row in rows)]
    return f"<table>{caption}{''.join(lines)}</table>"


def _html_line(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def amount(num_bytes: float) -> str:
    """Bytes in the largest unit that leaves at least one of it.

    >>> amount(512), amount(65_536), amount(2_000_000_000)
    ('512 B', '65.5 kB', '2.0 GB')
    """
    unit = 0
    while num_bytes >= 1000 and unit < len(_UNITS) - 1:
        num_bytes, unit = num_bytes / 1000, unit + 1
    return f"{num_bytes:.1f} {_UNITS[unit]}" if unit else f"{num_bytes:.0f} B"
