"""The same movements with mpi4py: rank 0 plays the driver, the other ranks the workers.

    mpiexec -n 5 python -m mpi4py bench_mpi.py ROUNDS LARGE_ROWS SMALL_ROWS WIDTH FILE

Buffers are numpy arrays without names, which is the least that any program must move.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI

COMM = MPI.COMM_WORLD
RANK, WORKERS = COMM.Get_rank(), COMM.Get_size() - 1
WARM_UP = 4
Array = np.ndarray[Any, Any]


def columns(rows: int, width: int) -> list[Array]:
    """Two int64 and three float32 columns."""
    return [np.ones((rows, width), np.int64) for _ in range(2)] + [
        np.ones((rows, width), np.float32) for _ in range(3)
    ]


def broadcast(whole: list[Array], clone: bool) -> None:
    """All rows to every worker, one number back."""
    for column in whole:
        COMM.Bcast(column)
        if clone and RANK:
            column.copy()
    COMM.gather(RANK)


def split(whole: list[Array], parts: list[Array], echo: bool) -> None:
    """Each worker gets its share of the rows, and sends it back or one number."""
    for column, part in zip(whole, parts, strict=True):
        share = 0 if RANK == 0 else part.size
        sizes = [0] + [column.size // WORKERS] * WORKERS
        layout = [column, sizes, None, MPI._typedict[column.dtype.char]]
        COMM.Scatterv(layout if RANK == 0 else None, part[:share] if RANK else None)
        if echo:
            COMM.Gatherv(part if RANK else None, layout if RANK == 0 else None)
    COMM.gather(RANK)


def small_call() -> None:
    """A number to all, a number from each."""
    COMM.gather(COMM.bcast(1))


def median_ms(work: Callable[[], object], rounds: int) -> float:
    """Milliseconds until rank 0 has all answers."""
    times = []
    for turn in range(WARM_UP + rounds):
        COMM.Barrier()
        start = time.perf_counter()
        work()
        if turn >= WARM_UP:
            times.append((time.perf_counter() - start) * 1e3)
    return statistics.median(times)


def main() -> int:
    """Measure; rank 0 writes the medians by name of the work."""
    rounds, large, small, width = map(int, sys.argv[1:5])
    whole, few = columns(large, width), columns(small, width)
    parts = [column[: large // WORKERS].copy().reshape(-1) for column in whole]
    few_parts = [column[: small // WORKERS].copy().reshape(-1) for column in few]
    found = {
        "small call": median_ms(small_call, 5 * rounds),
        "broadcast, read-only": median_ms(lambda: broadcast(whole, False), rounds),
        "broadcast, writable": median_ms(lambda: broadcast(whole, True), rounds),
        "split, small answer": median_ms(lambda: split(whole, parts, False), rounds),
        "split, echo": median_ms(lambda: split(whole, parts, True), rounds),
        "split, echo, small": median_ms(lambda: split(few, few_parts, True), rounds),
    }
    if RANK == 0:
        Path(sys.argv[5]).write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
