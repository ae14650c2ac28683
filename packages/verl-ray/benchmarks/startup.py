"""How long four workers take to their first answers, beside plain actors that import the same."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import ray
import torch
from benchmark_harness import Aim, Row, medians_ms
from plain_imports import BareActor, BatchActor, TorchActor
from start_workers import BareWorker, BatchWorker, TorchWorker
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

SETTLE_S = 3.0
AIM = Aim(1.05)


def plain_start(actor_class: type, num_workers: int) -> None:
    """Actors up, an answer from each, actors gone."""
    make: Any = ray.remote(num_cpus=0)(actor_class)
    actors = [make.remote() for _ in range(num_workers)]
    ray.get([actor.ping.remote() for actor in actors])
    for actor in actors:
        ray.kill(actor)


def group_start(num_workers: int, worker_class: type, use: Callable[[Any], object]) -> None:
    """A pool and a group up, one call answered by all, both gone."""
    with (
        RayResourcePool([num_workers], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(worker_class)) as group,
    ):
        use(group)


def settled(work: Callable[[], object]) -> Callable[[], object]:
    """The work, after Ray has replaced the processes that the start before used up."""

    def wait_and_work() -> None:
        time.sleep(SETTLE_S)
        work()

    return wait_and_work


def startup_rows(num_workers: int, rounds: int) -> list[Row]:
    """Start without heavy imports, with torch, and with what a worker imports on first use of `.batch`."""
    batch = DataProto.from_dict(tensors={"x": torch.zeros(4 * num_workers, 1)})
    works: dict[str, tuple[type, Callable[[Any], object], type]] = {
        "neither": (BareWorker, lambda group: group.ping(1), BareActor),
        "torch": (TorchWorker, lambda group: group.ping(1), TorchActor),
        "torch + tensordict": (BatchWorker, lambda group: group.touch(batch), BatchActor),
    }
    rows = []
    for name, (worker_class, use, actor_class) in works.items():
        ours = partial(group_start, num_workers, worker_class, use)
        plain = partial(plain_start, actor_class, num_workers)
        found = medians_ms({"ours": settled(ours), "plain": settled(plain)}, rounds, warm_up=1)
        waited = SETTLE_S * 1e3
        rows.append(
            Row(f"{num_workers} workers up, {name}", found["ours"] - waited, "plain actors",
                found["plain"] - waited, AIM)
        )  # fmt: skip
    return rows
