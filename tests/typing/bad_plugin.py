"""Mistakes that mypy finds in `group.method(...)` with the plugin: every marked line must be an error."""

from concurrent.futures import Future

from verl_dispatch import Broadcast, LocalWorkerGroup
from verl_protocol import DataProto

from tests.typing.workers import Rollouts, Trainer


def names(group: LocalWorkerGroup[Trainer]) -> None:
    group.lod("path")  # type: ignore[attr-defined]
    group.helper()  # type: ignore[attr-defined]
    group.size()  # type: ignore[attr-defined]
    group.chat("hello")  # type: ignore[attr-defined]
    group.load.nothing()  # type: ignore[attr-defined]


def arguments_as_they_are(group: LocalWorkerGroup[Trainer], later: Future[int]) -> None:
    group.load()  # type: ignore[call-arg]
    group.load(1)  # type: ignore[arg-type]
    group.load(later)  # type: ignore[arg-type]
    group.load("path", True)  # type: ignore[call-arg]
    group.configure("path", steps="many")  # type: ignore[arg-type]
    group.configure("path", step=3)  # type: ignore[call-arg]
    group.load("path", stric=True)  # type: ignore[call-arg]
    group.load.submit(1)  # type: ignore[arg-type]
    group.load.call(1)  # type: ignore[arg-type]
    group.load.plan(1)  # type: ignore[arg-type]


def one_entry_per_worker(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.scale(1.0)  # type: ignore[arg-type]
    group.scale(["a"])  # type: ignore[list-item]
    group.scale(batch)  # type: ignore[arg-type]
    group.seed([1, 2], name=Broadcast(1))  # type: ignore[arg-type]
    group.seed(batch, ["a"])  # type: ignore[arg-type]


def batches(group: LocalWorkerGroup[Trainer], batch: DataProto, rollouts: Rollouts) -> None:
    group.update_actor([batch])  # type: ignore[arg-type]
    group.generate_async(batch, 0.5)  # type: ignore[arg-type]
    group.compare(batch, batch)  # type: ignore[arg-type]
    group.compare(rollouts, batch, batch)  # type: ignore[call-arg]
    group.apply(batch, batch)  # type: ignore[arg-type]
    group.place(1)  # type: ignore[call-overload]


def any_keyword(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.with_options(batch, temperature=1.0)  # type: ignore[arg-type]
    group.methods.lod("path")  # type: ignore[attr-defined]


def results(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.load("path").upper()  # type: ignore[attr-defined]
    group.update_actor(batch).append(batch)  # type: ignore[attr-defined]
    group.generate(batch).union(batch)  # type: ignore[attr-defined]
    group.load_later("path")[0].result().upper()  # type: ignore[attr-defined]
