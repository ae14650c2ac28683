"""Results that stay with their workers: what moves how, what is refused, and what is left."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import ray
import torch
from verl_dispatch import Dispatch, Worker, WorkerGroupError, register
from verl_protocol import DataProto, DataProtoFuture
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls
from verl_ray.wire.direct import DirectAnswer, private_copy
from verl_ray.wire.refs import get_answers, transport_of

pytestmark = pytest.mark.timeout(180)

LARGE = 1 << 20


class Direct(Worker):
    def __init__(self) -> None:
        self.weights = torch.full((LARGE,), float(self.rank))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False, tensor_transport="gloo")
    def give(self) -> dict[str, Any]:
        return {"w": self.weights, "rank": self.rank, "view": torch.arange(6).reshape(2, 3).t()}

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, tensor_transport="GLOO")
    def give_now(self) -> torch.Tensor:
        return self.weights[:2]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, tensor_transport="gloo", blocking=False)
    async def give_later(self) -> torch.Tensor:
        return self.weights[:3]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="gloo")
    def double(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(
            tensors={"x": data.tensor("x") * 2}, non_tensors={"rank": np.full(len(data), self.rank)}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="gloo")
    def shrink(self, data: DataProto) -> DataProto:
        return data[: 1 + self.rank]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="gloo")
    def bare(self, data: DataProto) -> Any:
        return data.tensor("x")

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="gloo")
    def refuse(self, data: DataProto) -> DataProto:
        if self.rank == 1:
            raise ValueError("no such rows")
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, given: Any) -> tuple[int, float, list[int]]:
        total = float(given["w"].sum())
        given["w"].zero_()  # an argument is the method's own
        return given["rank"], total, given["view"].flatten().tolist()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def read(self, data: DataProto) -> list[int]:
        return [int(value) for value in data.tensor("x")[:, 0]]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, materialize_futures=False)
    def read_later(self, data: DataProtoFuture[DataProto]) -> list[int]:
        return [int(value) for value in data.get().tensor("x")[:, 0]]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def kept(self) -> int:
        """Results that Ray keeps for others in this worker."""
        worker: Any = ray._private.worker.global_worker
        return int(worker.rdt_manager.rdt_store.get_num_objects())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def place(self) -> tuple[str | None, str | None, str | None]:
        return os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT"), self.rank_info.master_port


class Other(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, given: Any) -> int:
        return 1

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def read(self, data: DataProto) -> int:
        return len(data)


@pytest.fixture(scope="module")
def pool(running_ray: None) -> Iterator[RayResourcePool]:
    with RayResourcePool([3], use_gpu=False, cpus_per_worker=0.1, max_colocate_count=3) as places:
        yield places


@pytest.fixture(scope="module")
def group(pool: RayResourcePool) -> Iterator[RayWorkerGroup[Direct]]:
    with RayWorkerGroup(pool, RayClassWithInitArgs(Direct), name_prefix="direct") as started:
        yield started


def batch(count: int, width: int = 1) -> DataProto:
    return DataProto.from_dict(tensors={"x": torch.arange(count)[:, None].repeat(1, width)})


def nothing_kept(group: RayWorkerGroup[Direct]) -> bool:
    deadline = time.monotonic() + 30
    while any(group.kept()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(group.kept())


def stored_bytes(refs: list[Any]) -> list[int]:
    """What Ray's object store holds of each."""
    found = ray.experimental.get_object_locations(refs)
    return [int(found[ref]["object_size"] or 0) for ref in refs]


def test_tensors_stay_with_their_workers_and_reach_the_others_unstored(group: RayWorkerGroup[Direct]) -> None:
    refs = group.give()
    assert group.take(refs[1]) == [(1, float(LARGE), [0, 3, 1, 4, 2, 5])] * 3
    assert [transport_of(ref) for ref in refs] == ["gloo"] * 3
    assert max(stored_bytes(refs)) < 10_000
    assert group.kept() == [1, 1, 1]
    # What the methods wrote into their arguments reached neither the worker's own tensor nor the result.
    assert group.take(refs[1])[1] == (1, float(LARGE), [0, 3, 1, 4, 2, 5])
    assert [float(value["w"][-1]) for value in get_answers(refs)] == [0.0, 1.0, 2.0]
    del refs
    assert nothing_kept(group)


@pytest.mark.parametrize("count", [6, 7, 2, 0])
@pytest.mark.parametrize("read", ["read", "read_later"])
def test_batches_are_handed_on_whatever_their_rows(
    group: RayWorkerGroup[Direct], count: int, read: str
) -> None:
    future = group.double.options(auto_padding=True)(batch(count))
    parts = getattr(group, read).options(auto_padding=True)(future)
    rows = [2 * min(row, count - 1) for row in range(-(-count // 3) * 3)]
    assert [value for part in parts for value in part] == rows
    assert future.row_count() == count
    again = future.get()
    assert again.tensor("x")[:, 0].tolist() == [2 * row for row in range(count)]
    assert len(set(again.non_tensor_batch["rank"])) == min(count, 3) or not count


def test_only_the_parts_needed_are_sent(group: RayWorkerGroup[Direct]) -> None:
    future = group.double(batch(6, LARGE // 8))
    assert group.read(future) == [[0, 2], [4, 6], [8, 10]]
    parts: list[Any] = future.futures
    assert max(stored_bytes([part.ref for part in parts])) < 10_000
    unequal = group.shrink(batch(9))  # 1, 2 and 3 rows: 0 | 3 4 | 6 7 8
    assert group.read(unequal) == [[0, 3], [4, 6], [7, 8]]
    halves = DataProtoFuture.concat([unequal.chunk(2)[1], future])
    assert group.read(halves) == [[6, 7, 8], [0, 2, 4], [6, 8, 10]]


def test_chains_of_direct_results_leave_nothing(group: RayWorkerGroup[Direct]) -> None:
    future = group.double(batch(6))
    for _ in range(5):
        future = group.double(future)
    assert group.read(future) == [[0, 64], [128, 192], [256, 320]]
    del future
    assert nothing_kept(group)


def test_blocking_calls_use_the_store(group: RayWorkerGroup[Direct]) -> None:
    assert [float(value[0]) for value in group.give_now()] == [0.0, 1.0, 2.0]
    assert group.double.call(batch(3)).tensor("x")[:, 0].tolist() == [0, 2, 4]
    refs = group.execute_all_async("give_now")
    assert [transport_of(ref) for ref in refs] == ["gloo"] * 3
    assert [float(value[0]) for value in get_answers(refs)] == [0.0, 1.0, 2.0]


def test_async_methods_too(group: RayWorkerGroup[Direct]) -> None:
    refs = group.give_later()
    assert [transport_of(ref) for ref in refs] == ["gloo"] * 3
    assert [float(value[0]) for value in get_answers(refs)] == [0.0, 1.0, 2.0]


def test_the_rank_environment_stays(group: RayWorkerGroup[Direct]) -> None:
    group.give()
    for address, port, own_port in group.place():
        assert address is not None
        assert port == own_port


def test_failures_are_told_as_ever(group: RayWorkerGroup[Direct]) -> None:
    future = group.refuse(batch(3))
    with pytest.raises(WorkerGroupError, match="no such rows") as caught:
        group.read(future)
    assert caught.value.failed_ranks == [1]
    with pytest.raises(WorkerGroupError, match="no such rows"):
        group.refuse(batch(3)).get()
    assert group.read(group.double(batch(3))) == [[0], [2], [4]]


@pytest.mark.parametrize("read", ["read", "read_later", "take", "double"])
def test_an_answer_that_is_no_batch_is_told_as_such(group: RayWorkerGroup[Direct], read: str) -> None:
    with pytest.raises(WorkerGroupError, match=r"'bare' on rank 0 answered of type Tensor|rows of Tensor"):
        getattr(group, read).call(group.bare(batch(3)))


def test_others_cannot_reach_them(pool: RayResourcePool, group: RayWorkerGroup[Direct]) -> None:
    refs, future = group.give(), group.double(batch(3))
    with RayWorkerGroup(pool, RayClassWithInitArgs(Other), name_prefix="other") as other:
        with pytest.raises(ValueError, match=r"'take' of group 'other' got a .*'gloo'.*blocking=True"):
            other.take(refs[0])
        with pytest.raises(ValueError, match="'read' of group 'other'"):
            other.read(future)
        assert other.read(future.get()) == [1, 1, 1]
    with pytest.raises(ValueError, match="arguments of a constructor"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Takes, refs[0]))


class Takes(Worker):
    def __init__(self, given: Any) -> None:
        self.given = given


def test_restarted_groups_connect_anew(pool: RayResourcePool) -> None:
    with RayWorkerGroup(pool, RayClassWithInitArgs(Direct)) as group:
        old = group.double(batch(3))
        assert group.read(old) == [[0], [2], [4]]
        group.restart()
        with pytest.raises(WorkerGroupError, match="restarted"):
            group.read(old)
        assert group.read(group.double(batch(3))) == [[0], [2], [4]]


EVERY_KIND: dict[str, Any] = {
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "scalar": torch.tensor(3, dtype=torch.bfloat16),
    "empty": torch.empty(0, 3),
    "bool": torch.tensor([True, False]),
    "fp8": torch.ones(3, dtype=torch.float8_e4m3fn),
    "conjugate": torch.tensor([1 + 2j]).conj(),
    "sparse": torch.eye(2).to_sparse(),
    "array": np.arange(1000),
    "text": "text",
    "batch": DataProto.from_dict(tensors={"x": torch.arange(2)}, meta_info={"lr": torch.ones(2)}),
}


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_every_kind_of_value_travels(kind: str) -> None:
    value = EVERY_KIND[kind]
    copy = private_copy(value, "gloo")
    assert same(copy, value)
    if isinstance(value, torch.Tensor) and not value.is_sparse and value.numel():
        copy.zero_()
        assert not same(copy, value)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return torch.equal(left.to_dense().to(torch.complex64), right.to_dense().to(torch.complex64))
    if isinstance(left, DataProto):
        return torch.equal(left.tensor("x"), right.tensor("x")) and same(left.meta_info["lr"], torch.ones(2))
    return bool(np.array_equal(left, right))


def test_tied_and_trained_tensors_stay_so() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    copy = private_copy({"a": weight, "b": weight, "view": weight.data}, "gloo")
    assert copy["a"] is copy["b"]
    assert isinstance(copy["a"], torch.nn.Parameter)
    assert copy["view"].data_ptr() == copy["a"].data_ptr()
    make, (_, _, left) = DirectAnswer({"a": weight, "b": weight.data}, "gloo").__reduce__()
    assert callable(make)
    assert [tensor.data_ptr() for tensor in left] == [weight.data_ptr()]


@pytest.mark.parametrize(
    ("transport", "pattern"),
    [
        ("nccl", "'make' asks for tensor_transport='nccl', but the workers have no GPUs; use gloo"),
        ("nixl", "Ray needs the package nixl"),
        ("pigeon", "no such transport; use one of gloo, nccl, nixl"),
    ],
)
def test_what_ray_cannot_do_is_refused_before_anything_starts(
    pool: RayResourcePool, transport: str, pattern: str
) -> None:
    with pytest.raises(NotImplementedError, match=pattern):
        RayWorkerGroup(pool, RayClassWithInitArgs(asking(transport)))


def test_overtaking_calls_and_detached_workers_are_refused() -> None:
    template = RayClassWithInitArgs(asking("gloo"))
    with RayResourcePool([1], use_gpu=False, cpus_per_worker=0.1, detached=True) as places:
        with pytest.raises(NotImplementedError, match="without detached"):
            RayWorkerGroup(places, template, detached=True)
        template.update_options({"max_concurrency": 2})
        with pytest.raises(NotImplementedError, match="leave max_concurrency out"):
            RayWorkerGroup(places, template)


def asking(transport: str) -> type[Worker]:
    class Asking(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL, tensor_transport=transport)
        def make(self) -> int:
            return 1

    return Asking


class Maker(Worker):
    def __init__(self) -> None:
        # What trainers do; Ray's own group is then made within it.
        torch.distributed.init_process_group("gloo")

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False, tensor_transport="gloo")
    def make(self, data: DataProto) -> DataProto:
        return data


def test_roles_hand_results_to_each_other(pool: RayResourcePool) -> None:
    roles = create_colocated_worker_cls(
        {"maker": RayClassWithInitArgs(Maker), "reader": RayClassWithInitArgs(Other)}
    )
    with RayWorkerGroup(pool, roles) as group:
        views: Any = group.spawn(["maker", "reader"])
        maker, reader = views["maker"], views["reader"]
        future = maker.make(batch(6, 1000))
        assert reader.read(future) == [2, 2, 2]
        assert transport_of(future.futures[0].ref) == "gloo"
        assert future.get().tensor("x")[:, 0].tolist() == list(range(6))


def test_attached_groups_leave_it_to_the_owner(group: RayWorkerGroup[Direct]) -> None:
    handles = list(group.workers)
    attached = RayWorkerGroup.from_detached(
        ray_cls_with_init=RayClassWithInitArgs(Direct), worker_handles=handles
    )
    assert [float(value[0]) for value in attached.give_now()] == [0.0, 1.0, 2.0]
    with pytest.raises(NotImplementedError, match="the group was attached to"):
        attached.double(batch(3))
