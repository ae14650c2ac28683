"""What is stored, how often, and what is left of it."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from verl_dispatch import Broadcast, Dispatch, Worker, WorkerGroupError, register
from verl_dispatch.planning.layout import RowTrim
from verl_dispatch.planning.parts import PaddedChunk, PaddedPart
from verl_dispatch.planning.plan import RankCall
from verl_protocol import DataProto, DataProtoFuture
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, parallel_put
from verl_ray.calls.futures import AnswerPart, knows_row_counts, needed_parts
from verl_ray.calls.packing import Packer
from verl_ray.wire.message import ONE_READER, Slot, open_message
from verl_ray.wire.sealed import SealedFuture, opened_compact

pytestmark = pytest.mark.timeout(120)

PICKLED: list[int] = []


class Big:
    """Counts how often it is pickled, and hides its size."""

    def __init__(self) -> None:
        self.array = np.zeros(1 << 20)

    def __reduce__(self) -> Any:
        PICKLED.append(1)
        return dict, ()


class Reader(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take(self, x: Any, y: Any = None) -> int:
        return 1

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def rows(self, data: DataProto, extra: Any = None) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def make(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def keep_some(self, data: DataProto) -> DataProto:
        return data[: len(data) - self.rank]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, materialize_futures=False)
    def unread(self, data: DataProtoFuture[Any]) -> tuple[str, list[str], int]:
        return type(data).__name__, [type(part).__name__ for part in data.futures], len(data.get())

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def number(self, data: DataProto) -> Any:
        return 7

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def numbers(self, data: DataProto) -> Any:
        return [7] * len(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    async def values_async(self, data: DataProto) -> list[int]:
        return [int(value) for value in data.tensor("x")[:, 0]]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def write(self, data: DataProto) -> bool:
        data.tensor("x").zero_()
        return True

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def values(self, data: DataProto) -> list[int]:
        return [int(value) for value in data.tensor("x")[:, 0]]


@pytest.fixture(scope="module")
def group(running_ray: None) -> Iterator[RayWorkerGroup[Reader]]:
    with (
        RayResourcePool([2], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Reader)) as started,
    ):
        yield started


@pytest.fixture
def puts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the driver stores explicitly."""
    seen: list[Any] = []
    put = ray.put

    def counting(value: Any, **options: Any) -> Any:
        seen.append(value)
        return put(value, **options)

    monkeypatch.setattr(ray, "put", counting)
    return seen


def batch(count: int, width: int = 1) -> DataProto:
    return DataProto.from_dict(tensors={"x": torch.arange(count)[:, None].repeat(1, width)})


def test_an_object_is_stored_once_whatever_the_ranks_and_parameters(
    group: RayWorkerGroup[Reader], puts: list[Any]
) -> None:
    PICKLED.clear()
    big = Big()
    assert group.take(big, y=big) == [1, 1]
    assert (len(PICKLED), len(puts)) == (1, 1)


@pytest.mark.parametrize("value", [3, "text", {"lr": 0.1, "betas": [0.9, 0.95]}, torch.zeros(10)])
def test_small_values_stay_inline(group: RayWorkerGroup[Reader], puts: list[Any], value: Any) -> None:
    assert group.take(value) == [1, 1]
    assert puts == []


def test_parts_go_inline_and_what_is_shared_is_stored(group: RayWorkerGroup[Reader], puts: list[Any]) -> None:
    group.rows(batch(4, 1 << 15))
    assert puts == []
    weights = {"w": torch.zeros(1 << 16)}
    group.rows(batch(4), extra=Broadcast(weights))
    assert len(puts) == 1


def test_nothing_of_blocking_calls_is_held(group: RayWorkerGroup[Reader]) -> None:
    group.rows(batch(2))
    before = num_references()
    for _ in range(5):
        group.rows(batch(64, 1 << 10))  # 512 KB each way
        group.take({"w": torch.zeros(1 << 18)})
    deadline = time.monotonic() + 20
    while num_references() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert num_references() <= before


def test_memory_is_flat_over_many_calls(group: RayWorkerGroup[Reader]) -> None:
    def both_ways(times: int) -> None:
        for _ in range(times):
            assert len(group.rows(data)) == 64
            assert group.values(group.make(data))[0][0] == 0

    data = batch(64, 1 << 12)  # 2 MB
    both_ways(10)
    settled_mib(2.0)
    before = resident_mib()
    both_ways(100)
    assert settled_mib(2.0) < 2.0
    assert resident_mib() - before < 100  # all that went either way is 800 MB


def settled_mib(limit: float) -> float:
    """Megabytes in the object store, once they are below the limit or some time has passed."""
    untyped: Any = ray
    deadline = time.monotonic() + 20
    while True:
        total, free = untyped.cluster_resources(), untyped.available_resources()
        stored = (total["object_store_memory"] - free.get("object_store_memory", 0.0)) / 2**20
        if stored < limit or time.monotonic() > deadline:
            return float(stored)
        time.sleep(0.1)


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def num_references() -> int:
    """Objects that this driver keeps alive in the store."""
    gc.collect()
    worker: Any = ray._private.worker.global_worker
    return len(worker.core_worker.get_all_reference_counts())


def test_futures_reach_the_worker_unread_and_each_reads_its_rows(group: RayWorkerGroup[Reader]) -> None:
    future = group.make(batch(8))
    for kind, parts, count in group.unread(future):
        assert (kind, parts, count) == ("BatchFuture", ["AnswerPart", "AnswerPart"], 4)
    assert group.values(future) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_only_a_caller_who_waits_anyway_waits_for_row_counts(group: RayWorkerGroup[Reader]) -> None:
    future = group.make(batch(8))
    asked_later = group.values.submit(future)
    handed_on = group.make(future)
    assert not knows_row_counts(future)
    assert group.values(future) == asked_later.result(60) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert knows_row_counts(future)
    assert not knows_row_counts(handed_on)
    assert group.values(group.make(future)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_what_one_reader_of_a_future_writes_no_other_sees(group: RayWorkerGroup[Reader]) -> None:
    future = group.make(batch(8, 1000))
    assert group.write(future) == [True, True]
    assert group.values(future) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    read = future.get()
    read.tensor("x").zero_()
    assert future.get().tensor("x")[:, 0].tolist() == list(range(8))


@pytest.mark.parametrize("padding", [None, True])
def test_writes_into_futures_that_are_only_read_are_told(
    group: RayWorkerGroup[Reader], padding: bool | None
) -> None:
    future = group.make(batch(8, 1000))
    assert group.values.options(read_only=True, auto_padding=padding)(future) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(WorkerGroupError, match="'x' was written to in place"):
        group.write.options(read_only=True, auto_padding=padding)(future)


@pytest.mark.parametrize("count", [8, 7, 1, 0])
def test_async_methods_read_futures_too(group: RayWorkerGroup[Reader], count: int) -> None:
    future = group.make.options(auto_padding=True)(batch(count, 100))
    read = group.values_async.options(auto_padding=True)(future)
    assert [value for part in read for value in part][:count] == list(range(count))
    assert asyncio.run(future.aget()).tensor("x")[:, 0].tolist() == list(range(count))


def test_answers_that_are_no_batches_are_refused_by_futures_as_ever(group: RayWorkerGroup[Reader]) -> None:
    with pytest.raises((TypeError, ValueError)) as later:
        group.number(batch(4)).get()
    with pytest.raises(type(later.value), match=re.escape(str(later.value))):
        group.number.call(batch(4))


def test_answers_that_are_no_batches_are_refused_by_whoever_gets_their_future(
    group: RayWorkerGroup[Reader],
) -> None:
    with pytest.raises(WorkerGroupError, match="cannot count the rows of a list of int"):
        group.rows(group.numbers(batch(4)))
    with pytest.raises(WorkerGroupError, match="cannot count the rows of a list of int"):
        group.rows.submit(group.numbers(batch(4))).result(60)


def test_parts_of_unequal_rows_are_cut_anew(group: RayWorkerGroup[Reader]) -> None:
    future = group.keep_some(batch(10))
    assert future.row_count() == 9
    assert group.values.options(uneven="balanced")(future) == [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
    with pytest.raises(Exception, match="9 rows"):
        group.values(future)


def test_many_objects_are_stored_in_order() -> None:
    refs = parallel_put([torch.full((2,), index) for index in range(5)], max_workers=2)
    assert [int(value[0]) for value in ray.get(refs)] == [0, 1, 2, 3, 4]
    assert parallel_put([]) == []
    with pytest.raises(ValueError, match="max_workers is 0"):
        parallel_put([1], max_workers=0)


def test_large_values_in_meta_info_are_stored_once(group: RayWorkerGroup[Reader], puts: list[Any]) -> None:
    weights = torch.arange(1 << 16)
    data = batch(4)
    data.meta_info = {"few": torch.ones(2), "inner": {"weights": [weights, "text"]}}
    answer = group.rows(data)
    assert len(puts) == 1
    assert torch.equal(answer.meta_info["inner"]["weights"][0], weights)
    assert answer.meta_info["inner"]["weights"][1] == "text"
    assert torch.equal(answer.meta_info["few"], torch.ones(2))
    assert data.meta_info["inner"]["weights"][0] is weights
    puts.clear()
    group.take(data)
    assert len(puts) == 1  # all in one where all ranks get the batch as it is


def part_of(ref: str) -> Any:
    return AnswerPart(ref)


def future_of(num_parts: int, counts: list[int] | None = None) -> DataProtoFuture[Any]:
    refs = [part_of(f"part {index}") for index in range(num_parts)]
    rows = [part_of(f"rows {index}") for index in range(num_parts)] if counts is None else counts
    return DataProtoFuture(DataProto.concat, refs, row_counts=rows)


@pytest.mark.parametrize(
    ("num_parts", "num_pieces", "needed"),
    [
        (4, 4, [{0}, {1}, {2}, {3}]),
        (4, 2, [{0, 1}, {2, 3}]),
        (2, 4, [{0}, {0}, {1}, {1}]),
        (2, 3, [{0}, {0, 1}, {1}]),
        (6, 4, [{0, 1}, {1, 2}, {3, 4}, {4, 5}]),
    ],
)
def test_workers_find_the_parts_at_hand_that_their_rows_lie_in(
    num_parts: int, num_pieces: int, needed: list[set[int]]
) -> None:
    future = future_of(num_parts)
    padded = [
        future._cut(PaddedChunk(num_pieces, index, False, "d", "m", None)) for index in range(num_pieces)
    ]
    assert [set(needed_parts(part)) for part in padded] == needed
    assert [set(needed_parts(piece)) for piece in future.chunk(num_pieces, uneven=True)] == needed
    for index, part in enumerate(padded):
        _, *refs = Packer({}).pack(RankCall(index, (part,)), ONE_READER)
        assert {ref for ref in refs if ref.startswith("part")} == {f"part {each}" for each in needed[index]}
        assert sum(ref.startswith("rows") for ref in refs) == num_parts


@pytest.mark.parametrize(
    ("counts", "needed"),
    [
        ([1, 5], [{0, 1}, {1}]),
        ([5, 0], [{0}, {0, 1}]),
        ([0, 0], [{0, 1}, {0, 1}]),
        ([1, 0], [{0, 1}, {0, 1}]),
    ],
)
def test_known_row_counts_say_it_exactly(counts: list[int], needed: list[set[int]]) -> None:
    future = future_of(2, counts)
    padded = [future._cut(PaddedChunk(2, index, False, "d", "m", None)) for index in range(2)]
    assert [set(needed_parts(part)) for part in padded] == needed


def test_a_whole_part_goes_without_the_future_and_its_row_counts() -> None:
    parts = [part_of(f"part {index}") for index in range(2)]
    future = SealedFuture(DataProto.concat, parts, row_counts=[2, 2])
    pieces = future.chunk(2)
    for readers, opens_for in (("one", "many"), ("read_only", "read_only")):
        for index, piece in enumerate(pieces):
            message, *refs = Packer({}, readers=readers).pack(RankCall(index, (piece,)), ONE_READER)  # type: ignore[arg-type]
            assert pickle.loads(message)[0] == (Slot(0, opens_for=opens_for),)  # type: ignore[arg-type]
            assert refs == [f"part {index}"]
    third, *refs = Packer({}).pack(RankCall(0, (future.chunk(4)[2],)), ONE_READER)
    assert refs == ["part 1"]
    (placed,), _, _ = opened_compact(third)
    assert placed.futures == [None, Slot(0)]
    _, *refs = Packer({}, prefetches=False).pack(RankCall(0, (pieces[0],)), ONE_READER)
    assert refs == []


def test_replicas_of_a_padded_part_share_what_is_stored() -> None:
    data = batch(2)
    trims = [RowTrim("f", rank, 2, 1) for rank in range(2)]
    packer = Packer({id(data): "stored"})
    for trim in trims:
        message, *refs = packer.pack(RankCall(trim.rank, (PaddedPart(data, trim),)), ONE_READER)
        assert refs == ["stored"]
        (part,), _, _ = open_message(pickle.loads(pickle.dumps(message, protocol=5)), (data,))
        assert part == PaddedPart(data, trim)
