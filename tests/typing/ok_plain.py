"""What type checkers know of group calls without the plugin: mypy and pyright alike."""

from concurrent.futures import Future
from typing import Any, assert_type

from tensordict import TensorDict
from verl_dispatch import Broadcast, ClassWithInitArgs, Dispatch, LocalWorkerGroup, WorkerGroup
from verl_protocol import DataProto, DataProtoFuture

from tests.typing.workers import BiggerTrainer, Keeper, Rollouts, Settings, Trainer


def on_the_worker_itself(worker: Trainer, batch: DataProto) -> None:
    assert_type(worker.load("path", strict=False), int)
    assert_type(worker.update_actor(batch), DataProto)
    assert_type(BiggerTrainer(lr=0.1).update_actor(batch), Rollouts)
    assert_type(Dispatch.ONE_TO_ALL.name, str)
    mode: Dispatch = Dispatch.DP_COMPUTE
    assert_type(mode.value, int)


async def async_methods_stay_async(worker: Trainer, batch: DataProto) -> None:
    assert_type(await worker.load_async("path"), Settings)
    assert_type(await worker.generate_async(batch, temperature=0.5), DataProto)


def the_constructor_is_checked() -> LocalWorkerGroup[BiggerTrainer]:
    group = LocalWorkerGroup(BiggerTrainer, 2, lr=0.1)
    assert_type(group, LocalWorkerGroup[BiggerTrainer])
    assert_type(LocalWorkerGroup(Keeper, 2, 3), LocalWorkerGroup[Keeper[int]])
    assert_type(LocalWorkerGroup(Trainer, world_size=2, lr=0.1), LocalWorkerGroup[Trainer])
    assert_type(LocalWorkerGroup(Trainer, 2, 0.1, concurrent=True), LocalWorkerGroup[Trainer])
    assert_type(LocalWorkerGroup(ClassWithInitArgs(Trainer, lr=0.1), 2), LocalWorkerGroup[Trainer])
    return group


def paths_of(group: WorkerGroup[Trainer, Any]) -> list[int]:
    return group.call(Trainer.load, "path")


def a_group_of_a_derived_class_is_one_of_its_base(group: LocalWorkerGroup[BiggerTrainer]) -> None:
    base: LocalWorkerGroup[Trainer] = group
    assert_type(paths_of(group), list[int])
    assert_type(paths_of(base), list[int])


def arguments_as_they_are(group: LocalWorkerGroup[BiggerTrainer]) -> None:
    assert_type(group.call(Trainer.load, "path", strict=False), list[int])
    assert_type(group.call(Trainer.load, path="path"), list[int])
    assert_type(group.call(BiggerTrainer.load_later, "path"), list[int])
    assert_type(group.call(Trainer.load_async, "path"), list[Settings])
    assert_type(group.call(Trainer.save, "path"), str)
    assert_type(group.call(Trainer.save_later, "path"), str)
    assert_type(group.call(Trainer.first_only, "path"), str)
    assert_type(group.call(Trainer.step_of, "path"), int)
    assert_type(group.call(Trainer.on_even_ranks, 1), dict[int, int])
    assert_type(group.call(Trainer.set_many, 1, 2, key="value"), list[None])
    assert_type(group.call(BiggerTrainer.size), list[int])
    assert_type(group.call(Trainer.anything, "value", 1, 2), list[int])
    assert_type(group.call(Trainer.name_all, any="thing"), list[int])
    assert_type(group.call(Trainer.configure, "path", steps=3), list[int])


def one_entry_per_worker(group: LocalWorkerGroup[BiggerTrainer], batch: DataProto) -> None:
    assert_type(group.call(Trainer.ping), list[str])
    assert_type(group.call(Trainer.tokenize, batch), list[int])
    assert_type(group.call(Trainer.tokenize, [batch, batch]), list[int])
    assert_type(group.call(Trainer.seed, [1, 2], ("a", "b")), list[float])
    assert_type(group.call(Trainer.seed, [1, 2], Broadcast("a")), list[float])


def unchanged(batch: DataProto) -> DataProto:
    return batch


def batches(
    group: LocalWorkerGroup[BiggerTrainer], batch: DataProto, rollouts: Rollouts, td: TensorDict
) -> None:
    assert_type(group.call(Trainer.update_actor, batch), DataProto)
    assert_type(group.call(BiggerTrainer.update_actor, batch), Rollouts)
    assert_type(group.call(Trainer.update_actor, rollouts), DataProto)
    assert_type(group.call(Trainer.update_actor, Broadcast(rollouts)), DataProto)
    assert_type(group.call(Trainer.generate, batch), Rollouts)
    assert_type(group.call(Trainer.generate_async, batch, Broadcast(0.5)), DataProto)
    assert_type(group.call(Trainer.compare, rollouts, batch), Rollouts)
    assert_type(group.call(Trainer.tune, batch, lr=Broadcast(0.1)), DataProto)
    assert_type(group.call(Trainer.weigh, batch, batch, Broadcast(0.5)), DataProto)
    assert_type(group.call(Trainer.weigh, batch, batch, weight=Broadcast(0.5)), DataProto)
    assert_type(group.call(Trainer.values_of, td), TensorDict)
    assert_type(group.call(Trainer.losses, batch), list[dict[str, float]])
    assert_type(group.call(Trainer.update_on_mesh, batch), DataProto)
    assert_type(group.call(Trainer.apply, unchanged, batch), DataProto)
    assert_type(group.call(Trainer.update_actor, Broadcast(group.bind(Trainer.generate)(batch))), DataProto)


def futures_flow_on(group: LocalWorkerGroup[BiggerTrainer], batch: DataProto) -> None:
    future = group.bind(Trainer.generate)(batch)
    assert_type(future, DataProtoFuture[Rollouts])
    assert_type(group.call(Trainer.update_actor, future), DataProto)
    assert_type(future.get(), Rollouts)


def bind_follows_blocking(group: LocalWorkerGroup[BiggerTrainer], batch: DataProto) -> None:
    assert_type(group.bind(Trainer.load)("path", strict=True), list[int])
    assert_type(group.bind(Trainer.update_actor)(batch), DataProto)
    assert_type(group.bind(Trainer.update_on_mesh_later)(batch), DataProtoFuture[DataProto])
    assert_type(group.bind(Trainer.generate).call(batch), Rollouts)
    assert_type(group.bind(Trainer.generate).submit(batch).result(), Rollouts)
    assert_type(group.bind(Trainer.load).options(timeout_s=1.0)("path"), list[int])


def non_blocking_in_process(group: LocalWorkerGroup[BiggerTrainer]) -> None:
    for later in group.bind(Trainer.load_later)("path"):
        assert_type(later, Future[int])
    assert_type(group.bind(Trainer.save_later)("path"), Future[str])
    assert_type(group.bind(Trainer.ping_later)(), list[Future[str]])
    assert_type(group.bind(Trainer.seed_later)([1, 2]), list[Future[float]])
    # A list or a dict, as the arguments are.
    assert_type(group.bind(Trainer.place_later)({1: 2}), Any)


def verbs(group: WorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.submit(Trainer.update_actor, batch).result(), DataProto)
    assert_type(group.submit(Trainer.load_later, "path").result(timeout=1.0), list[int])
    for answer in group.stream(Trainer.update_actor, batch):
        assert_type(answer, tuple[int, DataProto])


async def futures_can_be_awaited(group: WorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(await group.submit(Trainer.update_actor, batch), DataProto)


def the_short_way_for_editors(group: LocalWorkerGroup[BiggerTrainer], batch: DataProto) -> None:
    assert_type(group.on.load("path", strict=False), list[int])
    assert_type(group.on.update_actor(batch), Rollouts)
    assert_type(group.on.generate(batch), DataProtoFuture[Rollouts])
    assert_type(group.on.load_later("path"), list[Any])
    assert_type(group.on.generate.call(batch), Rollouts)
    assert_type(group.on.generate.submit(batch).result(), Rollouts)
    assert_type(group.on.load.options(timeout_s=1.0)("path"), list[int])
    assert_type(str(group.on.load.plan("path")), str)
    for answer in group.on.losses.stream(batch):
        assert_type(answer, tuple[int, dict[str, float]])


def typed_wrappers(group: LocalWorkerGroup[BiggerTrainer], worker: Trainer) -> None:
    assert_type(worker.wrapped_anew(1, "a"), str)
    assert_type(group.call(Trainer.wrapped, "path", strict=False), list[int])
    assert_type(group.on.wrapped("path"), list[int])
    assert_type(group.call(Trainer.wrapped_anew, [1, 2], ["a", "b"]), list[str])


def named_ranks(group: LocalWorkerGroup[Trainer]) -> None:
    assert_type(group.call(Trainer.place, {0: 1}), Any)
    assert_type(group.call(Trainer.place, [1, 2]), Any)


def what_is_not_known(group: LocalWorkerGroup[BiggerTrainer], untyped: LocalWorkerGroup[Any]) -> None:
    assert_type(group.call(Trainer.untyped, 1), Any)
    assert_type(group.call(Trainer.from_dict, 1), Any)
    assert_type(group.call(Trainer.looked_up, 1), Any)
    assert_type(group.call(Trainer.total, 1), int)
    assert_type(untyped.anything(1), Any)


def fused_roles(group: LocalWorkerGroup, batch: DataProto) -> Any:
    group.fuse(["actor"])
    return group.actor.update_actor(batch)


def any_group(group: LocalWorkerGroup, batch: DataProto) -> Any:
    return group.update_actor(batch)


def methods_of_any_type(
    group: LocalWorkerGroup[BiggerTrainer], rollouts: Rollouts
) -> tuple[list[int], list[int], list[int], Rollouts, Rollouts]:
    """Only pyright knows these types, and mypy takes them for Any."""
    return (
        group.call(Trainer.same, 1),
        group.on.same(1),
        group.call(Trainer.echo, [1]),
        group.call(Trainer.filtered, rollouts),
        group.on.filtered(rollouts),
    )
