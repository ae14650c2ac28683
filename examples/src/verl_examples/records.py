"""What a run leaves behind: `metrics.jsonl` and `learning.png`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
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

    def __init__(self, file: TextIO) -> None:
        self.accuracy_before = 0.0
        self.steps: list[StepReport] = []
        self._file = file

    def add(self, report: StepReport) -> None:
        """Take a step, and append its line."""
        self.steps.append(report)
        write_record(self._file, metrics_record(report))


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
