"""What is left in the object store and in the driver after many calls."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from verl_protocol import DataProto

_STORE = "object_store_memory"

SETTLE_S = 2.0
"""Ray lets go of objects a little after their last reader."""


def stored_mib() -> float:
    """Megabytes that the object store holds, as Ray last reported them."""
    untyped: Any = ray
    total, free = untyped.cluster_resources(), untyped.available_resources()
    return float(total[_STORE] - free.get(_STORE, 0.0)) / 2**20


def private_mib() -> float:
    """Memory that this process alone holds: pages of the store that it has touched count there.

    What is free goes back to the system first: between large results glibc's malloc keeps some of it, or some
    hundred MiB, as its heap happens to lie.
    """
    if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
        trim(0)
    resident, shared = map(int, Path("/proc/self/statm").read_text().split()[1:3])
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory_left(echo: Callable[[DataProto], object], batch: DataProto, calls: int) -> dict[str, float]:
    """Growth over `calls` blocking calls that send the batch and get it back, after a few that warm up."""
    for _ in range(5):
        echo(batch)
    stored, private = stored_mib(), private_mib()
    for _ in range(calls):
        echo(batch)
    time.sleep(SETTLE_S)
    return {
        "calls": calls,
        "batch_mib": batch.nbytes() / 2**20,
        "object_store_before_mib": stored,
        "object_store_after_mib": stored_mib(),
        "driver_growth_mib": private_mib() - private,
    }
