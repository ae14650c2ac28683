"""Mistakes that mypy finds in `group.method(...)` with the plugin: every marked line must be an error."""

from concurrent.futures import Future
from typing import Any, TypeVar

from verl_dispatch import Broadcast, LocalWorkerGroup, WorkerGroup
from verl_protocol import DataProto

from tests.typing.workers import BiggerTrainer, Keeper, Rollouts, Trainer

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


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


def every_mode_takes_its_own(
    group: LocalWorkerGroup[Trainer], batch: DataProto, rollouts: Rollouts, later: Future[int]
) -> None:
    group.load(None)  # type: ignore[arg-type]
    group.load(["a", "b"])  # type: ignore[arg-type]
    group.load(Broadcast(1))  # type: ignore[arg-type]
    group.load(batch)  # type: ignore[arg-type]
    group.load_async(1)  # type: ignore[arg-type]
    group.load_later(path=1)  # type: ignore[arg-type]
    group.save("path", "path")  # type: ignore[call-arg]
    group.save_later(later)  # type: ignore[arg-type]
    group.step_of(1)  # type: ignore[arg-type]
    group.step_of(["path"])  # type: ignore[arg-type]
    group.first_only(1)  # type: ignore[arg-type]
    group.on_even_ranks("one")  # type: ignore[arg-type]
    group.set_many("one")  # type: ignore[arg-type]
    group.set_many(key=1)  # type: ignore[arg-type]
    group.name_all("thing")  # type: ignore[call-arg]
    group.name_all(any=1)  # type: ignore[arg-type]
    group.configure(steps=3)  # type: ignore[call-arg]
    group.itself(1)  # type: ignore[call-arg]
    group.ping("word")  # type: ignore[call-arg]
    group.ping_later(word="hello")  # type: ignore[call-arg]
    group.scale([1.0], [0.5])  # type: ignore[list-item]
    group.scale([1.0], offset=3)  # type: ignore[arg-type]
    group.scale(range(2))  # type: ignore[arg-type]
    group.scale(Broadcast("one"))  # type: ignore[arg-type]
    group.scale([later, "one"])  # type: ignore[list-item]
    group.scale({0: 1.0})  # type: ignore[arg-type]
    group.tokenize([1, 2])  # type: ignore[list-item]
    group.tokenize(Broadcast(1))  # type: ignore[arg-type]
    group.tokenize(batch[0])  # type: ignore[arg-type]
    group.seed([1])  # type: ignore[call-arg]
    group.seed([1], ["a"], ["b"])  # type: ignore[call-arg]
    group.seed(["a"], [1])  # type: ignore[list-item]
    group.seed(name=["a"], seeds=[1])  # type: ignore[call-arg]
    group.seed_later(1)  # type: ignore[arg-type]
    group.seed_later(later)  # type: ignore[arg-type]
    group.update_actor()  # type: ignore[call-arg]
    group.update_actor(None)  # type: ignore[arg-type]
    group.update_actor("batch")  # type: ignore[arg-type]
    group.update_actor(later)  # type: ignore[arg-type]
    group.update_actor(batch, batch)  # type: ignore[call-arg]
    group.update_actor(Broadcast([batch]))  # type: ignore[arg-type]
    group.update_actor(batch=[batch])  # type: ignore[arg-type]
    group.generate(batch[0])  # type: ignore[arg-type]
    group.generate_async(batch, temperature=0.5)  # type: ignore[arg-type]
    group.generate_async(temperature=Broadcast(0.5))  # type: ignore[call-arg]
    group.compare(rollouts)  # type: ignore[call-arg]
    group.compare(reference=batch, policy=batch)  # type: ignore[arg-type]
    group.compare(rollouts, reference=None)  # type: ignore[arg-type]
    group.tune(batch, lr=0.1)  # type: ignore[arg-type]
    group.tune(batch, lr=Broadcast("much"))  # type: ignore[arg-type]
    group.tune(batch, Broadcast(0.1))  # type: ignore[call-arg]
    group.weigh(batch, batch, 0.5)  # type: ignore[arg-type]
    group.weigh(batch, weight=Broadcast(0.5))  # type: ignore[call-arg]
    group.values_of(batch)  # type: ignore[arg-type]
    group.hand_on(batch)  # type: ignore[arg-type]
    group.apply(len, batch)  # type: ignore[arg-type]
    group.apply(lambda part: part)  # type: ignore[call-arg]
    group.apply(lambda part: part, [batch])  # type: ignore[arg-type]
    group.losses([batch])  # type: ignore[arg-type]
    group.losses(batch, step=1)  # type: ignore[call-arg]
    group.update_on_mesh([batch])  # type: ignore[arg-type]
    group.update_on_mesh_later(None)  # type: ignore[arg-type]
    group.on_last_stage(batch, batch)  # type: ignore[call-arg]
    group.place("ab")  # type: ignore[call-overload]
    group.place({"zero": 1})  # type: ignore[dict-item]
    group.place(batch)  # type: ignore[call-overload]
    group.total("one")  # type: ignore[arg-type]
    group.total([1, 2])  # type: ignore[arg-type]
    group.count(1)  # type: ignore[arg-type]
    group.filtered([batch])  # type: ignore[arg-type]
    group.echo(1)  # type: ignore[arg-type]
    group.same()  # type: ignore[call-arg]


def every_mode_gives_its_own(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.load("path").bit_length()  # type: ignore[attr-defined]
    group.load_async("path")[0].upper()  # type: ignore[attr-defined]
    group.load_later("path").result()  # type: ignore[attr-defined]
    group.save("path").append("a")  # type: ignore[attr-defined]
    group.save_later("path").upper()  # type: ignore[attr-defined]
    group.step_of("path")[0]  # type: ignore[index]
    group.on_even_ranks.call(1).append(2)  # type: ignore[attr-defined]
    group.set_many(1)[0].upper()  # type: ignore[attr-defined]
    group.same("a")[0].bit_length()  # type: ignore[attr-defined]
    group.ping().upper()  # type: ignore[attr-defined]
    group.ping_later()[0].upper()  # type: ignore[attr-defined]
    group.scale([1.0]).is_integer()  # type: ignore[attr-defined]
    group.tokenize(batch).union(batch)  # type: ignore[attr-defined]
    group.seed([1], ["a"])[0].upper()  # type: ignore[attr-defined]
    group.seed_later([1])[0].is_integer()  # type: ignore[attr-defined]
    group.generate(batch).tensor("a")  # type: ignore[attr-defined]
    group.generate.call(batch).get()  # type: ignore[attr-defined]
    group.compare.submit(batch, batch)  # type: ignore[arg-type]
    group.losses(batch).union(batch)  # type: ignore[attr-defined]
    group.losses(batch)[0].union(batch)  # type: ignore[attr-defined]
    group.update_on_mesh(batch).append(batch)  # type: ignore[attr-defined]
    group.update_on_mesh_later(batch).tensor("a")  # type: ignore[attr-defined]
    group.place({0: 1}).append("a")  # type: ignore[attr-defined]
    group.place([1]).items()  # type: ignore[attr-defined]
    group.total(1).append(1)  # type: ignore[attr-defined]
    group.apply(lambda part: part, batch).get()  # type: ignore[attr-defined]


def every_verb(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.update_actor.call([batch])  # type: ignore[arg-type]
    group.update_actor.submit(batch).union(batch)  # type: ignore[attr-defined]
    group.update_actor.submit(batch).result().upper()  # type: ignore[attr-defined]
    group.update_actor.stream([batch])  # type: ignore[arg-type]
    group.update_actor.plan(1)  # type: ignore[arg-type]
    group.update_actor.plan(batch).upper()  # type: ignore[attr-defined]
    group.update_actor.options(timeout_s="long")  # type: ignore[call-overload]
    group.update_actor.options(uneven=True)  # type: ignore[call-overload]
    group.update_actor.options(retries=3)  # type: ignore[call-overload]
    group.update_actor.options(balance="tokens")([batch])  # type: ignore[arg-type]
    group.update_actor.signature.upper()  # type: ignore[attr-defined]
    group.methods.load(1)  # type: ignore[arg-type]
    group.methods.update_actor(batch).upper()  # type: ignore[attr-defined]
    group.load = 3  # type: ignore[attr-defined]
    for rank, losses in group.losses.stream(batch):
        rank.upper()  # type: ignore[attr-defined]
        losses.upper()  # type: ignore[attr-defined]


async def awaited(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    await group.load("path")  # type: ignore[misc]
    await group.load_async("path")  # type: ignore[misc]
    (await group.update_actor.submit(batch)).upper()  # type: ignore[attr-defined]
    (await group.generate(batch)).upper()  # type: ignore[attr-defined]


def other_groups(
    base: WorkerGroup[Trainer, Any],
    one_of_two: LocalWorkerGroup[Trainer | BiggerTrainer],
    either: LocalWorkerGroup[Trainer] | LocalWorkerGroup[BiggerTrainer],
    maybe: LocalWorkerGroup[Trainer] | None,
    keeper: LocalWorkerGroup[Keeper[int]],
    batch: DataProto,
) -> None:
    base.lod("path")  # type: ignore[attr-defined]
    base.load(1)  # type: ignore[arg-type]
    one_of_two.size()  # type: ignore[attr-defined]
    one_of_two.load(1)  # type: ignore[arg-type]
    either.size()  # type: ignore[attr-defined]
    either.load(1)  # type: ignore[arg-type]
    either.update_actor(batch).append(batch)  # type: ignore[attr-defined]
    maybe.load("path")  # type: ignore[union-attr]
    keeper.swap("text")  # type: ignore[arg-type]
    keeper.swap(1)[0].upper()  # type: ignore[attr-defined]
    LocalWorkerGroup(Trainer, 2, lr=0.1).lod("path")  # type: ignore[attr-defined]
    with LocalWorkerGroup(Trainer, 2, lr=0.1) as group:
        group.load(1)  # type: ignore[arg-type]


def generic_functions(group: WorkerGroup[AnyTrainer, Any], batch: DataProto) -> None:
    group.lod("path")  # type: ignore[attr-defined]
    group.load(1)  # type: ignore[arg-type]
    group.update_actor(batch).upper()  # type: ignore[attr-defined]


def typed_wrappers(group: LocalWorkerGroup[Trainer]) -> None:
    group.wrapped(1)  # type: ignore[arg-type]
    group.wrapped("path", strict="yes")  # type: ignore[arg-type]
    group.wrapped_anew([1])  # type: ignore[call-arg]
    group.wrapped_anew(1, name=["a"])  # type: ignore[arg-type]
    group.wrapped_anew([1], ["a"])[0].bit_length()  # type: ignore[attr-defined]
