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
# Another Ray may run on this machine: `ray.init()` shall start one of our own, and children join that one.
os.environ["RAY_ADDRESS"] = "local"

import ray

CPUS, GPUS, NPUS = 8, 4, 2
ALL_FREE = {"CPU": float(CPUS), "GPU": float(GPUS), "NPU": float(NPUS)}
OBJECT_STORE_BYTES = 512 * 1024 * 1024


# Ray leaves this one untyped.
_available_resources: Callable[[], dict[str, float]] = ray.available_resources


def pytest_configure(config: pytest.Config) -> None:
    """Let pass what Ray before 2.56 itself warns of and leaves open."""
    if tuple(map(int, ray.__version__.split(".")[:2])) < (2, 56):
        for warning in (
            "Tip. In future versions of Ray:FutureWarning",
            "unclosed file.*/dev/null:ResourceWarning",
            "subprocess .* is still running:ResourceWarning",
        ):
            config.addinivalue_line("filterwarnings", f"ignore:{warning}")


def start_shared_ray() -> None:
    """Connect to the shared cluster, starting it where it is not running; children find it by its address."""
    if not ray.is_initialized():
        ray.init(
            address="local",
            num_cpus=CPUS,
            num_gpus=GPUS,
            resources={"NPU": NPUS},
            include_dashboard=False,
            log_to_driver=False,
            object_store_memory=OBJECT_STORE_BYTES,
            namespace="verl_ray_tests",
        )
        os.environ["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address


def stop_ray() -> None:
    """End the shared cluster; what starts Ray next starts a new one."""
    ray.shutdown()
    os.environ["RAY_ADDRESS"] = "local"


def check_all_is_free(who: str) -> None:
    """Fail where resources are still reserved, and end the cluster, so that one leak is one failure."""
    if free_resources() != ALL_FREE:
        # Pools that a test dropped are freed with their garbage.
        gc.collect()
    if (free := wait_until_free()) != ALL_FREE:
        stop_ray()
        pytest.fail(f"{who} left resources reserved: free are {free} of {ALL_FREE}")


def wait_until_free(timeout_s: float = 30.0, expected: dict[str, float] = ALL_FREE) -> dict[str, float]:
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
    check_all_is_free("an earlier test")
    yield
    check_all_is_free("the test")


@pytest.fixture(scope="module")
def running_ray() -> Iterator[None]:
    """The shared cluster, for groups that serve a whole module, with everything free after it."""
    start_shared_ray()
    yield
    check_all_is_free("this module")


@pytest.fixture(scope="module")
def no_ray() -> Iterator[None]:
    """No Ray before and after, for modules that bring a cluster of their own."""
    stop_ray()
    yield
    stop_ray()


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
    stop_ray()
