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
from contextlib import ExitStack
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
STEP_COSTS = "PPO step of eight calls, remote columns beside whole batches"


def as_batch(arrays: Arrays) -> DataProto:
    """The same columns as the library's users hold them."""
    return DataProto.from_dict(tensors=as_tensors(arrays), non_tensors={"uid": arrays["uid"]})


def as_tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    """The columns of numbers."""
    return {key: torch.from_numpy(array) for key, array in arrays.items() if key != "uid"}


Work = Callable[[], object]


class Bench:
    """One plain group and one worker group over the same number of processes."""

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


@dataclass(frozen=True)
class Case:
    """One piece of work, what is aimed at, and its name among the other ways' numbers.

    Attributes:
        ways: given the groups, ours and the plain way to do it; called in a block that ends what it started.
    """

    work: str
    ways: Callable[[Bench, ExitStack], tuple[Work, Work]]
    aim: Aim
    other_name: str = ""


def cases() -> Iterator[Case]:
    """All work that is measured call by call, known before anything is started."""
    large, small = with_names(LARGE_ROWS), with_names(SMALL_ROWS)
    batch, few = as_batch(large), as_batch(small)

    def case(
        work: str,
        ours: Callable[[Bench], object],
        plain: Callable[[PlainGroup], object],
        limit: float,
        other_name: str = "",
    ) -> Case:
        def ways(bench: Bench, _: ExitStack) -> tuple[Work, Work]:
            return partial(ours, bench), partial(plain, bench.plain)

        return Case(work, ways, Aim(limit), other_name)

    yield case(
        "small call", lambda bench: bench.group.ping(1), lambda plain: plain.ping(1), 1.12, "small call"
    )
    state, size = {f"layer.{key}": tensor for key, tensor in as_tensors(large).items()}, megabytes(large)
    arrays = {key: array for key, array in large.items() if key != "uid"}
    yield case(
        f"broadcast {size}, read-only",
        lambda bench: bench.group.broadcast_read_only(batch),
        lambda plain: plain.broadcast(large),
        1.15,
        "broadcast, read-only",
    )
    yield case(
        f"broadcast {size}, writable",
        lambda bench: bench.group.broadcast(batch),
        lambda plain: plain.broadcast_and_clone(large),
        1.15,
        "broadcast, writable",
    )
    yield case(
        f"state_dict to all {size}, read-only",
        lambda bench: bench.group.load_read_only(state),
        lambda plain: plain.broadcast(arrays),
        1.15,
        "broadcast, read-only",
    )
    yield case(
        f"state_dict to all {size}, writable",
        lambda bench: bench.group.load(state),
        lambda plain: plain.broadcast_and_clone(arrays),
        1.15,
        "broadcast, writable",
    )
    yield case(
        f"split, small answer {size}",
        lambda bench: bench.group.count(batch),
        lambda plain: plain.split_and_count(large),
        1.1,
        "split, small answer",
    )
    yield case(
        f"split, echo, concat {size}",
        lambda bench: bench.group.echo(batch),
        lambda plain: plain.split_and_echo(large),
        1.1,
        "split, echo",
    )
    yield case(
        f"split, echo, concat {megabytes(small)}",
        lambda bench: bench.group.echo(few),
        lambda plain: plain.split_and_echo(small),
        1.15,
        "split, echo, small",
    )
    yield case(
        f"future into the next call, aligned {size}, read-only",
        lambda bench: bench.group.count_read_only(bench.group.echo_later(batch)),
        lambda plain: plain.chain_aligned(large),
        1.15,
    )
    yield case(
        f"future into the next call, aligned {size}, writable",
        lambda bench: bench.group.count(bench.group.echo_later(batch)),
        lambda plain: plain.chain_aligned_and_clone(large),
        1.15,
    )
    yield case(
        f"future into the next call, re-chunked {size}",
        lambda bench: bench.half.count(bench.group.echo_later(batch)),
        lambda plain: plain.chain_rechunked(large),
        1.25,
    )
    for rows, width, image_bytes, limits in (
        (1024, 2048, 0, (1.2, 1.35)),
        (256, 1024, 0, (1.35, 1.35)),
        (256, 1024, 200_000, (1.35, 1.35)),
    ):
        images = f" and {rows * image_bytes / 1e6:.0f} MB of images" if image_bytes else ""
        work = f"PPO step of eight calls {step_megabytes(rows, width)}{images}"
        for how, writable, limit in zip(("views", "copies"), (False, True), limits, strict=True):
            ways = partial(step_ways, rows, width, writable, image_bytes)
            yield Case(f"{work}, workers read {how}", ways, Aim(limit))


def step_ways(
    rows: int, width: int, writable: bool, image_bytes: int, bench: Bench, started: ExitStack
) -> tuple[Work, Work]:
    """A step of PPO with columns that stay where they are, and one with references wired by hand."""
    group = group_of(bench.pool, width, remote=True)
    started.callback(group.shutdown)
    prompts = group.put(prompts_of(rows, image_bytes=image_bytes))
    by_hand = PlainStep(len(bench.plain.actors), rows, width, writable, image_bytes=image_bytes)
    started.callback(by_hand.close)
    return GroupStep(group, prompts, width, writable), by_hand


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


def measured(case: Case, bench: Bench, rounds: int, others: dict[str, dict[str, float]]) -> Row:
    """Ours and the plain way in turn, beside what other ways took."""
    rounds = rounds * 5 if case.work == "small call" else rounds
    with ExitStack() as started:
        ours, plain = case.ways(bench, started)
        found = medians_ms({"ours": ours, "plain": plain}, rounds, warm_up=4)
    beside = {name: times[case.other_name] for name, times in others.items() if case.other_name in times}
    row = Row(case.work, found["ours"], "plain Ray", found["plain"], case.aim, beside)
    sys.stderr.write(f"{row.work}: {row.ratio:.2f}\n")
    return row


def run(
    options: argparse.Namespace, chosen: list[Case], others: dict[str, dict[str, float]]
) -> tuple[list[Row], dict[str, Any]]:
    """All rows, and what the memory was after many calls."""
    rows = startup_rows(options.workers, options.starts) if options.starts else []
    bench = Bench(options.workers)
    try:
        rows += [measured(case, bench, options.rounds, others) for case in chosen]
        if options.only in STEP_COSTS:
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
    known = list(cases())
    chosen = [case for case in known if options.only in case.work]
    if not chosen and options.only not in STEP_COSTS:
        names = "; ".join([*(case.work for case in known), STEP_COSTS])
        parser.error(f"--only is {options.only!r}, expected words of one of: {names}")
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
        rows, left = run(options, chosen, others)
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
