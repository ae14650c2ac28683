"""Many calls, groups, futures and remote batches: what memory, object store, threads and files do meanwhile.

    python packages/verl-ray/benchmarks/soak.py [--share 1.0] [--write docs/reliability.md]

Each row does its work in ten equal parts and looks after each. It is flat if nothing has grown from the third
look to the last by more than is allowed. The exit status is 1 if a row is not, or if the time was up before
all was done; where something hangs the program ends after 15 minutes, with all stacks.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import ray
import torch
from benchmark_harness import markdown_table, put_into_page
from memory import private_mib, stored_mib
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

LOOKS = 10
SETTLED = 2
"""Looks before the one that later ones are compared with: pools of memory and threads fill at first."""
WORK_S, BOUND_S = 13.5 * 60, 15 * 60.0
"""No part is begun after the first; the second ends the program."""
ALLOWED = {"driver MiB": 24.0, "store MiB": 4.0, "threads": 4.0, "files": 8.0, "workers MiB": 24.0}


class Echo(Worker):
    """Gives back what it gets."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def number(self, value: int) -> int:
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def rows(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def private(self) -> float:
        return private_mib()


def batch(megabytes: float) -> DataProto:
    return DataProto.from_dict({"x": torch.ones(64, max(1, int(megabytes * 1e6) // (64 * 4)))})


def look(group: Any) -> dict[str, float]:
    """What is held now, by this process, its workers and the store."""
    gc.collect()
    time.sleep(1.0)
    return {
        "driver MiB": private_mib(),
        "store MiB": stored_mib(),
        "threads": float(threading.active_count()),
        "files": float(len(os.listdir("/proc/self/fd"))),
        "workers MiB": max(group.private()),
    }


def small_calls(group: Any, count: int) -> None:
    for value in range(count):
        group.number(value)


def large_calls(group: Any, count: int) -> None:
    data = batch(16)
    for _ in range(count):
        group.rows(data)


def futures_never_read(group: Any, count: int) -> None:
    data = batch(0.1)
    unread = group.rows.options(blocking=False)
    for number in range(count):
        unread(data)
        if number % 50 == 0:
            # Nobody reads them, but the queue of a worker shall not grow without end.
            group.number(0)


def remote_batches_dropped(group: Any, count: int) -> None:
    data = batch(2)
    remote = group.rows.options(remote=True)
    for _ in range(count):
        remote(data)


def groups_started_and_stopped(group: Any, count: int) -> None:
    for _ in range(count):
        with (
            RayResourcePool([1], use_gpu=False, max_colocate_count=1) as pool,
            RayWorkerGroup(pool, RayClassWithInitArgs(Echo)) as small,
        ):
            small.number(1)


ROWS: tuple[tuple[Callable[[Any, int], None], int], ...] = (
    (small_calls, 10_000),
    (large_calls, 500),
    (futures_never_read, 2_000),
    (remote_batches_dropped, 1_000),
    (groups_started_and_stopped, 200),
)


def row_of(group: Any, work: Callable[[Any, int], None], count: int, until: float) -> list[str]:
    """One line of the table; its last cell says whether all stayed flat."""
    began, part = time.monotonic(), max(1, count // LOOKS)
    looks: list[dict[str, float]] = []
    while len(looks) < LOOKS and time.monotonic() < until:
        work(group, part)
        looks.append(look(group))
    seconds = time.monotonic() - began
    first = looks[min(SETTLED, len(looks) - 1)] if looks else {}
    growth = [looks[-1][name] - first[name] if looks else 0.0 for name in ALLOWED]
    flat = all(grown <= allowed for grown, allowed in zip(growth, ALLOWED.values(), strict=True))
    told = "no" if not flat else "yes" if len(looks) == LOOKS else "out of time"
    cells = [f"{grown:+.1f}" for grown in growth]
    return [words(work), str(part * len(looks)), f"{seconds:.0f}", *cells, told]


def words(work: Callable[[Any, int], None]) -> str:
    return work.__name__.replace("_", " ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all rows, print the table, and say by the exit status whether all stayed flat."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--share", type=float, default=1.0, help="how much of the work is done, 0 to 1")
    parser.add_argument("--only", default="", help="rows whose names contain this")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its marks")
    options = parser.parse_args(arguments)
    chosen = [(work, count) for work, count in ROWS if options.only in words(work)]
    if not chosen:
        parser.error(f"no row is called {options.only!r}; there are: {', '.join(words(w) for w, _ in ROWS)}")
    if options.write is not None and (options.only or options.share != 1):
        parser.error("--write puts in the whole table: give neither --only nor --share with it")
    until = time.monotonic() + WORK_S
    faulthandler.dump_traceback_later(BOUND_S, exit=True)
    ray.init(
        address="local", num_cpus=4, include_dashboard=False, log_to_driver=False, object_store_memory=2**29
    )
    rows = []
    with (
        RayResourcePool([2], use_gpu=False, max_colocate_count=1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Echo)) as group,
    ):
        for work, count in chosen:
            rows.append(row_of(group, work, int(count * options.share), until))
            sys.stderr.write(f"{rows[-1][0]}, {rows[-1][1]} times in {rows[-1][2]} s: flat? {rows[-1][-1]}\n")
    ray.shutdown()
    faulthandler.cancel_dump_traceback_later()
    table = markdown_table(["work", "times", "s", *ALLOWED, "flat"], rows)
    sys.stdout.write(table + "\n")
    if options.write is not None:
        put_into_page(options.write, "soak", table)
    return 0 if all(row[-1] == "yes" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
