"""Group calls beside the same calls written by hand on Ray: medians and ratios from one run.

`python bench_ray.py [--workers 4] [--rounds 15] [--starts 3] [--json FILE] [--only WORDS]`

Where mpi4py is installed, a column shows the same movements without Ray (rank 0 as the driver); where verl is
installed, or lies in the folder that `--verl` names, another shows the same calls through it.
"""

import argparse
import json
import logging
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
# Ray gives its workers a low priority; beside other load they would lose to MPI for that reason alone.
os.environ.setdefault("RAY_worker_niceness", "0")
# Where no bytecode is kept, a start is for the most part a compilation of torch.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
    os.environ.setdefault("PYTHONPYCACHEPREFIX", str(Path(tempfile.gettempdir()) / "verl_ray_bench_bytecode"))
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import ray
import torch
from benchmark_harness import Aim, Row, comparison, medians_ms
from data_sizes import LARGE_ROWS, SMALL_ROWS, WIDTH, Arrays, with_names
from memory import memory_left
from other_ways import mpi_medians, verl_medians
from plain import PlainGroup
from ppo_step import GroupStep, PlainStep, costs_of, group_of, prompts_of
from startup import startup_rows
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from workers import BenchWorker

MEMORY_ROWS, MEMORY_CALLS = 580, 100


def as_batch(arrays: Arrays) -> DataProto:
    """The same columns as the library's users hold them."""
    return DataProto.from_dict(tensors=as_tensors(arrays), non_tensors={"uid": arrays["uid"]})


def as_tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """The columns of numbers."""
    return {key: torch.from_numpy(array) for key, array in arrays.items() if key != "uid"}


@dataclass(frozen=True)
class Case:
    """One piece of work in both ways, what is aimed at, and its name among the other ways' numbers."""

    work: str
    ours: Callable[[], object]
    plain: Callable[[], object]
    aim: Aim
    other_name: str = ""


class Bench:
    """One plain group and one worker group over the same number of processes, and the work that both do."""

    def __init__(self, num_workers: int) -> None:
        self.plain = PlainGroup(num_workers)
        self.pool = RayResourcePool([num_workers], use_gpu=False)
        self.group: Any = RayWorkerGroup(self.pool, RayClassWithInitArgs(BenchWorker))
        half = max(num_workers // 2, 1)
        self.half_pool = RayResourcePool([half], use_gpu=False)
        self.half: Any = RayWorkerGroup(self.half_pool, RayClassWithInitArgs(BenchWorker))

    def close(self) -> None:
        for part in (self.group, self.half, self.pool, self.half_pool):
            part.shutdown()

    def cases(self) -> Iterator[Case]:
        """All work that is measured call by call."""
        large, small = with_names(LARGE_ROWS), with_names(SMALL_ROWS)
        batch, few = as_batch(large), as_batch(small)
        yield Case(
            "small call", lambda: self.group.ping(1), lambda: self.plain.ping(1), Aim(1.12), "small call"
        )
        yield from self._to_all(large, batch)
        yield from self._split(large, batch, small, few)
        yield from self._futures(large, batch)
        yield from self._steps(1024, 2048, (1.2, 1.35))
        yield from self._steps(256, 1024, (1.35, 1.35))
        yield from self._steps(256, 1024, (1.35, 1.35), image_bytes=200_000)

    def _to_all(self, large: Arrays, batch: DataProto) -> Iterator[Case]:
        plain, group, size = self.plain, self.group, megabytes(large)
        state = {f"layer.{key}": tensor for key, tensor in as_tensors(large).items()}
        arrays = {key: array for key, array in large.items() if key != "uid"}
        for what, given, viewed, written in (
            ("broadcast", large, lambda: group.broadcast_read_only(batch), lambda: group.broadcast(batch)),
            ("state_dict to all", arrays, lambda: group.load_read_only(state), lambda: group.load(state)),
        ):
            read, cloned = partial(plain.broadcast, given), partial(plain.broadcast_and_clone, given)
            yield Case(f"{what} {size}, read-only", viewed, read, Aim(1.15), "broadcast, read-only")
            yield Case(f"{what} {size}, writable", written, cloned, Aim(1.15), "broadcast, writable")

    def _split(self, large: Arrays, batch: DataProto, small: Arrays, few: DataProto) -> Iterator[Case]:
        plain, group, size = self.plain, self.group, megabytes(large)
        yield Case(
            f"split, small answer {size}",
            lambda: group.count(batch),
            lambda: plain.split_and_count(large),
            Aim(1.1),
            "split, small answer",
        )
        for data, arrays, limit, name in (
            (batch, large, 1.1, "split, echo"),
            (few, small, 1.15, "split, echo, small"),
        ):
            yield Case(
                f"split, echo, concat {megabytes(arrays)}",
                partial(group.echo, data),
                partial(plain.split_and_echo, arrays),
                Aim(limit),
                name,
            )

    def _futures(self, large: Arrays, batch: DataProto) -> Iterator[Case]:
        plain, group, half, size = self.plain, self.group, self.half, megabytes(large)
        yield Case(
            f"future into the next call, aligned {size}, read-only",
            lambda: group.count_read_only(group.echo_later(batch)),
            lambda: plain.chain_aligned(large),
            Aim(1.15),
        )
        yield Case(
            f"future into the next call, aligned {size}, writable",
            lambda: group.count(group.echo_later(batch)),
            lambda: plain.chain_aligned_and_clone(large),
            Aim(1.15),
        )
        yield Case(
            f"future into the next call, re-chunked {size}",
            lambda: half.count(group.echo_later(batch)),
            lambda: plain.chain_rechunked(large),
            Aim(1.25),
        )

    def _steps(
        self, rows: int, width: int, limits: tuple[float, float], *, image_bytes: int = 0
    ) -> Iterator[Case]:
        """A step of PPO with columns that stay where they are, beside references wired by hand."""
        group = group_of(self.pool, width, remote=True)
        prompts, size = group.put(prompts_of(rows, image_bytes=image_bytes)), len(self.plain.actors)
        images = f" and {rows * image_bytes / 1e6:.0f} MB of images" if image_bytes else ""
        try:
            for how, writable, limit in zip(("views", "copies"), (False, True), limits, strict=True):
                by_hand = PlainStep(size, rows, width, writable, image_bytes=image_bytes)
                work = f"PPO step of eight calls {step_megabytes(rows, width)}{images}, workers read {how}"
                yield Case(work, GroupStep(group, prompts, width, writable), by_hand, Aim(limit))
                by_hand.close()
        finally:
            group.shutdown()


def step_megabytes(rows: int, width: int) -> str:
    """The size of the columns of a step: two of int64, three of float32."""
    return f"{rows * width * 28 / 1e6:.1f} MB"


def step_rows(pool: Any, rounds: int) -> list[Row]:
    """A step of PPO with remote columns beside the same step with whole batches."""
    rows, width = 1024, 2048
    groups = {name: group_of(pool, width, remote=name == "remote") for name in ("remote", "whole")}
    try:
        steps = {name: GroupStep(group, prompts_of(rows), width, True) for name, group in groups.items()}
        found = costs_of(steps, rounds)
    finally:
        for group in groups.values():
            group.shutdown()
    aims = {"clock": 0.5, "driver CPU": 0.33, "all CPU": 0.55}
    work = f"PPO step of eight calls {step_megabytes(rows, width)}, remote columns"
    return [
        Row(f"{work}, {what}", found["remote"][what], "whole batches", found["whole"][what], Aim(aims[what]))
        for what in aims
    ]


def megabytes(arrays: Arrays) -> str:
    """The size of all numbers."""
    return f"{sum(array.nbytes for key, array in arrays.items() if key != 'uid') / 1e6:.1f} MB"


def measured(case: Case, rounds: int, others: dict[str, dict[str, float]]) -> Row:
    """Ours and the plain way in turn, beside what other ways took."""
    rounds = rounds * 5 if case.work == "small call" else rounds
    found = medians_ms({"ours": case.ours, "plain": case.plain}, rounds, warm_up=4)
    beside = {name: times[case.other_name] for name, times in others.items() if case.other_name in times}
    row = Row(case.work, found["ours"], "plain Ray", found["plain"], case.aim, beside)
    sys.stderr.write(f"{row.work}: {row.ratio:.2f}\n")
    return row


def run(options: argparse.Namespace, others: dict[str, dict[str, float]]) -> tuple[list[Row], dict[str, Any]]:
    """All rows, and what the memory was after many calls."""
    rows = startup_rows(options.workers, options.starts) if options.starts else []
    bench = Bench(options.workers)
    try:
        rows += [
            measured(case, options.rounds, others) for case in bench.cases() if options.only in case.work
        ]
        if options.only in "PPO step of eight calls, remote columns beside whole batches":
            rows += step_rows(bench.pool, options.rounds)
        left = memory_left(bench.group.echo, as_batch(with_names(MEMORY_ROWS)), MEMORY_CALLS)
    finally:
        bench.close()
    return rows, left


def main() -> int:
    """Run the work and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--starts", type=int, default=3, help="measured starts; 0 leaves them out")
    parser.add_argument("--json", type=Path, help="also write the medians to this file")
    parser.add_argument("--only", default="", help="only the calls whose name contains these words")
    parser.add_argument("--verl", metavar="SITE", help="folder that `pip install --target` put verl into")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    others = {
        "MPI": mpi_medians(options.workers, options.rounds, LARGE_ROWS, SMALL_ROWS, WIDTH),
        "verl": verl_medians(options.workers, options.rounds, options.verl),
    }
    others = {name: found for name, found in others.items() if found}
    ray.init(
        num_cpus=2 * options.workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    try:
        rows, left = run(options, others)
    finally:
        ray.shutdown()
    sys.stdout.write(
        f"{options.workers} workers, {os.cpu_count()} cores, load before the run {load:.1f}\n"
        f"{comparison(rows)}\n{memory_text(left)}\n"
    )
    if options.json is not None:
        found = {"load": load, "rows": [row.as_dict() for row in rows], "memory": left}
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    return 0


def memory_text(left: dict[str, Any]) -> str:
    """One sentence."""
    return (
        f"after {left['calls']} blocking calls of {left['batch_mib']:.1f} MiB each way: the store holds "
        f"{left['object_store_after_mib']:.1f} MiB (before: {left['object_store_before_mib']:.1f}), "
        f"the driver has grown by {left['driver_growth_mib']:.1f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
