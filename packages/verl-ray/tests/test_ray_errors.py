"""Every error of pools and placement crosses a process border with its facts, its message and its kind."""

from __future__ import annotations

import pickle

import pytest
import ray.cloudpickle as cloudpickle
from verl_ray.errors import (
    AcceleratorNotOffered,
    MadeOfFacts,
    PlacementNameTaken,
    PlacementTimeout,
    PoolAlreadyPlaced,
    PoolClosed,
    PoolFull,
    PortRangeExhausted,
    SlotOverdrawn,
)
from verl_ray.worker.environment import (
    ForbiddenVariable,
    ForwardedVariableMissing,
    InvalidVariable,
    SettingsConflict,
)
from verl_ray.worker.rendezvous import RendezvousError

ERRORS: list[MadeOfFacts] = [
    AcceleratorNotOffered("TPU", ["CPU"], 5),
    ForbiddenVariable("RANK", "worker_env"),
    ForwardedVariableMissing("HF_TOKEN"),
    InvalidVariable("worker_env", "A", 1),
    PlacementNameTaken("exact0", "job 01"),
    PlacementTimeout("processes [3]", 5, "too small"),
    PlacementTimeout("processes [3]", 5, "too small", "Much stays reserved"),
    PoolAlreadyPlaced("pool", [2, 1]),
    PoolClosed("pool"),
    PoolFull("pool", 2, 2, ["a", "b"]),
    PortRangeExhausted(29000, 29001, "10.0.0.1"),
    RendezvousError("master_port", 0, "a port"),
    SettingsConflict("env_vars.X", ("options", 1), ("worker_env", 2)),
    SlotOverdrawn(0, "CPU", 1, 0.5, 1),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("pickler", [pickle, cloudpickle], ids=["pickle", "cloudpickle"])
def test_an_error_arrives_as_it_was_sent(error: MadeOfFacts, pickler: object) -> None:
    arrived = pickle.loads(pickler.dumps(error))  # type: ignore[attr-defined]
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert arrived.facts == error.facts


def test_every_error_with_facts_is_in_the_list() -> None:
    def all_below(cls: type[object]) -> set[type[object]]:
        below: list[type[object]] = cls.__subclasses__()
        return {cls}.union(*(all_below(each) for each in below))

    mine = {cls for cls in all_below(MadeOfFacts) - {MadeOfFacts} if cls.__module__.startswith("verl_ray.")}
    assert mine <= {type(error) for error in ERRORS}
