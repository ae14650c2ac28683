"""What a call costs in the driver: per worker for a scalar, and against the columns' own work for a batch.

    python packages/verl-dispatch/benchmarks/bench_dispatch.py [--quick] [--json FILE]

Runs on the in-process group, so that planning, sending, waiting and collecting are measured and no engine is.
Isolation, the copying that stands for the wire, is measured on its own and taken off the batch calls.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import torch
from benchmark_harness import Work, medians_ms, text_table
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, make_nd_compute_dataproto_dispatch_fn, register
from verl_dispatch.local.copies import private_copy
from verl_protocol import DataProto

WORLD_SIZES = (1, 2, 4, 8, 16, 64, 256, 1024)
AIM_US = 20.0
COLUMNS = ("input_ids", "attention_mask", "log_probs", "values", "advantages")


class BenchWorker(Worker):
    """Does nothing, so that only the library's own time is left."""

    def __init__(self) -> None:
        super().__init__()
        self._register_dispatch_collect_info("dp", self.rank, True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def scalar(self, value: int) -> int:
        """The value."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def entry(self, value: int) -> int:
        """This worker's entry."""
        return value

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, data: DataProto) -> DataProto:
        """The rows."""
        return data

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("dp"))
    def echo_nd(self, data: DataProto) -> DataProto:
        """The rows, over a mesh."""
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def count(self, data: DataProto) -> int:
        """The number of rows."""
        return len(data)


def seconds_of(work: Work, repeats: int, inner: int) -> float:
    """Median seconds of one run of `work`, after runs that warm it up."""
    return medians_ms({"": work}, repeats, warm_up=1, calls_per_round=inner)[""] / 1e3


def scalar_rows(world_sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Microseconds per worker of calls that carry a number."""
    return [scalar_row(world_size, repeats) for world_size in world_sizes]


def scalar_row(world_size: int, repeats: int) -> dict[str, Any]:
    """One size of group."""
    inner = max(5, 4000 // world_size)
    entries = list(range(world_size))
    with LocalWorkerGroup(BenchWorker, world_size) as group:
        work: dict[str, Callable[[], Any]] = {
            "plan": lambda: group.scalar.plan(1),
            "one_to_all": lambda: group.scalar(1),
            "dp_compute": lambda: group.entry(entries),
            "submit": lambda: group.scalar.submit(1).result(),
        }
        times = {name: seconds_of(run, repeats, inner) * 1e6 / world_size for name, run in work.items()}
    return {"workers": world_size, **times}


def batch_of(num_rows: int, width: int) -> DataProto:
    """Five tensor columns, as in a step of post-training."""
    ids = torch.zeros(num_rows, width, dtype=torch.int64)
    values = torch.zeros(num_rows, width)
    tensors = {"input_ids": ids, "attention_mask": ids.clone(), "log_probs": values}
    tensors |= {"values": values.clone(), "advantages": values.clone()}
    return DataProto.from_dict(tensors=tensors)


def slice_and_join(columns: dict[str, torch.Tensor], num_parts: int) -> dict[str, torch.Tensor]:
    """The least that any split and collect must do."""
    parts = [column.chunk(num_parts) for column in columns.values()]
    return {key: torch.cat(pieces) for key, pieces in zip(columns, parts, strict=True)}


def batch_rows(world_sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """Batch calls without their isolation copies, as a ratio to slicing and joining the columns by hand."""
    rows = []
    for num_rows, width in ((64, 16), (1024, 512)):
        for world_size in world_sizes:
            if num_rows % world_size:
                continue
            rows.append(batch_row(world_size, num_rows, width, repeats))
    return rows


def batch_row(world_size: int, num_rows: int, width: int, repeats: int) -> dict[str, Any]:
    """One size of batch on one size of group; times in microseconds."""
    data = batch_of(num_rows, width)
    columns = {
        key: data.tensor(key) for key in ("input_ids", "attention_mask", "log_probs", "values", "advantages")
    }
    inner = 3 if num_rows * width > 1 << 16 else max(5, 400 // world_size)
    parts = data.chunk(world_size)
    with LocalWorkerGroup(BenchWorker, world_size) as group:
        bound: Any = group
        bound.echo_nd(data)
        by_hand = seconds_of(lambda: slice_and_join(columns, world_size), repeats, inner)
        copies = seconds_of(lambda: [private_copy(part) for part in parts], repeats, inner)
        echo = seconds_of(lambda: bound.echo(data), repeats, inner)
        mesh = seconds_of(lambda: bound.echo_nd(data), repeats, inner)
        plan = seconds_of(lambda: bound.echo.plan(data), repeats, inner)
    # Arguments and answers are copied: all parts twice.
    own = {"echo": max(0.0, echo - 2 * copies), "mesh": max(0.0, mesh - 2 * copies)}
    return {
        "rows": num_rows,
        "width": width,
        "workers": world_size,
        "by_hand_us": by_hand * 1e6,
        "copies_us": 2 * copies * 1e6,
        "plan_us": plan * 1e6,
        "echo_us": echo * 1e6,
        "echo_own_ratio": own["echo"] / by_hand,
        "mesh_own_ratio": own["mesh"] / by_hand,
    }


def table(title: str, rows: Sequence[dict[str, Any]]) -> str:
    """Rows of equal keys as text."""
    cells = [
        [f"{value:.2f}" if isinstance(value, float) else str(value) for value in row.values()] for row in rows
    ]
    return title + "\n" + text_table([list(rows[0]), *cells])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, show the tables, and write the numbers where asked."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    repeats = 3 if options.quick else 7
    scalar = scalar_rows(WORLD_SIZES[::3] if options.quick else WORLD_SIZES, repeats)
    batch = batch_rows((4,) if options.quick else (1, 4, 16, 64), repeats)
    worst = max(row["one_to_all"] for row in scalar)
    text = [
        table("Scalar calls, microseconds per worker", scalar),
        f"worst one_to_all: {worst:.1f} us per worker, aim: at most {AIM_US:.0f}",
        "",
        table("Batch calls: split, echo, collect; ratios without the isolation copies", batch),
    ]
    sys.stdout.write("\n".join(text) + "\n")
    if options.json is not None:
        numbers = {"scalar_us_per_worker": scalar, "batch": batch, "aim_us_per_worker": AIM_US}
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
