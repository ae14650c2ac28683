"""One Ray cluster for all tests that do not bring their own."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

# Under `uv run` Ray would start its workers through uv again; this must be set before `import ray`.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
# Four workers of a group start at once; none comes with torch, for most classes here need none.
os.environ.setdefault("RAY_worker_maximum_startup_concurrency", "4")
os.environ.setdefault("RAY_DEDUP_LOGS", "0")
# torch and Ray threads of many workers share few cores here.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import ray

CPUS, GPUS, NPUS = 8, 4, 2
ALL_FREE = {"CPU": float(CPUS), "GPU": float(GPUS), "NPU": float(NPUS)}
OBJECT_STORE_BYTES = 512 * 1024 * 1024


# Ray leaves this one untyped.
_available_resources: Callable[[], dict[str, float]] = ray.available_resources


def start_shared_ray() -> None:
    """Connect to the shared cluster, starting it where it is not running."""
    if not ray.is_initialized():
        ray.init(
            num_cpus=CPUS,
            num_gpus=GPUS,
            resources={"NPU": NPUS},
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            namespace="verl_ray_tests",
        )


def wait_until_free(timeout_s: float = 10.0, expected: dict[str, float] = ALL_FREE) -> dict[str, float]:
    """The free CPUs, GPUs and NPUs, once as many as expected are free or the time is up."""
    deadline = time.monotonic() + timeout_s
    while (free := free_resources()) != expected and time.monotonic() < deadline:
        time.sleep(0.05)
    return free


def free_resources() -> dict[str, float]:
    """The free CPUs, GPUs and NPUs as Ray reports them now."""
    available: dict[str, float] = _available_resources()
    return {name: float(available.get(name, 0.0)) for name in ("CPU", "GPU", "NPU")}


@pytest.fixture(name="free_resources")
def _free_resources_function() -> Callable[[], dict[str, float]]:
    return free_resources


@pytest.fixture(name="wait_until_free")
def _wait_until_free_function() -> Callable[[], dict[str, float]]:
    return wait_until_free


@pytest.fixture
def shared_ray() -> Iterator[None]:
    """The shared cluster, with everything free before and after the test."""
    start_shared_ray()
    if free_resources() != ALL_FREE:
        # Pools that an earlier test dropped are freed with their garbage.
        gc.collect()
    assert wait_until_free() == ALL_FREE, "an earlier test left resources reserved"
    yield
    assert wait_until_free() == ALL_FREE, "the test left resources reserved"


@pytest.fixture(scope="module")
def running_ray() -> None:
    """The shared cluster, for groups that serve a whole module."""
    start_shared_ray()


@pytest.fixture(scope="module")
def no_ray() -> Iterator[None]:
    """No Ray before and after, for modules that bring a cluster of their own."""
    ray.shutdown()
    yield
    ray.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests without the shared cluster come last here: it would have to start anew after each of them."""
    places = [place for place, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    here = sorted((items[place] for place in places), key=lambda item: "no_ray" in _fixtures_of(item))
    for place, item in zip(places, here, strict=True):
        items[place] = item


def _fixtures_of(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


@pytest.fixture(scope="module", autouse=True)
def _classes_travel_by_value(request: pytest.FixtureRequest) -> Iterator[None]:
    """Workers cannot import test modules, so the classes defined there are sent whole."""
    cloudpickle: Any = ray.cloudpickle  # Ray leaves it untyped
    cloudpickle.register_pickle_by_value(request.module)
    yield
    cloudpickle.unregister_pickle_by_value(request.module)


@pytest.fixture(scope="session", autouse=True)
def _end_ray() -> Iterator[None]:
    yield
    ray.shutdown()
