"""Group calls beside the same calls written by hand on Ray: medians and ratios from one run.

`python bench_ray.py [--workers 4] [--rounds 15] [--json FILE] [--only WORDS]`
"""

import argparse
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")

import numpy as np
import ray
import torch
from harness import Row, measure
from plain import Arrays, PlainGroup
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from workers import BenchWorker

LARGE_ROWS, SMALL_ROWS = 2048, 256
WIDTH = 1024


def numbers(rows: int) -> Arrays:
    """Two int64 and three float32 columns: 28 KiB a row."""
    generator = np.random.default_rng(0)
    arrays: Arrays = {
        key: generator.integers(0, 50_000, (rows, WIDTH), dtype=np.int64)
        for key in ("input_ids", "attention_mask")
    }
    arrays |= {
        key: generator.random((rows, WIDTH), dtype=np.float32)
        for key in ("old_log_probs", "values", "rewards")
    }
    return arrays


def as_batch(arrays: Arrays) -> DataProto:
    """The same columns, and a column of names, as the library's users hold them."""
    names = [f"prompt-{row}" for row in range(len(arrays["input_ids"]))]
    return DataProto.from_dict(
        tensors={key: torch.from_numpy(array) for key, array in arrays.items()}, non_tensors={"uid": names}
    )


class Bench:
    """One plain group and one worker group over the same number of processes, and the work that both do."""

    def __init__(self, num_workers: int) -> None:
        self.plain = PlainGroup(num_workers)
        self.pool = RayResourcePool([num_workers], use_gpu=False)
        self.group = RayWorkerGroup(self.pool, RayClassWithInitArgs(BenchWorker))
        half = max(num_workers // 2, 1)
        self.half_pool = RayResourcePool([half], use_gpu=False)
        self.half = RayWorkerGroup(self.half_pool, RayClassWithInitArgs(BenchWorker))

    def close(self) -> None:
        for part in (self.group, self.half, self.pool, self.half_pool):
            part.shutdown()

    def work(self) -> Iterator[tuple[str, dict[str, Callable[[], object]]]]:
        """Name of the work, and its variants: `ours` and `plain`."""
        large, small = numbers(LARGE_ROWS), numbers(SMALL_ROWS)
        megabytes = sum(array.nbytes for array in large.values()) / 1e6
        small_megabytes = sum(array.nbytes for array in small.values()) / 1e6
        batch, small_batch = as_batch(large), as_batch(small)
        state = {f"layer.{key}": torch.from_numpy(array) for key, array in large.items()}
        plain, group, half = self.plain, self.group, self.half
        size = f"{megabytes:.0f} MB"
        yield "small call", {"ours": lambda: group.ping(1), "plain": lambda: plain.ping(1)}
        yield (
            f"broadcast {size}, read-only",
            {
                "ours": lambda: group.broadcast_read_only(batch),
                "plain": lambda: plain.broadcast(large),
            },
        )
        yield (
            f"broadcast {size}, writable",
            {
                "ours": lambda: group.broadcast(batch),
                "plain": lambda: plain.broadcast_and_clone(large),
            },
        )
        yield (
            f"state_dict {size} to all, read-only",
            {
                "ours": lambda: group.load_read_only(state),
                "plain": lambda: plain.broadcast(large),
            },
        )
        yield (
            f"state_dict {size} to all, writable",
            {
                "ours": lambda: group.load(state),
                "plain": lambda: plain.broadcast_and_clone(large),
            },
        )
        yield (
            f"split, small answer {size}",
            {
                "ours": lambda: group.count(batch),
                "plain": lambda: plain.split_and_count(large),
            },
        )
        yield (
            f"split, echo, concat {size}",
            {
                "ours": lambda: group.echo(batch),
                "plain": lambda: plain.split_and_echo(large),
            },
        )
        yield (
            f"split, echo, concat {small_megabytes:.1f} MB",
            {
                "ours": lambda: group.echo(small_batch),
                "plain": lambda: plain.split_and_echo(small),
            },
        )
        yield (
            f"future into the next call, aligned {size}",
            {
                "ours": lambda: group.count(group.echo_later(batch)),
                "plain": lambda: plain.chain_aligned(large),
            },
        )
        yield (
            f"future into the next call, re-chunked {size}",
            {
                "ours": lambda: half.count(group.echo_later(batch)),
                "plain": lambda: plain.chain_rechunked(large),
            },
        )


def table(rows: list[Row]) -> str:
    """Medians in milliseconds and the ratio to plain Ray."""
    lines = [f"{'work':<48}{'ours ms':>10}{'plain ms':>10}{'ratio':>8}"]
    for row in rows:
        ours, plain = row.medians_ms["ours"], row.medians_ms["plain"]
        lines.append(f"{row.work:<48}{ours:>10.2f}{plain:>10.2f}{row.ratio('ours', 'plain'):>8.2f}")
    return "\n".join(lines)


def main() -> int:
    """Run the work and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path, help="also write the medians to this file")
    parser.add_argument("--only", default="", help="only the work whose name contains these words")
    options = parser.parse_args()
    ray.init(
        num_cpus=2 * options.workers,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    started = time.perf_counter()
    bench = Bench(options.workers)
    sys.stdout.write(f"{options.workers} workers, up after {time.perf_counter() - started:.1f} s\n")
    try:
        rows = [
            measure(name, variants, options.rounds * (5 if "small call" in name else 1), warm_up=4)
            for name, variants in bench.work()
            if options.only in name
        ]
    finally:
        bench.close()
        ray.shutdown()
    sys.stdout.write(table(rows) + "\n")
    if options.json is not None:
        numbers_out = {row.work: dict(row.medians_ms) for row in rows}
        options.json.write_text(json.dumps(numbers_out, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
