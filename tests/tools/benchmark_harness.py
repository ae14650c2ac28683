"""What the benchmarks of all layers share: works that take turns, medians, aims and tables."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from verl_protocol import tables

Work = Callable[[], object]


@dataclass(frozen=True)
class Aim:
    """The most that a work may take: so many milliseconds, or so many times its baseline."""

    limit: float
    unit: Literal["ms", "x"] = "x"

    def __str__(self) -> str:
        return f"<= {self.limit:g} {self.unit}"


@dataclass(frozen=True)
class Row:
    """One line of a table: median milliseconds of a work beside its baseline's, and what is aimed at.

    Attributes:
        others: medians of further ways to do the same work, by their names.
    """

    work: str
    milliseconds: float
    baseline: str
    baseline_milliseconds: float
    aim: Aim | None = None
    others: Mapping[str, float] | None = None

    @property
    def ratio(self) -> float:
        """How many baselines the work takes."""
        return self.milliseconds / self.baseline_milliseconds

    @property
    def share_of_aim(self) -> float | None:
        """1 or less where the aim is met; None without an aim."""
        if self.aim is None:
            return None
        return (self.ratio if self.aim.unit == "x" else self.milliseconds) / self.aim.limit

    def as_dict(self) -> dict[str, Any]:
        """All numbers, for a JSON file."""
        return asdict(self) | {"ratio": self.ratio, "share_of_aim": self.share_of_aim}


def medians_ms(
    works: Mapping[str, Work], rounds: int, *, warm_up: int = 2, calls_per_round: int = 1
) -> dict[str, float]:
    """Median milliseconds of a call of each work.

    The works take turns, so that drift of the machine hits all alike, in another order each round, for one
    leaves the caches to the next; what they return is let go of outside the measured time; the first
    `warm_up` rounds are thrown away.
    """
    times: dict[str, list[float]] = {name: [] for name in works}
    order, shuffled = list(works), random.Random(0)
    for turn in range(warm_up + rounds):
        shuffled.shuffle(order)
        for name in order:
            elapsed = _milliseconds(works[name], calls_per_round)
            if turn >= warm_up:
                times[name].append(elapsed / calls_per_round)
    return {name: statistics.median(found) for name, found in times.items()}


def _milliseconds(work: Work, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls - 1):
        work()
    result = work()
    elapsed = time.perf_counter() - start
    del result
    return elapsed * 1e3


def comparison(rows: Sequence[Row]) -> str:
    """Rows as a table: times, ratio, aim, and how much of what the aim allows was used."""
    others = sorted({name for row in rows for name in row.others or {}})
    lines = [["work", "ms", "baseline", "ms", "ratio", "aim", "of aim", *(f"{name} ms" for name in others)]]
    for row in rows:
        share = row.share_of_aim
        line = [row.work, f"{row.milliseconds:.3f}", row.baseline, f"{row.baseline_milliseconds:.3f}"]
        line += [f"{row.ratio:.2f}", "-" if row.aim is None else str(row.aim)]
        line.append("-" if share is None else f"{share:.0%}")
        lines.append(line + [_time((row.others or {}).get(name)) for name in others])
    return text_table(lines)


def _time(milliseconds: float | None) -> str:
    return "-" if milliseconds is None else f"{milliseconds:.3f}"


def text_table(lines: Sequence[Sequence[str]]) -> str:
    """Cells as aligned text: the first column to the left, numbers to the right."""
    head, *rows = lines
    columns = enumerate(zip(*lines, strict=True))
    words = [at for at, column in columns if not at or not any(cell[:1].isdigit() for cell in column)]
    return tables.text_table(head, rows, words)


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells as a table of a Markdown page."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows))


def put_into_page(page: Path, name: str, table: str) -> None:
    """Write the table into the page, between the marks of this name."""
    begin, end = f"<!-- table of {name}: begin -->", f"<!-- table of {name}: end -->"
    before, rest = page.read_text().split(begin)
    _, after = rest.split(end)
    page.write_text(f"{before}{begin}\n{table}\n{end}{after}")


def rows_in_page(page: Path, name: str) -> list[list[str]]:
    """The cells below the head of the table between the marks of this name."""
    _, _, rest = page.read_text().partition(f"<!-- table of {name}: begin -->")
    lines = rest.partition("<!--")[0].strip().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
