"""Mistakes that mypy finds on Ray with the plugin: every marked line must be an error."""

from ray import ObjectRef
from verl_ray import RayWorkerGroup

from tests.typing.workers import Trainer


def calls(group: RayWorkerGroup[Trainer], number: ObjectRef[int]) -> None:
    group.lod("path")  # type: ignore[attr-defined]
    group.load(number)  # type: ignore[arg-type]
    group.load_later("path")[0].upper()  # type: ignore[attr-defined]
