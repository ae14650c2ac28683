"""The same calls through verl, where it can be imported: `python bench_verl.py WORKERS ROUNDS FILE [SITE]`.

`pip install --no-deps --target SITE verl` and the few light packages that it imports suffice; it uses no GPU.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))
if len(sys.argv) > 4:
    # Ray's workers must find it too.
    os.environ["PYTHONPATH"] = sys.argv[4]
    sys.path.append(sys.argv[4])

import ray
import torch
from benchmark_harness import medians_ms
from data_sizes import LARGE_ROWS, SMALL_ROWS, names, numbers
from verl import DataProto
from verl.single_controller.base import Worker
from verl.single_controller.base.decorator import Dispatch, register
from verl.single_controller.ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class VerlWorker(Worker):  # type: ignore[misc]
    """Counts and echoes."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)  # type: ignore[untyped-decorator]
    def ping(self, value: Any) -> int:
        return 1

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)  # type: ignore[untyped-decorator]
    def echo(self, data: Any) -> Any:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)  # type: ignore[untyped-decorator]
    def count(self, data: Any) -> int:
        return len(data)


def batch_of(rows: int) -> Any:
    """The columns of the benchmark."""
    arrays = numbers(rows)
    tensors = {key: torch.from_numpy(array) for key, array in arrays.items()}
    return DataProto.from_dict(tensors=tensors, non_tensors={"uid": names(rows)})


def main() -> int:
    """Measure and write medians by name of the work."""
    workers, rounds = int(sys.argv[1]), int(sys.argv[2])
    ray.init(num_cpus=2 * workers, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    # By default it reserves ten CPUs for each worker, and would wait for them without a limit.
    pool = RayResourcePool([workers], use_gpu=False, max_colocate_count=1)
    group = RayWorkerGroup(pool, RayClassWithInitArgs(ray.remote(VerlWorker)))
    large, small = batch_of(LARGE_ROWS), batch_of(SMALL_ROWS)
    state = {name: torch.ones(LARGE_ROWS, 512) for name in "abcdefg"}
    found = medians_ms({"small call": lambda: group.ping(1)}, 5 * rounds)
    found |= medians_ms(
        {
            "broadcast, writable": lambda: group.ping(large),
            "state_dict": lambda: group.ping(state),
            "split, small answer": lambda: group.count(large),
            "split, echo": lambda: group.echo(large),
            "split, echo, small": lambda: group.echo(small),
        },
        rounds,
    )
    Path(sys.argv[3]).write_text(json.dumps(found))
    ray.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
