"""Every error of the package crosses a process border with its facts, its message and its kind."""

from __future__ import annotations

import pickle
import re
from types import SimpleNamespace
from typing import Any

import pytest
import ray.cloudpickle as cloudpickle
from ray.exceptions import OutOfDiskError, RayTaskError
from verl_ray import errors
from verl_ray.wire import store

ERRORS: list[Exception] = [
    errors.AcceleratorNotOffered("TPU", ["CPU"], 5),
    errors.AttachError("problem", "advice"),
    errors.NameTakenError("a name"),
    errors.NodeLost("g", "__init__", ["ab12"]),
    errors.PlacementTimeout("processes [3]", 5, "too small"),
    errors.PlacementTimeout("processes [3]", 5, "too small", "Much stays reserved"),
    errors.PoolAlreadyPlaced("pool", [2, 1]),
    errors.PoolClosed("pool"),
    errors.PoolFull("pool", 2, 2, ["a", "b"]),
    errors.ResourceUnavailable("no free port"),
    errors.StaleFutureError("g", "f", reason="made before"),
    errors.StartTimeout("g", 3.0, [1]),
    errors.TransportRefusedError("f", "nccl", "the workers have no GPUs", "use gloo on CPUs"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_an_error_arrives_as_it_was_sent(error: Exception, pickler: Any) -> None:
    arrived = pickle.loads(pickler.dumps(error))
    assert type(arrived) is type(error)
    assert str(arrived) == str(error) != ""
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize(
    ("missing", "offered", "way"),
    [
        ("GPU", ["CPU"], r"offers: CPU\. Use use_gpu=False"),
        ("GPU", ["CPU", "NPU"], r"Name one of these with accelerator= \(NPU\), use use_gpu=False"),
        (
            "accelerator_type:A100",
            ["accelerator_type:H200"],
            r"Name one of these with accelerator_type= \(accelerator_type:H200\)",
        ),
    ],
)
def test_a_missing_accelerator_is_told_the_parameter_that_takes_another(
    missing: str, offered: list[str], way: str
) -> None:
    assert re.search(way, str(errors.AcceleratorNotOffered(missing, offered, 1)))


def test_every_error_is_in_the_list() -> None:
    classes = {each for each in vars(errors).values() if isinstance(each, type)}
    mine = {each for each in classes if each.__module__ == "verl_ray.errors"}
    assert mine <= {type(error) for error in ERRORS}


def test_columns_that_found_no_room_say_so_and_not_who_made_them() -> None:
    full = OutOfDiskError("Local disk is full\nThe object cannot be created")
    failed: Any = RayTaskError  # Ray leaves it untyped
    piece: Any = SimpleNamespace(ref=SimpleNamespace(hex=lambda: "ab"), origin=("makers", "make", 1, 0))
    told = store._lost([piece], "wide", failed("make", "Traceback", full).as_instanceof_cause())
    assert re.search(r"no longer there: OutOfDiskError: Local disk is full; rank 1 .* made them", str(told))
