"""Mistakes that are found on Ray without the plugin: every marked line must be an error."""

import verl_ray
from verl_ray import RayClassWithInitArgs, RayWorkerGroup

from tests.typing.workers import Other, Trainer


def templates() -> None:
    verl_ray.RayWorkerGrup()  # type: ignore[attr-defined]
    RayWorkerGroup(None, RayClassWithInitArgs(Trainer, lr=0.1), name_prefx="a")  # type: ignore[arg-type]
    RayClassWithInitArgs(Trainer)  # type: ignore[call-overload]
    RayClassWithInitArgs(Trainer, lr="much")  # type: ignore[call-overload]


def calls(group: RayWorkerGroup[Trainer]) -> None:
    group.call(Other.size)  # type: ignore[arg-type]
    group.call(Trainer.load, 1)  # type: ignore[arg-type]
    group.bind(Trainer.load_later)("path")[0].upper()  # type: ignore[attr-defined]
