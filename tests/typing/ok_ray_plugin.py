"""What mypy knows of groups on Ray with the plugin."""

from typing import assert_type

import ray
from ray import ObjectRef
from verl_protocol import DataProto, DataProtoFuture
from verl_ray import RayWorkerGroup

from tests.typing.workers import Rollouts, Trainer


def calls(group: RayWorkerGroup[Trainer], batch: DataProto, path: ObjectRef[str]) -> None:
    assert_type(group.load("path", strict=False), list[int])
    assert_type(group.load(path), list[int])
    assert_type(group.load(ray.put("path")), list[int])
    assert_type(group.update_actor(batch), DataProto)
    assert_type(group.update_actor(group.generate(batch)), DataProto)
    assert_type(group.seed([1, 2], name=[path, path]), list[float])


def non_blocking(group: RayWorkerGroup[Trainer], batch: DataProto) -> None:
    assert_type(group.load_later("path"), list[ObjectRef[int]])
    assert_type(group.save_later("path"), ObjectRef[str])
    assert_type(group.generate(batch), DataProtoFuture[Rollouts])
    assert_type(ray.get(group.load_later("path") + group.load_later("other")), list[int])


def roles(group: RayWorkerGroup, batch: DataProto) -> None:
    assert_type(group.role("actor", Trainer).update_actor(batch), DataProto)
