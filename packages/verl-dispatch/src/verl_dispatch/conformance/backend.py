"""What a backend supplies to the suite, the groups that tests share, and how and with what they call them."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto, DataProtoFuture

from verl_dispatch.conformance.workers import ModesWorker, ids_of
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.groups.group import WorkerGroup

Group = WorkerGroup[Any, Any]
Call = Callable[..., Any]

KINDS = ("DataProto", "TensorDict", "DataProtoFuture")
"""The kinds of batches that every splitting mode takes."""


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
        return self._shared((cls, world_size), lambda: self._backend.make_group(cls, world_size))

    def colocated(self, classes: Mapping[str, type], world_size: int, *, fused: bool) -> Group:
        """The shared group of these roles."""
        key = (tuple(classes.items()), world_size, fused)
        return self._shared(key, lambda: self._backend.make_colocated(classes, world_size, fused=fused))

    def _shared(self, key: tuple[Any, ...], make: Callable[[], Group]) -> Group:
        if key not in self._groups:
            self._groups[key] = make()
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

    @pytest.fixture(params=["call", "not blocking", "submit", "await"])
    def call(self, backend: Backend, request: pytest.FixtureRequest) -> Call:
        """Calls a method by each of its verbs in turn: the result of `method(*args, **kwargs)`."""

        def result(method: Any, *args: Any, **kwargs: Any) -> Any:
            match request.param:
                case "call":
                    return method.call(*args, **kwargs)
                case "not blocking":
                    return backend.resolved(later(method)(*args, **kwargs))
                case "submit":
                    return method.submit(*args, **kwargs).result(timeout=60)
            return asyncio.run(awaited(method.submit(*args, **kwargs)))

        return result

    @pytest.fixture(params=KINDS)
    def kind(self, request: pytest.FixtureRequest) -> str:
        """Each of the kinds of batches."""
        return str(request.param)


def later(method: Any, **options: Any) -> Call:
    """The method as one that does not wait for its answers, with these options."""
    made: Call = method.options(blocking=False, **options)
    return made


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Asserts that what is done here takes no longer."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds


def failure_of(use: Call, *args: Any, **kwargs: Any) -> WorkerGroupError:
    """What this raises, which has to fail."""
    with pytest.raises(WorkerGroupError) as caught:
        use(*args, **kwargs)
    return caught.value


async def awaited(future: Awaitable[Any]) -> Any:
    """What the future gives."""
    return await future


# --- Batches that the tests send, and what they look for in the answers -------------------------------------


def batch(num_rows: int, *, first: int = 0, auto_padding: bool = False, **meta: Any) -> DataProto:
    """Rows with an id `i`, a tensor `x` and a string `s`."""
    ids = torch.arange(first, first + num_rows)
    return DataProto.from_dict(
        tensors={"i": ids, "x": ids[:, None] + torch.zeros(1, 2)},
        non_tensors={"s": np.array([f"row {i}" for i in ids.tolist()], dtype=object)},
        meta_info=meta,
        auto_padding=auto_padding,
    )


def said(x: Any, y: Any = None) -> list[Any]:
    """What the methods of `ModesWorker` that give back what they get answer on four ranks."""
    return [(rank, x, y) for rank in range(4)]


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
    return ids_of(data, "rank")
