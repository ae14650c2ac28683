"""Mistakes that are found without the plugin: every line marked here must be an error."""

from typing import Any

import verl_dispatch
from verl_dispatch import (
    ClassWithInitArgs,
    Dispatch,
    Execute,
    LocalWorkerGroup,
    Worker,
    WorkerGroup,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_protocol import DataProto

from tests.typing.workers import EVEN_RANKS, BiggerTrainer, Other, Trainer


class Wrong(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_AL)  # type: ignore[attr-defined]
    def misspelt(self) -> None: ...

    @register(execute_mode=Execute.RANK_ONE)  # type: ignore[attr-defined]
    def misspelt_too(self) -> None: ...

    @register(Dispatch.DP_COMPUTE, Execute.RANK_ZERO)  # type: ignore[arg-type]
    def refused(self, value: int) -> int:
        return value

    @register(Dispatch.DP_COMPUTE_PROTO, execute_mode=Execute.RANK_ZERO, blocking=False)  # type: ignore[arg-type]
    def refused_too(self, batch: DataProto) -> DataProto:
        return batch

    @register(Dispatch.ONE_TO_ONE, execute_mode=Execute.RANK_ZERO)  # type: ignore[arg-type]
    def refused_by_rank(self, value: int) -> int:
        return value

    @register(make_nd_compute_dataproto_dispatch_fn("actor"), execute_mode=Execute.RANK_ZERO)  # type: ignore[arg-type]
    def refused_on_mesh(self, batch: DataProto) -> DataProto:
        return batch

    @register(Dispatch.RANK_ZERO, execute_mode=EVEN_RANKS)  # type: ignore[arg-type]
    def refused_on_some_ranks(self, value: int) -> int:
        return value


class ReadsNoColumns(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=3)  # type: ignore[call-overload, untyped-decorator]
    def numbered(self, batch: DataProto) -> DataProto:
        return batch


class AnswersNoBatch(Worker):
    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def number(self, batch: DataProto) -> int:
        return 0

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)  # type: ignore[type-var]
    def nothing(self, batch: DataProto) -> None: ...

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    async def mapping(self, batch: DataProto) -> dict[str, float]:
        return {}

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)  # type: ignore[type-var]
    def pair(self, function: Any, batch: DataProto) -> tuple[DataProto, int]:
        return batch, 0

    @register(make_nd_compute_dataproto_dispatch_fn("actor"))  # type: ignore[type-var]
    def listed(self, batch: DataProto) -> list[DataProto]:
        return [batch]

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def sometimes(self, batch: DataProto) -> DataProto | None:
        return batch


def constructor_arguments() -> None:
    verl_dispatch.LocalWorkerGrup()  # type: ignore[attr-defined]
    LocalWorkerGroup(Trainer, 2)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, lr="much")  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, lr=0.1, nme="x")  # type: ignore[call-overload]

    ClassWithInitArgs(Trainer, lr="much")  # type: ignore[arg-type]


def arguments(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.lod, "path")  # type: ignore[attr-defined]
    group.call(Trainer.helper)  # type: ignore[arg-type]
    group.call(Trainer.chat, "hello")  # type: ignore[arg-type]
    group.call(Other.size)  # type: ignore[arg-type]
    group.call(Trainer.load)  # type: ignore[call-arg]
    group.call(Trainer.load, 1)  # type: ignore[arg-type]
    group.call(Trainer.load, "path", stric=True)  # type: ignore[call-arg]
    group.call(Trainer.update_actor, [batch])  # type: ignore[arg-type]
    group.call(Trainer.update_actor, batch, batch)  # type: ignore[call-arg]
    group.call(Trainer.tune, batch, lr=0.1)  # type: ignore[arg-type]
    group.call(Trainer.weigh, batch, batch, 0.5)  # type: ignore[arg-type]
    group.call(Trainer.ping, 1)  # type: ignore[call-arg]
    group.call(Trainer.scale, 1.0)  # type: ignore[arg-type]
    group.call(Trainer.scale, range(2))  # type: ignore[arg-type]
    group.call(Trainer.seed, [1, 2], "ab")  # type: ignore[arg-type]
    group.call(Trainer.seed, 1, ["a"])  # type: ignore[arg-type]
    group.submit(Trainer.load, 1)  # type: ignore[arg-type]
    group.stream(Trainer.load, 1)  # type: ignore[arg-type]
    group.bind(Trainer.load)(1)  # type: ignore[arg-type]
    group.bind(Trainer.load).submit(1)  # type: ignore[arg-type]
    group.bind(Trainer.load).options(timeout="long")  # type: ignore[call-overload]
    group.bind(Other.size)  # type: ignore[arg-type]
    group.on.load(1)  # type: ignore[arg-type]
    group.on.lod("path")  # type: ignore[attr-defined]
    group.on.load.submit(1)  # type: ignore[arg-type]
    group.on.load.nothing()  # type: ignore[attr-defined]
    group.on.update_actor([batch])  # type: ignore[arg-type]
    group.call(Trainer.place, 1)  # type: ignore[arg-type]
    group.call(Trainer.apply, batch, batch)  # type: ignore[arg-type]


def results(group: LocalWorkerGroup[Trainer], batch: DataProto) -> None:
    group.call(Trainer.load, "path").upper()  # type: ignore[attr-defined]
    group.call(Trainer.update_actor, batch).append(batch)  # type: ignore[attr-defined]
    group.bind(Trainer.generate)(batch).union(batch)  # type: ignore[attr-defined]


def takes_the_bigger(group: WorkerGroup[BiggerTrainer, Any]) -> None: ...


def a_group_of_the_base_is_none_of_the_derived_class(
    base: LocalWorkerGroup[Trainer], other: LocalWorkerGroup[Other]
) -> None:
    takes_the_bigger(base)  # type: ignore[arg-type]
    takes_the_bigger(other)  # type: ignore[arg-type]
