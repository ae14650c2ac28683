"""For each mode what it does not take, and what it does not give: every line marked here must be an error."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
from tensordict import TensorDict
from verl_dispatch import Broadcast, LocalWorkerGroup
from verl_protocol import DataProto, DataProtoFuture

from tests.typing.workers import BiggerTrainer, Rollouts, Settings, Trainer


def one_to_all(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.load, None)  # type: ignore[arg-type]
    group.call(Trainer.load, ["a", "b"])  # type: ignore[arg-type]
    group.call(Trainer.load, batch)  # type: ignore[arg-type]
    group.call(Trainer.load, path=b"path")  # type: ignore[arg-type]
    group.call(Trainer.load, "path", True)  # type: ignore[call-arg]
    group.call(Trainer.load, "path", path="path")  # type: ignore[misc]
    group.call(Trainer.load, "path", strict="yes")  # type: ignore[arg-type]
    group.call(Trainer.load, strict=True)  # type: ignore[call-arg]
    group.call(Trainer.load_async, 1)  # type: ignore[arg-type]
    group.call(Trainer.load_async)  # type: ignore[call-arg]
    group.call(Trainer.set_many, "one")  # type: ignore[arg-type]
    group.call(Trainer.set_many, values=1)  # type: ignore[arg-type]
    group.call(Trainer.set_many, key=1)  # type: ignore[arg-type]
    group.call(Trainer.configure, "path", steps="many")  # type: ignore[arg-type]
    group.call(Trainer.configure, "path", step=3)  # type: ignore[call-arg]
    group.call(Trainer.name_all, any=1)  # type: ignore[arg-type]
    group.call(Trainer.name_all, "thing")  # type: ignore[call-arg]


def on_one_rank_or_some(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.step_of, 1)  # type: ignore[arg-type]
    group.call(Trainer.step_of, ["path"])  # type: ignore[arg-type]
    group.call(Trainer.step_of)  # type: ignore[call-arg]
    group.call(Trainer.save, 1)  # type: ignore[arg-type]
    group.call(Trainer.save, "path", "path")  # type: ignore[call-arg]
    group.call(Trainer.save_later, batch)  # type: ignore[arg-type]
    group.call(Trainer.first_only, 1)  # type: ignore[arg-type]
    group.call(Trainer.first_only, ["a", "b"])  # type: ignore[arg-type]
    group.call(Trainer.on_even_ranks, "one")  # type: ignore[arg-type]
    group.call(Trainer.on_even_ranks, {0: 1})  # type: ignore[arg-type]


def all_to_all(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.scale, None)  # type: ignore[arg-type]
    group.call(Trainer.scale, "12")  # type: ignore[arg-type]
    group.call(Trainer.scale, {1.0, 2.0})  # type: ignore[arg-type]
    group.call(Trainer.scale, {0: 1.0})  # type: ignore[arg-type]
    group.call(Trainer.scale, deque([1.0]))  # type: ignore[arg-type]
    group.call(Trainer.scale, torch.zeros(2))  # type: ignore[arg-type]
    group.call(Trainer.scale, (value for value in [1.0]))  # type: ignore[arg-type]
    group.call(Trainer.scale, [1.0], 3)  # type: ignore[arg-type]
    group.call(Trainer.scale, [1.0], offset=3)  # type: ignore[arg-type]
    group.call(Trainer.tokenize, 1)  # type: ignore[arg-type]
    group.call(Trainer.tokenize, "text")  # type: ignore[arg-type]
    group.call(Trainer.tokenize, [1, 2])  # type: ignore[list-item]
    group.call(Trainer.tokenize, {0: batch})  # type: ignore[arg-type]
    group.call(Trainer.tokenize, batch, batch)  # type: ignore[call-arg]
    group.call(Trainer.tokenize)  # type: ignore[call-arg]
    group.call(Trainer.ping, [1, 2])  # type: ignore[call-arg]


def dp_compute(group: LocalWorkerGroup[Trainer], batch: DataProto, words: Future[str]) -> None:
    group.call(Trainer.seed, [1], 2)  # type: ignore[arg-type]
    group.call(Trainer.seed, [1])  # type: ignore[call-arg]
    group.call(Trainer.seed, [1], ["a"], ["b"])  # type: ignore[call-arg]
    group.call(Trainer.seed, ["a"], ["a"])  # type: ignore[list-item]
    group.call(Trainer.seed, [1], [1])  # type: ignore[list-item]
    group.call(Trainer.seed, batch, ["a"])  # type: ignore[arg-type]
    group.call(Trainer.seed, {0: 1}, ["a"])  # type: ignore[arg-type]
    group.call(Trainer.seed, None, ["a"])  # type: ignore[arg-type]
    group.call(Trainer.seed, Broadcast("a"), ["a"])  # type: ignore[arg-type]
    group.call(Trainer.seed, [1], words)  # type: ignore[arg-type]
    group.call(Trainer.echo, 1)  # type: ignore[arg-type]
    group.call(Trainer.seed_later, 1)  # type: ignore[arg-type]
    group.call(Trainer.seed_later, ["a"])  # type: ignore[list-item]
    group.call(Trainer.seed_later, range(2))  # type: ignore[arg-type]


def batches(
    group: LocalWorkerGroup[Trainer],
    batch: DataProto,
    td: TensorDict,
    rollouts: Rollouts,
    later: DataProtoFuture[DataProto],
    words: Future[str],
) -> None:
    group.call(Trainer.update_actor)  # type: ignore[call-arg]
    group.call(Trainer.update_actor, None)  # type: ignore[arg-type]
    group.call(Trainer.update_actor, 1)  # type: ignore[arg-type]
    group.call(Trainer.update_actor, "batch")  # type: ignore[arg-type]
    group.call(Trainer.update_actor, (batch, batch))  # type: ignore[arg-type]
    group.call(Trainer.update_actor, {"a": torch.zeros(2)})  # type: ignore[arg-type]
    group.call(Trainer.update_actor, torch.zeros(2))  # type: ignore[arg-type]
    group.call(Trainer.update_actor, words)  # type: ignore[arg-type]
    group.call(Trainer.update_actor, Broadcast(1))  # type: ignore[arg-type]
    group.call(Trainer.update_actor, Broadcast([batch]))  # type: ignore[arg-type]
    group.call(Trainer.update_actor, batch[0])  # type: ignore[arg-type]
    group.call(Trainer.filtered, [batch])  # type: ignore[arg-type]
    group.call(Trainer.filtered, 1)  # type: ignore[arg-type]
    group.call(Trainer.generate, [batch])  # type: ignore[arg-type]
    group.call(Trainer.generate_async, batch, 0.5)  # type: ignore[arg-type]
    group.call(Trainer.generate_async, 0.5)  # type: ignore[arg-type]
    group.call(Trainer.compare, batch, batch)  # type: ignore[arg-type]
    group.call(Trainer.compare, rollouts)  # type: ignore[call-arg]
    group.call(Trainer.compare, later, batch)  # type: ignore[arg-type]
    group.call(Trainer.compare, rollouts, batch, batch)  # type: ignore[call-arg]
    group.call(Trainer.tune, 1, lr=Broadcast(0.1))  # type: ignore[arg-type]
    group.call(Trainer.weigh, batch, 1)  # type: ignore[arg-type]
    group.call(Trainer.weigh, batch, batch, weight=0.5)  # type: ignore[arg-type]
    group.call(Trainer.values_of, batch)  # type: ignore[arg-type]
    group.call(Trainer.values_of, {"a": 1})  # type: ignore[arg-type]
    group.call(Trainer.values_of, [td])  # type: ignore[arg-type]
    group.call(Trainer.with_options, batch, temperature=1.0)  # type: ignore[arg-type]
    group.call(Trainer.with_options, 1)  # type: ignore[arg-type]


def functions_and_batches(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.apply, len, batch)  # type: ignore[arg-type]
    group.call(Trainer.apply, lambda part: part)  # type: ignore[call-arg]
    group.call(Trainer.apply, lambda part: part, [batch])  # type: ignore[arg-type]
    group.call(Trainer.apply, lambda part: part, batch, batch)  # type: ignore[call-arg]
    group.call(Trainer.apply, None, batch)  # type: ignore[arg-type]


def metrics_and_meshes(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.losses, [batch])  # type: ignore[arg-type]
    group.call(Trainer.losses, 1)  # type: ignore[arg-type]
    group.call(Trainer.losses)  # type: ignore[call-arg]
    group.call(Trainer.losses, batch, batch)  # type: ignore[call-arg]
    group.call(Trainer.update_on_mesh, [batch, batch])  # type: ignore[arg-type]
    group.call(Trainer.update_on_mesh_later, None)  # type: ignore[arg-type]
    group.call(Trainer.on_last_stage, "batch")  # type: ignore[arg-type]


def ranks_by_name(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.place, "ab")  # type: ignore[arg-type]
    group.call(Trainer.place, None)  # type: ignore[arg-type]
    group.call(Trainer.place, {"zero": 1})  # type: ignore[dict-item]
    group.call(Trainer.place, batch[0])  # type: ignore[arg-type]


def modes_of_ones_own(group: LocalWorkerGroup[Trainer]) -> None:
    group.call(Trainer.total, 1).append(2)  # type: ignore[attr-defined]
    group.call(Trainer.total, 1).upper()  # type: ignore[attr-defined]


def other_workers(group: LocalWorkerGroup[Trainer], bigger: LocalWorkerGroup[BiggerTrainer]) -> None:
    group.call(BiggerTrainer.size)  # type: ignore[arg-type]
    group.call(BiggerTrainer.update_actor, DataProto())  # type: ignore[arg-type]
    group.submit(BiggerTrainer.size)  # type: ignore[arg-type]
    group.stream(BiggerTrainer.size)  # type: ignore[arg-type]
    group.bind(BiggerTrainer.size)  # type: ignore[arg-type]
    group.on.size()  # type: ignore[attr-defined]
    group.call(Trainer(lr=0.1).load, "path")  # type: ignore[arg-type]
    group.call("load", "path")  # type: ignore[arg-type]
    group.call(Trainer.__init__, 0.1)  # type: ignore[arg-type]
    group.call(print, "path")  # type: ignore[arg-type]
    group.call(Trainer, 0.1)  # type: ignore[arg-type]
    bigger.call(Trainer.lod, "path")  # type: ignore[attr-defined]


def what_comes_back(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    one: int = group.call(Trainer.load, "path")  # type: ignore[assignment]
    many: list[str] = group.call(Trainer.load, "path")  # type: ignore[arg-type]
    settings: Settings = group.call(Trainer.load_async, "path")  # type: ignore[assignment]
    saved: list[str] = group.call(Trainer.save, "path")  # type: ignore[arg-type]
    step: str = group.call(Trainer.step_of, "path")  # type: ignore[assignment]
    even: list[int] = group.call(Trainer.on_even_ranks, 1)  # type: ignore[arg-type]
    nothing: None = group.call(Trainer.set_many, 1)  # type: ignore[assignment]
    scaled: float = group.call(Trainer.scale, [1.0])  # type: ignore[assignment]
    counts: DataProto = group.call(Trainer.tokenize, batch)  # type: ignore[assignment]
    seeds: list[int] = group.call(Trainer.seed, [1], ["a"])  # type: ignore[arg-type]
    rollouts: Rollouts = group.call(Trainer.update_actor, batch)  # type: ignore[assignment]
    later: DataProtoFuture[Rollouts] = group.call(Trainer.generate, batch)  # type: ignore[arg-type]
    parts: list[DataProto] = group.call(Trainer.update_on_mesh, batch)  # type: ignore[arg-type]
    losses: dict[str, float] = group.call(Trainer.losses, batch)  # type: ignore[arg-type]
    applied: TensorDict = group.call(Trainer.apply, lambda part: part, batch)  # type: ignore[assignment]
    total: list[int] = group.call(Trainer.total, 1)  # type: ignore[arg-type]


def futures(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.submit(Trainer.load, "path").get()  # type: ignore[attr-defined]
    group.submit(Trainer.load, "path")[0]  # type: ignore[index]
    group.submit(Trainer.load, "path").result().upper()  # type: ignore[attr-defined]
    group.submit(Trainer.load, "path").result(timeout="long")  # type: ignore[arg-type]
    group.submit(Trainer.update_actor, batch).union(batch)  # type: ignore[attr-defined]
    group.submit(Trainer.update_actor, [batch])  # type: ignore[arg-type]
    group.submit(Trainer.tune, batch, lr=0.1)  # type: ignore[arg-type]
    group.submit(Trainer.save)  # type: ignore[call-arg]
    group.stream(Trainer.load, "path").result()  # type: ignore[attr-defined]
    for answer in group.stream(Trainer.load, "path"):
        answer.bit_length()  # type: ignore[attr-defined]
    for rank, length in group.stream(Trainer.load, "path"):
        rank.upper()  # type: ignore[attr-defined]
        length.upper()  # type: ignore[attr-defined]
    group.stream(Trainer.update_actor, [batch])  # type: ignore[arg-type]
    group.bind(Trainer.generate)(batch).batch  # type: ignore[attr-defined]
    group.bind(Trainer.generate)(batch).get().upper()  # type: ignore[attr-defined]
    group.bind(Trainer.load_later)("path").result()  # type: ignore[attr-defined]
    group.bind(Trainer.save_later)("path").upper()  # type: ignore[attr-defined]
    group.bind(Trainer.seed_later)([1])[0].bit_length()  # type: ignore[attr-defined]
    group.bind(Trainer.update_on_mesh_later)(batch).tensor("a")  # type: ignore[attr-defined]
    group.call(Trainer.compare, group.bind(Trainer.load_later)("path"), batch)  # type: ignore[arg-type]
    group.call(Trainer.seed_later, group.bind(Trainer.ping_later)())  # type: ignore[arg-type]
    group.call(Trainer.values_of, group.bind(Trainer.generate)(batch))  # type: ignore[arg-type]


async def futures_awaited(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    (await group.submit(Trainer.update_actor, batch)).upper()  # type: ignore[attr-defined]
    await group.call(Trainer.load, "path")  # type: ignore[misc]
    await group.call(Trainer.load_async, "path")  # type: ignore[misc]
    async for answer in group.stream(Trainer.load, "path"):
        answer.upper()  # type: ignore[attr-defined]


def bound_methods(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.bind(Trainer.lod)  # type: ignore[attr-defined]
    group.bind(1)  # type: ignore[call-overload]
    group.bind(Trainer.load)()  # type: ignore[call-arg]
    group.bind(Trainer.load)("path", "strict")  # type: ignore[arg-type, call-arg]
    group.bind(Trainer.load).call(1)  # type: ignore[arg-type]
    group.bind(Trainer.load).stream(1)  # type: ignore[arg-type]
    group.bind(Trainer.load).plan(1)  # type: ignore[arg-type]
    group.bind(Trainer.load).plan("path").upper()  # type: ignore[attr-defined]
    group.bind(Trainer.load).nothing  # type: ignore[attr-defined]
    group.bind(Trainer.update_actor).call([batch])  # type: ignore[arg-type]
    group.bind(Trainer.update_actor).submit(batch).get()  # type: ignore[attr-defined]
    group.bind(Trainer.tune)(batch, lr=0.1)  # type: ignore[arg-type]
    group.bind(Trainer.load).blocking.upper()  # type: ignore[attr-defined]
    group.bind(Trainer.ping)("word")  # type: ignore[call-arg]


def options(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    update = group.bind(Trainer.update_actor)
    update.options(timeout_s="1")  # type: ignore[call-overload]
    update.options(uneven=True)  # type: ignore[call-overload]
    update.options(uneven="balance")  # type: ignore[call-overload]
    update.options(balance=3)  # type: ignore[call-overload]
    update.options(equal_size="yes")  # type: ignore[call-overload]
    update.options(auto_padding="yes")  # type: ignore[call-overload]
    update.options(read_only=1.5)  # type: ignore[call-overload]
    update.options(remote="yes")  # type: ignore[call-overload]
    update.options(blocking="no")  # type: ignore[call-overload]
    update.options(execute_mode="ALL")  # type: ignore[call-overload]
    update.options(1.0)  # type: ignore[call-overload]
    update.options(timeout_s=1.0)([batch])  # type: ignore[arg-type]
    update.options(balance="tokens")(batch).upper()  # type: ignore[attr-defined]
    update.options(timeout_s=1.0).submit(1)  # type: ignore[arg-type]
    group.on.update_actor.options(retries=3)  # type: ignore[call-overload]
    group.on.update_actor.options(uneven=True)  # type: ignore[call-overload]
    group.on.update_actor.options(remote="yes")  # type: ignore[call-overload]
    group.on.update_actor.options(blocking="no")  # type: ignore[call-overload]


def on(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.on.load()  # type: ignore[call-arg]
    group.on.load("path", strict="yes")  # type: ignore[arg-type]
    group.on.load("path", True)  # type: ignore[call-arg]
    group.on.load("path").upper()  # type: ignore[attr-defined]
    group.on.load.call(path=1)  # type: ignore[arg-type]
    group.on.load.stream(1)  # type: ignore[arg-type]
    group.on.load.plan(1)  # type: ignore[arg-type]
    group.on.load_later(1)  # type: ignore[call-overload]
    group.on.scale(1.0)  # type: ignore[arg-type]
    group.on.scale(range(2))  # type: ignore[arg-type]
    group.on.seed([1], 2)  # type: ignore[arg-type]
    group.on.seed([1])  # type: ignore[call-arg]
    group.on.update_actor(batch).append(batch)  # type: ignore[attr-defined]
    group.on.update_actor.submit([batch])  # type: ignore[arg-type]
    group.on.generate(batch).tensor("a")  # type: ignore[attr-defined]
    group.on.generate.call(batch).get()  # type: ignore[attr-defined]
    group.on.generate_async(batch, 0.5)  # type: ignore[arg-type]
    group.on.tune(batch, lr=0.1)  # type: ignore[arg-type]
    group.on.compare(batch, batch)  # type: ignore[arg-type]
    group.on.apply(batch, batch)  # type: ignore[arg-type]
    group.on.losses([batch])  # type: ignore[arg-type]
    group.on.losses(batch).union(batch)  # type: ignore[attr-defined]
    group.on.update_on_mesh([batch])  # type: ignore[arg-type]
    group.on.place("ab")  # type: ignore[arg-type]
    group.on.helper()  # type: ignore[call-arg]
    group.on.chat("hello")  # type: ignore[arg-type, call-arg, unused-coroutine]
    group.on.rank.upper()  # type: ignore[attr-defined]


def what_else_a_group_has(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.role(1)  # type: ignore[call-overload]
    group.role("actor", "Trainer")  # type: ignore[call-overload]
    group.role("actor", Trainer).call(Trainer.load, 1)  # type: ignore[arg-type]
    group.put([batch])  # type: ignore[type-var]
    group.put(batch).upper()  # type: ignore[attr-defined]
    group.mesh(1)  # type: ignore[arg-type]
    group.world_size.upper()  # type: ignore[attr-defined]
    group.execute_all_sync(Trainer.load, "path")  # type: ignore[arg-type]
    group.execute_all_sync("load", "path").upper()  # type: ignore[attr-defined]
    group.execute_rank_zero_async("load", "path").upper()  # type: ignore[attr-defined]
    group.spawn({"actor": Trainer}).upper()  # type: ignore[attr-defined]
    group.shutdown(1)  # type: ignore[call-arg]
    with group as same:
        same.call(Trainer.load, 1)  # type: ignore[arg-type]
    with group.trace() as trace:
        trace.upper()  # type: ignore[attr-defined]


def passes_methods_on(
    group: LocalWorkerGroup[Trainer], wanted: Callable[[str], list[str]], batch: DataProto
) -> Callable[[DataProto], DataProto]:
    wanted = group.bind(Trainer.load)  # type: ignore[assignment]
    return group.bind(Trainer.load)  # type: ignore[return-value]


def any_group(group: LocalWorkerGroup[Any]) -> None:
    group.call(Trainer.load, 2)  # type: ignore[arg-type]
    group.call(Trainer.update_actor, b"batch")  # type: ignore[arg-type]


def typed_wrappers(group: LocalWorkerGroup[Trainer], worker: Trainer) -> None:
    worker.wrapped(1)  # type: ignore[arg-type]
    worker.wrapped_anew(1, "a").bit_length()  # type: ignore[attr-defined]
    group.call(Trainer.wrapped, 1)  # type: ignore[arg-type]
    group.call(Trainer.wrapped, "path", strict="yes")  # type: ignore[arg-type]
    group.call(Trainer.wrapped, "path").upper()  # type: ignore[attr-defined]
    group.on.wrapped()  # type: ignore[call-arg]
    group.call(Trainer.wrapped_anew, 1, ["a"])  # type: ignore[arg-type]
    group.call(Trainer.wrapped_anew, [1])  # type: ignore[call-arg]
    group.call(Trainer.wrapped_anew, [1], ["a"])[0].bit_length()  # type: ignore[attr-defined]
