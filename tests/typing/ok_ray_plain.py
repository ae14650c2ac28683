"""What type checkers know of groups on Ray without the plugin."""

from typing import Any, assert_type

import ray
from ray import ObjectRef
from verl_protocol import DataProto, DataProtoFuture
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

from tests.typing.workers import Rollouts, Trainer


def the_worker_class_is_known(pool: RayResourcePool) -> RayWorkerGroup[Trainer]:
    template = RayClassWithInitArgs(Trainer, lr=0.1)
    assert_type(template, RayClassWithInitArgs[Trainer])
    group = RayWorkerGroup(pool, template)
    assert_type(group, RayWorkerGroup[Trainer])
    return group


def also_through_ray_remote(pool: RayResourcePool) -> None:
    template = RayClassWithInitArgs(cls=ray.remote(Trainer), lr=0.1)
    assert_type(template, RayClassWithInitArgs[Trainer])
    assert_type(RayWorkerGroup(resource_pool=pool, ray_cls_with_init=template), RayWorkerGroup[Trainer])


def calls(group: RayWorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.call(Trainer.load, "path", strict=False), list[int])
    assert_type(group.call(Trainer.update_actor, batch), DataProto)
    assert_type(group.submit(Trainer.generate, batch).result(), Rollouts)


def non_blocking(group: RayWorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.bind(Trainer.load_later)("path"), list[ObjectRef[int]])
    assert_type(group.bind(Trainer.save_later)("path"), ObjectRef[str])
    assert_type(group.bind(Trainer.place_later)({1: 2}), Any)
    assert_type(group.bind(Trainer.generate)(batch), DataProtoFuture[Rollouts])
    assert_type(ray.get(group.bind(Trainer.load_later)("path")), list[int])


def low_level(group: RayWorkerGroup[Trainer]) -> None:
    assert_type(group.execute_all("load", "path"), list[ObjectRef[Any]])
    assert_type(group.execute_rank_zero("load", "path"), ObjectRef[Any])


def roles(group: RayWorkerGroup[Any], batch: DataProto) -> None:
    actor = group.role("actor", Trainer)
    assert_type(actor, RayWorkerGroup[Trainer])
    assert_type(actor.call(Trainer.update_actor, batch), DataProto)


def any_group(group: RayWorkerGroup, batch: DataProto) -> Any:
    return group.update_actor(batch)
