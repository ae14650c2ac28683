"""What a run shows while it goes: a live line on a terminal, now and then a line elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from statistics import mean

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from verl_examples.report import StepReport


def console() -> Console:
    """Progress goes to stderr, so that stdout holds the result alone."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def shown(
    reports: Iterable[StepReport], num_steps: int, accuracy: float, screen: Console
) -> Iterator[StepReport]:
    """Pass reports on while showing them; `accuracy` was measured before the first step."""
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        task = bar.add_task(f"step 0/{num_steps}  accuracy {accuracy:.3f}", total=num_steps)
        seconds_a_sample: list[float] = []
        for report in reports:
            seconds_a_sample.append(1 / report.samples_per_s)
            measured = report.accuracy is not None
            accuracy = accuracy if report.accuracy is None else report.accuracy
            # Every step has as many samples: the rate of all steps so far, not of the last one.
            line = _line(report, num_steps, accuracy, 1 / mean(seconds_a_sample))
            bar.update(task, completed=report.step, description=f"{line}{_by_role(report)}")
            if measured:
                bar.console.print(line)
            yield report


def _line(report: StepReport, num_steps: int, accuracy: float, samples_per_s: float) -> str:
    line = (
        f"step {report.step:>4}/{num_steps}  reward {report.reward:.3f}  accuracy {accuracy:.3f}"
        f"  KL {report.kl:.4f}  {samples_per_s:6.0f} samples/s"
    )
    if (tokens_per_s := report.metrics.get("tokens_per_s")) is not None:
        line += f"  {tokens_per_s:6.0f} tokens/s"
    return line


def _by_role(report: StepReport) -> str:
    """A second line, where the seconds of each role are known."""
    prefix = "seconds/"
    spent = {name: value for name, value in report.metrics.items() if name.startswith(prefix)}
    parts = [f"{name.removeprefix(prefix)} {value:.2f} s" for name, value in spent.items()]
    return "\n[dim]" + "  ".join(parts) if parts else ""
