"""How far one driver carries: its seconds for a call of many workers, beside those of its network card.

    python packages/verl-dispatch/benchmarks/scale.py [--quick] [--gbit 100]

No worker runs and nothing is sent: a call is planned for a group of so many ranks, every rank's message is
pickled as a backend does it, and answers are put together. Large batches are never written to, so that 10 GB
cost address space alone. A call of whole batches moves all bytes through the driver's card, there and back;
one of remote columns moves descriptors.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import torch
from bench_dispatch import COLUMNS, BenchWorker, seconds_of
from benchmark_harness import text_table
from verl_dispatch import CallPlan, LocalWorkerGroup
from verl_protocol import DataProto
from verl_protocol.batch.apart import bound, set_apart
from verl_protocol.columns.reading import InProcessStore
from verl_protocol.columns.travel import travelling
from verl_protocol.wire import dumps

WORKERS = (8, 64, 512, 4096)
MEGABYTES = (1, 100, 1_000, 10_000)
ROWS = 4096
BYTES_A_TOKEN = 28
MOST_JOINED_MB = 1_000
"""What is joined is written, so it needs memory."""


def batch_of(megabytes: int) -> DataProto:
    """A batch of this size, whose memory nobody has touched."""
    width = max(1, megabytes * 1_000_000 // (ROWS * BYTES_A_TOKEN))
    kinds = (torch.int64, torch.int64, torch.float32, torch.float32, torch.float32)
    columns = {key: torch.empty(ROWS, width, dtype=kind) for key, kind in zip(COLUMNS, kinds, strict=True)}
    return DataProto.from_dict(columns)


class Elsewhere(InProcessStore):
    """Keeps nothing: its references are as long as those of Ray, and are not read here."""

    def __init__(self) -> None:
        self._count = 0

    def put(self, columns: Mapping[str, Any]) -> Any:
        """A new reference."""
        self._count += 1
        return self._count.to_bytes(28, "little")

    def __reduce__(self) -> str:
        return "ELSEWHERE"


ELSEWHERE = Elsewhere()


def remote(batch: DataProto, num_parts: int) -> DataProto:
    """The batch as answers of so many ranks that left their columns where they made them."""
    apart = [set_apart(part, large_bytes=0) for part in batch.chunk(num_parts)]
    return DataProto.concat(
        [bound(rest, ELSEWHERE, [ELSEWHERE.put(each) for each in objects]) for rest, objects in apart]
    )


def pickled(plan: CallPlan) -> int:
    """Pickles every rank's message; bytes that go over the wire, buffers included."""
    total = 0
    for call in plan:
        data, buffers = travelling(dumps, (call.args, dict(call.kwargs)))
        total += len(data) + sum(buffer.raw().nbytes for buffer in buffers)
    return total


def row(workers: int, megabytes: int, gbit: float, repeats: int) -> dict[str, Any]:
    """One size of group and of batch."""
    whole = batch_of(megabytes)
    found: dict[str, Any] = {"workers": workers, "MB": megabytes}
    with LocalWorkerGroup(BenchWorker, workers) as group:
        for kind, batch in (("whole", whole), ("remote", remote(whole, workers))):
            plan = group.echo.plan(batch)
            steps: list[Callable[[], Any]] = [partial(group.echo.plan, batch), partial(pickled, plan)]
            if kind == "remote" or megabytes <= MOST_JOINED_MB:
                steps.append(partial(plan.collect.collect, [call.args[0] for call in plan]))
            ms = sum(seconds_of(step, repeats, 1) for step in steps) * 1e3
            sent = pickled(plan)
            # There and back; what comes back is taken to be as large as what goes out.
            card_ms = 2 * sent * 8 / (gbit * 1e9) * 1e3
            found[f"{kind}: driver ms"] = f"{ms:.1f}" + (" + joining" if len(steps) < 3 else "")
            found[f"{kind}: MB sent"], found[f"{kind}: card ms"] = f"{sent / 1e6:.2f}", f"{card_ms:.1f}"
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure all sizes and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes only")
    parser.add_argument(
        "--gbit", type=float, default=100.0, help="what the driver's network card carries, Gbit/s"
    )
    options = parser.parse_args(arguments)
    workers, sizes = (WORKERS[:2], MEGABYTES[:2]) if options.quick else (WORKERS, MEGABYTES)
    rows = [row(count, size, options.gbit, 3) for count in workers for size in sizes]
    lines = [list(rows[0]), *([str(cell) for cell in found.values()] for found in rows)]
    sys.stdout.write(text_table(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
