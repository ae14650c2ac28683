"""One PPO job with this library and by hand with mpi4py: samples a second, lines of code, what a fault shows.

    uv run --group bench python examples/baselines/compare.py [--workers 2] [--steps 10] [--json FILE]

`ppo_group.py` and `ppo_mpi.py` are twins: they share what a rank computes and differ in what brings it the
rows. `verl-ppo` trains the same way with its roles in classes of their own. All draw the same questions and
answers, so their metrics are compared too. Rates are those of the steps alone (without start, warm-up and
evaluation), the first step left out; medians over runs that take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults import KINDS
from lines import code_lines
from programs import PROGRAMS, TWINS, FaultSeen, Run, run, run_with_fault

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parent / "src/verl_examples"
# What only this program has, of the job: not its options, display and plot.
VERL_PPO = (
    *(SOURCE / f"{name}.py" for name in ("driver", "roles", "run")),
    *(SOURCE / f"workers/{name}.py" for name in ("model_worker", "actor", "reference", "critic", "reward")),
)
FILES = {
    "group": (HERE / "ppo_group.py",),
    "mpi": (HERE / "ppo_mpi.py",),
    "both twins": (HERE / "learner.py",),
    "verl-ppo": VERL_PPO,
}
MEANT_TO_AGREE = ("reward", "kl", "actor/loss", "critic/loss", "actor/entropy")


def rate(one: Run) -> float:
    """Samples a second, the median over the steps but the first."""
    return float(statistics.median(record["samples_per_s"] for record in one.records[1:] or one.records))


def largest_difference(runs: Sequence[Run]) -> float:
    """How far the metrics of any two runs lie apart."""
    return max(
        abs(record[name] - first[name])
        for other in runs
        for record, first in zip(other.records, runs[0].records, strict=True)
        for name in MEANT_TO_AGREE
    )


def speed(workers: int, steps: int, rounds: int) -> dict[str, Any]:
    """All programs in turn, `rounds` times."""
    runs: dict[str, list[Run]] = {program: [] for program in PROGRAMS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for program in PROGRAMS:
                done = run(program, workers, steps, Path(folder) / f"{program}-{number}")
                sys.stderr.write(f"{program}, run {number + 1}: {rate(done):.1f} samples/s\n")
                runs[program].append(done)
    rates = {program: [rate(one) for one in done] for program, done in runs.items()}
    medians = {program: statistics.median(found) for program, found in rates.items()}
    return {
        "samples_per_s": {program: [round(one, 1) for one in found] for program, found in rates.items()},
        "median_samples_per_s": {program: round(median, 1) for program, median in medians.items()},
        "ratio_to_mpi": {program: round(median / medians["mpi"], 3) for program, median in medians.items()},
        "ratio_to_mpi_of_each_round": {
            program: [round(ours / theirs, 3) for ours, theirs in zip(found, rates["mpi"], strict=True)]
            for program, found in rates.items()
        },
        "seconds_in_all": {
            program: round(statistics.median(one.seconds for one in done), 1)
            for program, done in runs.items()
        },
        "largest_difference_of_metrics": largest_difference([one for done in runs.values() for one in done]),
    }


def lines() -> dict[str, dict[str, int]]:
    """Lines of code of each file that not all programs have."""
    return {
        program: {str(path.relative_to(HERE.parents[1])): len(code_lines(path.read_text())) for path in paths}
        for program, paths in FILES.items()
    }


def faults(workers: int) -> list[FaultSeen]:
    """Every fault in both twins."""
    seen = []
    for kind in KINDS:
        for program in TWINS:
            with tempfile.TemporaryDirectory() as folder:
                seen.append(run_with_fault(program, workers, kind, Path(folder)))
    return seen


def speed_table(found: dict[str, Any]) -> Iterable[str]:
    yield f"{'program':<12}{'samples/s':>12}{'s in all':>12}{'to mpi':>10}  (aim: at least 1)"
    for program in PROGRAMS:
        median, seconds = found["median_samples_per_s"][program], found["seconds_in_all"][program]
        each = found["ratio_to_mpi_of_each_round"][program]
        yield f"{program:<12}{median:>12.1f}{seconds:>12.1f}{found['ratio_to_mpi'][program]:>10.3f}  {each}"
    yield f"largest difference of metrics: {found['largest_difference_of_metrics']:.2g}"


def lines_table(found: dict[str, dict[str, int]]) -> Iterable[str]:
    yield "lines that carry code (no blanks, comments, docstrings)"
    for program, counts in found.items():
        for name, count in counts.items():
            yield f"  {program:<12}{name:<58}{count:>5}"
    group, by_hand, common = (sum(found[name].values()) for name in ("group", "mpi", "both twins"))
    yield f"group has {group / by_hand:.0%} of the lines of mpi (aim: at most 40 %)"
    yield f"with what both compute: {(group + common) / (by_hand + common):.0%}"


def faults_table(found: Sequence[FaultSeen]) -> Iterable[str]:
    header = ("to message", "to end", "rank", "method", "line")
    yield f"{'fault':<12}{'program':<10}" + "".join(f"{name:>12}" for name in header)
    for one in found:
        message = "unnoticed" if one.seconds_to_message is None else f"{one.seconds_to_message:.2f} s"
        named = [str(name) for name in (one.names_rank, one.names_method, one.names_line)]
        cells = [
            message,
            f"{one.seconds_to_end:.2f} s",
            *("yes" if name == "True" else "no" for name in named),
        ]
        yield f"{one.kind:<12}{one.program:<10}" + "".join(f"{cell:>12}" for cell in cells)


def main() -> int:
    """Measure what was asked for and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program")
    parser.add_argument("--only", choices=("speed", "lines", "faults"), help="one part alone")
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    options = parser.parse_args()
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    # Ray gives its workers a low priority; beside other load they would lose for that reason alone.
    os.environ.setdefault("RAY_worker_niceness", "0")
    numbers: dict[str, Any] = {"workers": options.workers, "steps": options.steps, "cores": os.cpu_count()}
    parts = (options.only,) if options.only else ("lines", "speed", "faults")
    for part in parts:
        if part == "lines":
            numbers[part] = lines()
            text = lines_table(numbers[part])
        elif part == "speed":
            numbers[part] = speed(options.workers, options.steps, options.rounds)
            text = speed_table(numbers[part])
        else:
            seen = faults(options.workers)
            numbers[part] = [asdict(one) for one in seen]
            text = faults_table(seen)
        sys.stdout.write("\n".join([*text, "", ""]))
        sys.stdout.flush()
    if options.json is not None:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
