"""Columns that stay in Ray's store: what outlives whom, what is freed, and what a loss says."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
import torch
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto
from verl_protocol.columns.remote import RemoteColumn
from verl_protocol.errors import ColumnsLost
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup

ROWS, WIDTH = 8, 100_000


class Maker(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True)
    def make(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(
            {"wide": data.tensor("i")[:, None].repeat(1, WIDTH), "i": data.tensor("i")}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def sums(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"sum": data.tensor("wide").sum(dim=1)})


@pytest.fixture(scope="module")
def group(running_ray: None) -> Iterator[Any]:
    with (
        RayResourcePool([2], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Maker), name_prefix="makers") as made,
    ):
        yield made


def ids() -> DataProto:
    return DataProto.from_dict({"i": torch.arange(ROWS)})


@ray.remote(num_cpus=0)
def never_made() -> None:
    raise RuntimeError("the rows were not made")


def stored_bytes() -> float:
    untyped: Any = ray
    total, left = untyped.cluster_resources(), untyped.available_resources()
    return float(total["object_store_memory"] - left.get("object_store_memory", 0.0))


@ray.remote(num_cpus=0)
def first_column(data: Any) -> Any:
    return data.remote_keys, data.tensor("wide")[:, 0].tolist()


def test_it_travels_as_references_between_workers(group: Any) -> None:
    data = group.make(ids())
    assert sum(group.sums.plan(data).nbytes()) < 1000
    assert group.sums(data).tensor("sum").tolist() == [row * WIDTH for row in range(ROWS)]


def test_it_travels_with_its_rows_to_anybody_else(group: Any) -> None:
    keys, found = ray.get(first_column.remote(group.make(ids())))
    assert (keys, found) == ([], list(range(ROWS)))


def test_it_outlives_the_workers_that_made_it(group: Any) -> None:
    data = group.make(ids())
    for worker in group.workers:
        ray.kill(worker)
    assert data.tensor("wide")[:, 0].tolist() == list(range(ROWS))
    group.restart()
    assert group.sums(data[::2]).tensor("sum").tolist() == [row * WIDTH for row in range(0, ROWS, 2)]


def test_what_is_lost_is_named_with_its_maker(group: Any) -> None:
    data = group.make(ids())
    column: Any = data._held()["wide"]
    gone = [piece._replace(ref=never_made.remote()) for piece in column.pieces]
    data._set_columns({**data._held(), "wide": RemoteColumn(column.form, gone)}, ROWS, None)
    with pytest.raises(
        ColumnsLost, match=r"wide are no longer there.*rank 0 of group 'makers'.*'make'"
    ) as caught:
        data.fetch("wide")
    lost = caught.value
    assert (lost.group, lost.method, lost.rank, lost.generation) == ("makers", "make", 0, group.generation)
    assert data.tensor("i").tolist() == list(range(ROWS))


def test_dropped_batches_leave_the_store_empty(group: Any) -> None:
    # An error that another test caught holds its batch until then.
    gc.collect()
    before = stored_bytes()
    for _ in range(5):
        data = group.make(ids())
        group.sums(group.put(data.local()))
    del data
    deadline = time.monotonic() + 30
    while stored_bytes() > before and time.monotonic() < deadline:
        time.sleep(0.1)
    assert stored_bytes() <= before
