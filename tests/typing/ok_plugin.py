"""What mypy knows of `group.method(...)` with the plugin."""

from concurrent.futures import Future
from typing import Any, TypeVar, assert_type

from tensordict import TensorDict
from verl_dispatch import Broadcast, LocalWorkerGroup, WorkerGroup, create_colocated_worker_raw_cls
from verl_protocol import DataProto, DataProtoFuture

from tests.typing.workers import BiggerTrainer, Keeper, Rollouts, Settings, Trainer

AnyTrainer = TypeVar("AnyTrainer", bound=Trainer)


def arguments_as_they_are(group: LocalWorkerGroup[BiggerTrainer], later: Future[str]) -> None:
    assert_type(group.load("path"), list[int])
    assert_type(group.load(path="path", strict=False), list[int])
    assert_type(group.load(later), list[int])
    assert_type(group.load(Broadcast("path")), list[int])
    assert_type(group.load(Broadcast(later)), list[int])
    assert_type(group.load_later("path"), list[Future[int]])
    assert_type(group.load_async("path"), list[Settings])
    assert_type(group.save("path"), str)
    assert_type(group.save_later(path="path"), Future[str])
    assert_type(group.first_only("path"), str)
    assert_type(group.step_of("path"), int)
    assert_type(group.on_even_ranks(1), Any)
    assert_type(group.on_even_ranks.call(1), dict[int, int])
    assert_type(group.set_many(1, 2, key="value"), list[None])
    assert_type(group.same(1), list[int])
    assert_type(group.itself(), list[Any])
    assert_type(group.configure("path", steps=3), list[int])
    assert_type(group.name_all(any="thing"), list[int])
    assert_type(group.size(), list[int])


def one_entry_per_worker(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.ping(), list[str])
    assert_type(group.ping_later(), list[Future[str]])
    assert_type(group.scale([1.0, 2.0]), list[float])
    assert_type(group.scale([1.0, 2.0], offset=(1, 2)), list[float])
    assert_type(group.scale(factor=Broadcast(1.0), offset=[1, 2]), list[float])
    assert_type(group.tokenize(batch), list[int])
    assert_type(group.tokenize(batch=[batch, batch]), list[int])
    assert_type(group.seed([1, 2], name=["a", "b"]), list[float])
    assert_type(group.seed_later((1, 2)), list[Future[float]])


def batches(group: LocalWorkerGroup[Trainer], batch: DataProto, rollouts: Rollouts, td: TensorDict) -> None:
    assert_type(group.update_actor(batch), DataProto)
    assert_type(group.update_actor(batch=rollouts), DataProto)
    assert_type(group.generate(batch), DataProtoFuture[Rollouts])
    assert_type(group.update_actor(group.generate(prompts=batch)), DataProto)
    assert_type(group.update_actor(Broadcast(group.generate(batch))), DataProto)
    assert_type(group.tokenize([batch, group.generate(batch)]), list[int])
    assert_type(group.generate_async(batch), DataProto)
    assert_type(group.generate_async(batch, temperature=Broadcast(0.5)), DataProto)
    assert_type(group.compare(group.generate(batch), reference=batch), Rollouts)
    assert_type(group.values_of(td), TensorDict)
    assert_type(group.hand_on(group.generate(batch)), DataProto)
    assert_type(group.apply(lambda part: part, batch), DataProto)
    assert_type(group.losses(batch), list[dict[str, float]])
    assert_type(group.update_on_mesh(batch), DataProto)
    assert_type(group.update_on_mesh_later(batch=batch), DataProtoFuture[DataProto])


def typed_wrappers(group: LocalWorkerGroup[Trainer]) -> None:
    assert_type(group.wrapped("path", strict=False), list[int])
    assert_type(group.wrapped_anew([1, 2], name=["a", "b"]), list[str])


def named_ranks(group: LocalWorkerGroup[Trainer]) -> None:
    assert_type(group.place({0: 1}), dict[int, str])
    assert_type(group.place([1, 2]), list[str])
    assert_type(group.place.submit({0: 1}).result(), Any)


def verbs(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.generate.call(prompts=batch), Rollouts)
    assert_type(group.generate.submit(batch).result(), Rollouts)
    assert_type(group.load.options(timeout_s=1.0)("path"), list[int])
    assert_type(str(group.load.plan("path")), str)
    for answer in group.losses.stream(batch):
        assert_type(answer, tuple[int, dict[str, float]])


def modes_of_ones_own(group: LocalWorkerGroup[Trainer]) -> None:
    assert_type(group.total(1), int)
    assert_type(group.untyped("anything", even="this"), Any)
    assert_type(group.from_dict("anything"), Any)
    assert_type(group.looked_up("anything"), Any)


def inherited_and_overridden(group: LocalWorkerGroup[BiggerTrainer], batch: DataProto) -> None:
    assert_type(group.update_actor(batch), Rollouts)
    assert_type(group.losses(batch), list[dict[str, float]])


def generic_workers(group: LocalWorkerGroup[Keeper[int]]) -> None:
    assert_type(group.swap(1), list[int])


def generic_functions(group: WorkerGroup[AnyTrainer], batch: DataProto) -> DataProto:
    return group.update_actor(batch)


def one_of_two(group: LocalWorkerGroup[Trainer] | LocalWorkerGroup[BiggerTrainer], batch: DataProto) -> None:
    assert_type(group.update_actor(batch), DataProto)


def workers_of_two_classes(group: LocalWorkerGroup[Trainer | BiggerTrainer], batch: DataProto) -> None:
    assert_type(group.update_actor(batch), DataProto)


def what_the_group_itself_has(group: LocalWorkerGroup[Trainer]) -> None:
    assert_type(group.world_size, int)


def unknown_workers(group: LocalWorkerGroup[Any]) -> None:
    assert_type(group.anything(1), Any)


def methods_alone(group: LocalWorkerGroup[Trainer]) -> None:
    assert_type(group.methods.load("path"), list[int])


def maybe_no_group(group: LocalWorkerGroup[Trainer] | None, batch: DataProto) -> None:
    if group is not None:
        assert_type(group.update_actor(batch), DataProto)


def any_keyword(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.with_options(batch, temperature=Broadcast(1.0)), DataProto)


def fused_roles(roles: dict[str, type]) -> None:
    group = LocalWorkerGroup(create_colocated_worker_raw_cls(roles), 2)
    group.fuse(["actor"])
    assert_type(group.actor.ping(), Any)


def role_in_process(group: LocalWorkerGroup, batch: DataProto) -> None:
    assert_type(group.role("actor", Trainer).update_actor(batch), DataProto)


def methods_of_any_type(group: LocalWorkerGroup[Trainer], rollouts: Rollouts) -> None:
    assert_type(group.same("a"), list[str])
    assert_type(group.echo([1]), list[int])
    assert_type(group.filtered(rollouts), Rollouts)
    assert_type(group.beside([Trainer(lr=0.1)]), list[int])
    assert_type(group.count(), int)
