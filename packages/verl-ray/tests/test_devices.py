"""Accelerators by name and the variables that mask them."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from typing import Any
from unittest.mock import patch

import pytest
import torch
from verl_dispatch.workers.rank import RankInfo
from verl_ray.pools.devices import (
    DEVICE_MASKS,
    accelerator_named,
    hidden_masks,
    is_noset,
    resource_of_device,
    settle_masks,
    unify_masks,
    visible_index,
    worker_demand,
)
from verl_ray.wire.message import Slot
from verl_ray.worker import host
from verl_ray.worker.actor import derive_actor_class
from verl_ray.worker.rendezvous import Rendezvous


@pytest.mark.parametrize(
    ("assigned", "mask", "noset", "index"),
    [
        (["5"], "4,5,6,7", True, 1),
        (["5"], "5", False, 0),
        (["GPU-ab"], "GPU-aa,GPU-ab", True, 1),
        (["GPU-abcdef"], "GPU-aa,GPU-abc", True, 1),
        (["MIG-1"], "MIG-0, MIG-1", True, 1),
        (["1"], "10,11,1", True, 2),
        (["3"], None, True, 3),
        (["6", "7"], "4,5,6,7", True, 2),
        ([], None, True, None),
        ([], "", False, None),
    ],
)
def test_the_index_of_a_device_among_those_seen(
    assigned: list[str], mask: str | None, noset: bool, index: int | None
) -> None:
    assert visible_index(assigned, mask=mask, noset=noset) == index


@pytest.mark.parametrize(("assigned", "mask"), [("2", "0,1"), ("GPU-ab", None), ("0", "")])
def test_a_device_behind_the_mask_is_an_error_that_shows_both(assigned: str, mask: str | None) -> None:
    with pytest.raises(ValueError, match=f"{assigned}.*{mask!r}"):
        visible_index([assigned], mask=mask, noset=True)


@pytest.mark.parametrize(
    ("masks", "unified"),
    [
        ({"HIP_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "0"}),
        ({"HIP_VISIBLE_DEVICES": "0", "CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "0"}),
        ({"ROCR_VISIBLE_DEVICES": "1"}, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": ""}, {"CUDA_VISIBLE_DEVICES": ""}),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2"}, {"ASCEND_RT_VISIBLE_DEVICES": "2"}),
        ({}, {}),
    ],
)
def test_one_setting_has_one_name(masks: dict[str, str], unified: dict[str, str]) -> None:
    given = dict(masks)
    assert unify_masks(masks) == unified
    assert masks == given
    settle_masks(masks)
    assert masks == unified


def test_masks_that_disagree_are_shown() -> None:
    masks = {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}
    for refused in (unify_masks, settle_masks):
        with pytest.raises(ValueError, match=r"HIP.*'1'.*CUDA.*'0'"):
            refused(masks)
    assert masks == {"HIP_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "0"}


@pytest.mark.parametrize("other", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_rocr_on_top_of_another_mask_is_refused_even_when_equal(other: str) -> None:
    with pytest.raises(ValueError, match="ROCR"):
        unify_masks({"ROCR_VISIBLE_DEVICES": "0", other: "0"})


@pytest.mark.parametrize(
    ("value", "expected"), [("1", True), ("true", True), ("0", False), ("false", False), ("", False)]
)
def test_noset_is_read_as_a_switch(value: str, expected: bool) -> None:
    environ = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": value}
    assert is_noset(environ, accelerator_named("GPU")) is expected


def test_noset_of_another_accelerator_does_not_count() -> None:
    environ = {"RAY_EXPERIMENTAL_NOSET_ASCEND_RT_VISIBLE_DEVICES": "1"}
    assert not is_noset(environ, accelerator_named("GPU"))
    assert is_noset(environ, accelerator_named("NPU"))


@pytest.mark.parametrize(
    ("name", "amount", "options"),
    [
        (None, 1.0, {"num_cpus": 1, "num_gpus": 0}),
        ("GPU", 0.5, {"num_cpus": 1, "num_gpus": 0.5}),
        ("NPU", 0.5, {"num_cpus": 1, "num_gpus": 0, "resources": {"NPU": 0.5}}),
        ("my_fpga", 1.0, {"num_cpus": 1, "num_gpus": 0, "resources": {"my_fpga": 1.0}}),
    ],
)
def test_every_accelerator_is_asked_for_by_its_name(
    name: str | None, amount: float, options: dict[str, object]
) -> None:
    accelerator = accelerator_named(name) if name else None
    assert worker_demand(1, accelerator, amount) == options


def test_device_names() -> None:
    assert [resource_of_device(name) for name in ("cuda", "npu", "TPU")] == ["GPU", "NPU", "TPU"]
    with pytest.raises(ValueError, match=r"'cpu'.*cuda.*use_gpu=False.*accelerator="):
        resource_of_device("cpu")


def test_a_cpu_worker_sees_no_accelerator_of_any_kind() -> None:
    masks = hidden_masks()
    assert {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"} <= masks.keys()
    assert set(masks.values()) == {""}
    assert masks.keys() <= DEVICE_MASKS
    assert unify_masks(masks)["CUDA_VISIBLE_DEVICES"] == ""


class Listed:
    """Writes down when it is made."""

    def __init__(self, happened: list[Any]) -> None:
        happened.append("constructor")


@pytest.mark.parametrize(("index", "made_current"), [(1, [1]), (0, []), (None, [])])
def test_the_workers_own_device_is_current_for_its_constructor_and_its_async_methods(
    monkeypatch: pytest.MonkeyPatch, index: int | None, made_current: list[int]
) -> None:
    happened: list[Any] = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "set_device_index", happened.append)
    monkeypatch.setattr(host, "_set_device_masks", lambda resource: index)
    monkeypatch.setattr(
        host, "_report", lambda who, born, took: host.WorkerReport(who, "", "", 0, born, 0.0, took)
    )
    worker: Any = derive_actor_class(Listed)()
    assignment = host.Assignment(RankInfo(0, 1), "GPU")
    message = pickle.dumps(((Slot(0),), {}, None))
    with patch.dict(os.environ):
        worker._verl_set_up(assignment, Rendezvous("127.0.0.1", 1), message, happened)
    assert happened == [*made_current, "constructor"]
    beside = asyncio.run_coroutine_threadsafe(_thread(), worker._verl_loop._loop)
    assert beside.result(10) != threading.get_ident()
    assert happened == [*made_current, "constructor", *made_current]


async def _thread() -> int:
    return threading.get_ident()
