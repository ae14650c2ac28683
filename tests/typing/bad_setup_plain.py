"""Mistakes before the first call, where methods are registered and groups made: marked lines are wrong."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from verl_dispatch import (
    Broadcast,
    ClassWithInitArgs,
    Dispatch,
    Execute,
    LocalWorkerGroup,
    Mesh,
    ResourcePool,
    Worker,
    WorkerGroup,
    create_colocated_worker_raw_cls,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_dispatch_mode,
    register_execute_mode,
)
from verl_dispatch.typed_modes import Arg, Mode, Res
from verl_protocol import DataProto, DataProtoFuture

from tests.typing.workers import EVEN_RANKS, SUM, Keeper, Other, Settings, Trainer

MESH = make_nd_compute_dataproto_dispatch_fn("actor")


class Options(Worker):
    @register("ONE_TO_ALL")  # type: ignore[call-overload, untyped-decorator]
    def named(self) -> None: ...

    @register(Execute.ALL)  # type: ignore[call-overload, untyped-decorator]
    def other_enum(self) -> None: ...

    @register(dispatch_mode=None)  # type: ignore[call-overload, untyped-decorator]
    def no_mode(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL, Dispatch.ONE_TO_ALL)  # type: ignore[call-overload, untyped-decorator]
    def two_modes(self) -> None: ...

    @register(Dispatch)  # type: ignore[call-overload, untyped-decorator]
    def the_enum_itself(self) -> None: ...

    @register(execute_mode="ALL")  # type: ignore[call-overload, untyped-decorator]
    def named_ranks(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL, blocking="no")  # type: ignore[call-overload, untyped-decorator]
    def text_as_flag(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL, blockin=False)  # type: ignore[call-overload, untyped-decorator]
    def misspelt_option(self) -> None: ...

    @register(materialize_futures="yes")  # type: ignore[call-overload, untyped-decorator]
    def text_as_other_flag(self) -> None: ...

    @register(read_only="yes")  # type: ignore[call-overload, untyped-decorator]
    def text_as_read_only(self) -> None: ...

    @register(remote="yes")  # type: ignore[call-overload, untyped-decorator]
    def text_as_remote(self) -> None: ...

    @register(tensor_transport=3)  # type: ignore[call-overload, untyped-decorator]
    def number_as_transport(self) -> None: ...

    @register(Dispatch.DP_COMPUTE_PROTO, reads=3)  # type: ignore[call-overload, untyped-decorator]
    def number_as_columns(self, batch: DataProto) -> DataProto:
        return batch

    @register  # type: ignore[call-overload]
    def no_parentheses(self) -> None: ...

    @register(Dispatch.ONE_TO_ALL)  # type: ignore[prop-decorator]
    @property
    def a_property(self) -> int:
        return 0

    @register(Dispatch.ONE_TO_ALL)  # type: ignore[arg-type]
    class Inner: ...


class Pairs(Worker):
    @register(Dispatch.DP_COMPUTE_METRIC, Execute.RANK_ZERO)  # type: ignore[arg-type]
    def metric(self, batch: DataProto) -> float:
        return 0.0

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, Execute.RANK_ZERO)  # type: ignore[arg-type]
    def function(self, function: Any, batch: DataProto) -> DataProto:
        return batch

    @register(Dispatch.DIRECT_ROLLOUT_METHOD, Execute.RANK_ZERO)  # type: ignore[arg-type]
    def direct(self) -> None: ...

    @register(Dispatch.DP_COMPUTE, EVEN_RANKS)  # type: ignore[arg-type]
    def values_on_some(self, value: int) -> int:
        return value

    @register(Dispatch.DP_COMPUTE_PROTO, EVEN_RANKS)  # type: ignore[arg-type]
    def batches_on_some(self, batch: DataProto) -> DataProto:
        return batch

    @register(MESH, EVEN_RANKS)  # type: ignore[arg-type]
    def mesh_on_some(self, batch: DataProto) -> DataProto:
        return batch


class AnswersNoBatch(Worker):
    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def text(self, batch: DataProto) -> str:
        return ""

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def tensor(self, batch: DataProto) -> torch.Tensor:
        return batch.tensor("a")

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def array(self, batch: DataProto) -> NDArray[Any]:
        return np.zeros(1)

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def pieces(self, batch: DataProto) -> list[DataProto]:
        return batch.chunk(2)

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def stream(self, batch: DataProto) -> Iterator[DataProto]:
        yield batch

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def settings(self, batch: DataProto) -> Settings:
        return Settings()

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    def marked(self, batch: DataProto) -> Broadcast[DataProto]:
        return Broadcast(batch)

    @register(Dispatch.DP_COMPUTE_PROTO)  # type: ignore[type-var]
    async def later(self, batch: DataProto) -> int:
        return 0

    @register(Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)  # type: ignore[type-var]
    def of_function(self, function: Any, batch: DataProto) -> float:
        return 0.0

    @register(MESH)  # type: ignore[type-var]
    async def on_mesh_later(self, batch: DataProto) -> dict[str, int]:
        return {}

    @register(MESH, blocking=False)  # type: ignore[type-var]
    def on_mesh(self, batch: DataProto) -> int:
        return 0


class TakesNobody(Worker):
    @register(Dispatch.ONE_TO_ALL)  # type: ignore[arg-type]
    def no_self() -> None: ...


def workers_themselves(worker: Trainer, batch: DataProto) -> None:
    worker.load(1)  # type: ignore[arg-type]
    worker.load("path").append(1)  # type: ignore[attr-defined]
    worker.update_actor([batch])  # type: ignore[arg-type]
    worker.update_actor(Broadcast(batch))  # type: ignore[arg-type]
    worker.load.submit("path")  # type: ignore[attr-defined]
    worker.scale([1.0])  # type: ignore[arg-type]
    worker.place({0: 1})  # type: ignore[arg-type]
    worker.rank.upper()  # type: ignore[attr-defined]
    worker.nothing()  # type: ignore[attr-defined]
    Trainer.chat(batch, "hello")  # type: ignore[arg-type, unused-coroutine]


class Derived(Trainer):
    def load(self, path: int) -> int:  # type: ignore[override]
        return path

    def work(self) -> None:
        self.load("path")  # type: ignore[arg-type]
        self.update_actor(1)  # type: ignore[arg-type]
        super().load(1)  # type: ignore[arg-type]


def groups() -> None:
    LocalWorkerGroup()  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, "2", lr=0.1)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, lr=0.1)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, 0.1, "name", 3)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, 0.1, lr=0.1)  # type: ignore[misc]
    LocalWorkerGroup(Trainer, 2, lr=0.1, name=3)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer(lr=0.1), 2)  # type: ignore[call-overload]
    LocalWorkerGroup("Trainer", 2)  # type: ignore[call-overload]
    LocalWorkerGroup(None, 2)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, lr=0.1, concurrent="yes")  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, lr=0.1, name_prefix=3)  # type: ignore[call-overload]
    LocalWorkerGroup(Trainer, 2, lr=0.1, remote="yes")  # type: ignore[call-overload]
    LocalWorkerGroup(ClassWithInitArgs(Trainer, lr=0.1))  # type: ignore[call-overload]
    LocalWorkerGroup(ClassWithInitArgs(Trainer, lr=0.1), 2, 0.1)  # type: ignore[call-overload]
    LocalWorkerGroup(Keeper, 2)  # type: ignore[call-overload]
    ClassWithInitArgs()  # type: ignore[call-arg]
    ClassWithInitArgs(Trainer)  # type: ignore[call-arg]
    ClassWithInitArgs(Trainer, 0.1, nme="x")  # type: ignore[call-arg]
    ClassWithInitArgs(Trainer, 0.1, "name", 3)  # type: ignore[call-arg]
    ClassWithInitArgs("Trainer", 0.1)  # type: ignore[arg-type]
    WorkerGroup(3)  # type: ignore[arg-type]
    group: LocalWorkerGroup[Trainer] = LocalWorkerGroup(Other, 2)  # type: ignore[call-overload]
    kept: LocalWorkerGroup[Keeper[str]] = LocalWorkerGroup(Keeper, 2, 3)  # type: ignore[call-overload]
    LocalWorkerGroup(Keeper, 2, 3).call(Keeper[int].swap, "text")  # type: ignore[arg-type]
    create_colocated_worker_raw_cls([Trainer])  # type: ignore[arg-type]
    ResourcePool(3)  # type: ignore[arg-type]
    ResourcePool([2], max_colocate_count="two")  # type: ignore[arg-type]
    Mesh("actor")  # type: ignore[call-arg]
    Mesh(3, (0, 1), (True, True))  # type: ignore[arg-type]


def modes_of_ones_own() -> None:
    register_dispatch_mode("ONE")  # type: ignore[call-arg]
    register_dispatch_mode("ONE", 1, 2)  # type: ignore[arg-type]
    register_dispatch_mode(1, len, len)  # type: ignore[arg-type]
    register_execute_mode("EVEN")  # type: ignore[call-arg]
    register_execute_mode("EVEN", [0, 2])  # type: ignore[arg-type]
    make_nd_compute_dataproto_dispatch_fn()  # type: ignore[call-arg]
    make_nd_compute_dataproto_dispatch_fn(3)  # type: ignore[arg-type]
    Dispatch.ONE_TO_AL  # type: ignore[attr-defined]
    Dispatch.ONE_TO_ALL.nam  # type: ignore[attr-defined]
    Dispatch.ONE_TO_ALL.name = 3  # type: ignore[assignment]
    Execute.SOME  # type: ignore[attr-defined]
    Dispatch[3]  # type: ignore[index]
    SUM.total  # type: ignore[attr-defined]
    Broadcast()  # type: ignore[call-arg]
    Broadcast(1).valu  # type: ignore[attr-defined]
    Broadcast(1).value.upper()  # type: ignore[attr-defined]


class TooFew(Mode[Arg, Res]):  # type: ignore[type-arg]
    """A mode without what it gives when not blocking."""


def futures_alone(future: DataProtoFuture[DataProto]) -> None:
    future.get().upper()  # type: ignore[attr-defined]
    future.get(timeout="long")  # type: ignore[arg-type]
    future.chunk("2")  # type: ignore[arg-type]
    future.chunk(2)[0].tensor("a")  # type: ignore[attr-defined]
    future.tensor("a")  # type: ignore[attr-defined]
    DataProtoFuture.concat(future)  # type: ignore[arg-type]
    len(future.get().chunk(2)[0].tensors()["a"].upper())  # type: ignore[attr-defined]
