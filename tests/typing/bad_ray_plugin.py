"""Mistakes that mypy finds on Ray with the plugin: every marked line must be an error."""

import ray
from ray import ObjectRef
from verl_protocol import DataProto
from verl_ray import RayWorkerGroup

from tests.typing.workers import Trainer


def calls(group: RayWorkerGroup[Trainer], number: ObjectRef[int]) -> None:
    group.lod("path")  # type: ignore[attr-defined]
    group.load(number)  # type: ignore[arg-type]
    group.load_later("path")[0].upper()  # type: ignore[attr-defined]


def futures_of_ray(group: RayWorkerGroup[Trainer], number: ObjectRef[int], batch: DataProto) -> None:
    group.load([number])  # type: ignore[arg-type]
    group.load_later("path").result()  # type: ignore[attr-defined]
    group.load_later("path")[0].result()  # type: ignore[attr-defined]
    group.save_later("path").upper()  # type: ignore[attr-defined]
    group.seed([number], [number])  # type: ignore[list-item]
    group.scale(number)  # type: ignore[arg-type]
    group.update_actor(number)  # type: ignore[arg-type]
    group.update_actor(group.load_later("path"))  # type: ignore[arg-type]
    group.generate(batch)[0].upper()  # type: ignore[index]
    group.ping_later()[0].upper()  # type: ignore[attr-defined]
    ray.get(group.load_later("path"))[0].upper()  # type: ignore[attr-defined]
    group.role("actor", Trainer).load(number)  # type: ignore[arg-type]
    group.load.submit("path").get()  # type: ignore[attr-defined]
