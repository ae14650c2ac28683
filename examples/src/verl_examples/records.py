"""What a run leaves behind: `metrics.jsonl` and `learning.png`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TextIO

from verl_examples.report import StepReport

_REWARD, _ACCURACY = "mean reward of sampled answers", "accuracy on held-out questions"


def metrics_record(report: StepReport) -> dict[str, Any]:
    """One line of `metrics.jsonl`: all but `samples_per_s` follows from the settings."""
    record = asdict(report)
    metrics: dict[str, float] = record.pop("metrics")
    return record | metrics


def write_record(file: TextIO, record: dict[str, Any]) -> None:
    """Append a line at once, so that a stopped run keeps what it learnt."""
    file.write(json.dumps(record) + "\n")
    file.flush()


class Records:
    """What a run has measured so far, written step by step."""

    def __init__(self, path: Path, steps: Sequence[StepReport] = ()) -> None:
        self.accuracy_before = 0.0
        self.steps = list(steps)
        self._path = path

    @classmethod
    def read(cls, path: Path) -> Records:
        """Those of an earlier run, to go on with."""
        return cls(path, [_report(json.loads(line)) for line in path.read_text("utf-8").splitlines()])

    def add(self, report: StepReport) -> None:
        """Take a step, and append its line at once, so that a stopped run keeps what it learnt."""
        self.steps.append(report)
        with self._path.open("a", encoding="utf-8") as file:
            write_record(file, metrics_record(report))

    def rewind(self, step: int) -> None:
        """Forget what came after a step."""
        self.steps = [report for report in self.steps if report.step <= step]
        lines = [json.dumps(metrics_record(report)) + "\n" for report in self.steps]
        unfinished = self._path.with_suffix(".unfinished")
        unfinished.write_text("".join(lines), encoding="utf-8")
        unfinished.replace(self._path)


@contextmanager
def kept_records(folder: Path, title: str, *, resume: bool = False) -> Iterator[Records]:
    """Records in a folder, with a picture of them however the block ends; with `resume` those there go on."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    records = Records.read(path) if resume else Records(path)
    if not resume:
        records.rewind(0)
    try:
        yield records
    finally:
        if records.steps:
            plot_learning(folder / "learning.png", records.steps, records.accuracy_before, title)


def _report(record: dict[str, Any]) -> StepReport:
    own = {field.name: record.pop(field.name) for field in fields(StepReport) if field.name != "metrics"}
    return StepReport(**own, metrics=record)


def plot_learning(path: Path, reports: Sequence[StepReport], accuracy_before: float, title: str) -> None:
    """Draw mean reward and held-out accuracy over the steps."""
    # Only the end of a run needs it, and it takes a second to import.
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    measured = [(0, accuracy_before)] + [(r.step, r.accuracy) for r in reports if r.accuracy is not None]
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    axes.plot([r.step for r in reports], [r.reward for r in reports], color="tab:blue", label=_REWARD)
    axes.plot(*zip(*measured, strict=True), color="tab:orange", marker="o", label=_ACCURACY)
    axes.set(xlabel="step", ylabel="share of right answers", title=title)
    axes.set(xlim=(0, max(1, len(reports))), ylim=(0, 1.02))
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=150)
    plt.close(figure)
