"""What a backend supplies to the suite, the groups that tests share, and the batches that they send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto, DataProtoFuture

from verl_dispatch.conformance.workers import ModesWorker
from verl_dispatch.groups.group import WorkerGroup

Group = WorkerGroup[Any, Any]


class Backend(ABC):
    """One way of running workers. Worker classes come from modules that can be imported anywhere."""

    ranks_meet: bool = True
    """Whether the ranks of a call run at the same time, so that they can wait for each other."""

    @abstractmethod
    def make_group(self, cls: type, world_size: int, *args: Any, **kwargs: Any) -> Group:
        """A new group of `world_size` workers, each made by `cls(*args, **kwargs)`."""

    @abstractmethod
    def make_colocated(self, classes: Mapping[str, type], world_size: int, *, fused: bool) -> Group:
        """A new group whose workers hold one object of each role's class."""

    def value_of(self, reference: Any) -> Any:
        """What a reference that a non-blocking call gave for one worker holds."""
        return reference.result(timeout=60)

    def resolved(self, answer: Any) -> Any:
        """The result of a non-blocking call, whatever form it has."""
        if isinstance(answer, DataProtoFuture):
            return answer.get(timeout=60)
        if isinstance(answer, list):
            return [self.value_of(reference) for reference in answer]
        if isinstance(answer, dict):
            return {rank: self.value_of(reference) for rank, reference in answer.items()}
        return self.value_of(answer)


class GroupCache:
    """Groups that tests share, made when first asked for."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._groups: dict[tuple[Any, ...], Group] = {}

    def get(self, cls: type, world_size: int) -> Group:
        """The shared group of this class and size."""
        key = (cls, world_size)
        if key not in self._groups:
            self._groups[key] = self._backend.make_group(cls, world_size)
        return self._groups[key]

    def colocated(self, classes: Mapping[str, type], world_size: int, *, fused: bool) -> Group:
        """The shared group of these roles."""
        key = (tuple(classes.items()), world_size, fused)
        if key not in self._groups:
            self._groups[key] = self._backend.make_colocated(classes, world_size, fused=fused)
        return self._groups[key]

    def shutdown(self) -> None:
        """End all groups."""
        for group in self._groups.values():
            group.shutdown()
        self._groups.clear()


@pytest.fixture(scope="session")
def groups(backend: Backend) -> Iterator[GroupCache]:
    """Groups that tests only call, shared by all of them."""
    cache = GroupCache(backend)
    yield cache
    cache.shutdown()


class SharedGroups:
    """The groups that most tests call: the worker with a method for every mode, on four ranks and on one."""

    @pytest.fixture
    def slow(self, backend: Backend) -> None:
        """For tests about the time before the answer."""
        if not backend.ranks_meet:
            pytest.skip("a call is over when it has been sent")

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 4)

    @pytest.fixture
    def single(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 1)


# --- Batches that the tests send, and what they look for in the answers -------------------------------------


KINDS = ("DataProto", "TensorDict", "DataProtoFuture")
"""The kinds of batches that every splitting mode takes."""


def batch(num_rows: int, *, first: int = 0, auto_padding: bool = False, **meta: Any) -> DataProto:
    """Rows with an id `i`, a tensor `x` and a string `s`."""
    ids = torch.arange(first, first + num_rows)
    return DataProto.from_dict(
        tensors={"i": ids, "x": ids[:, None] + torch.zeros(1, 2)},
        non_tensors={"s": np.array([f"row {i}" for i in ids.tolist()], dtype=object)},
        meta_info=meta,
        auto_padding=auto_padding,
    )


def as_kind(data: DataProto, kind: str) -> Any:
    """The batch as one of `KINDS`."""
    if kind == "DataProto":
        return data
    if kind == "DataProtoFuture":
        return DataProtoFuture.concat([data])
    from tensordict import TensorDict

    return TensorDict({"i": data.tensor("i").clone(), "x": data.tensor("x").clone()}, batch_size=[len(data)])


def ranks_of(data: Any) -> Sequence[int]:
    """Which rank had each row."""
    ranks = data.tensor("rank") if isinstance(data, DataProto) else data["rank"]
    found: list[int] = ranks.tolist()
    return found
