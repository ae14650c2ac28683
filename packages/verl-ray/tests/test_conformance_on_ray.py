"""A group on Ray passes the conformance suite, the same as the in-process group does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import ray
from verl_dispatch.conformance import *  # noqa: F403
from verl_dispatch.conformance import Backend, GroupCache
from verl_ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
)

pytestmark = pytest.mark.timeout(120)


class PooledGroup(RayWorkerGroup[Any]):
    """A group that ends with the pool it is on."""

    def shutdown(self) -> None:
        super().shutdown()
        if isinstance(self.resource_pool, RayResourcePool):
            self.resource_pool.shutdown()


class RayBackend(Backend):
    """Workers as actors of the tests' cluster."""

    def make_group(self, cls: type, world_size: int, *args: Any, **kwargs: Any) -> RayWorkerGroup[Any]:
        return self._started(RayClassWithInitArgs(cls, *args, **kwargs), world_size)

    def make_colocated(
        self, classes: Mapping[str, type], world_size: int, *, fused: bool
    ) -> RayWorkerGroup[Any]:
        make = create_colocated_worker_cls_fused if fused else create_colocated_worker_cls
        return self._started(
            make({role: RayClassWithInitArgs(cls) for role, cls in classes.items()}), world_size
        )

    def value_of(self, reference: Any) -> Any:
        return ray.get(reference, timeout=60)

    def _started(self, template: RayClassWithInitArgs[Any], world_size: int) -> RayWorkerGroup[Any]:
        pool = RayResourcePool([world_size], use_gpu=False, max_colocate_count=1, cpus_per_worker=0.05)
        try:
            return PooledGroup(pool, template)
        except BaseException:
            # The traceback may keep the pool alive for long.
            pool.shutdown()
            raise


@pytest.fixture(scope="module")
def backend(running_ray: None) -> RayBackend:
    return RayBackend()


@pytest.fixture(scope="module")  # type: ignore[no-redef]
def groups(backend: RayBackend) -> Iterator[GroupCache]:
    """Shared groups end with this module, so that later tests find the cluster free."""
    cache = GroupCache(backend)
    yield cache
    cache.shutdown()
