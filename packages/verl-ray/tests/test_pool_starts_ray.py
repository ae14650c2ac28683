"""A pool without Ray starts it; a pool of a cluster that was left says so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ray
from verl_ray.errors import PoolClosed
from verl_ray.resources import RayResourcePool

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(180)]


@pytest.fixture
def no_ray() -> Iterator[None]:
    """No connection to Ray before and after."""
    ray.shutdown()
    yield
    ray.shutdown()


@pytest.mark.usefixtures("no_ray")
def test_the_first_use_starts_ray_and_a_later_cluster_is_not_mistaken_for_it() -> None:
    pool = RayResourcePool([1], use_gpu=False)
    assert not ray.is_initialized()
    assert len(pool.slots()) == 1
    assert ray.is_initialized()
    ray.shutdown()
    with pytest.raises(PoolClosed, match="a Ray cluster that this process has left; make a new one"):
        pool.slots()
    assert (pool.store, pool.pgs, repr(pool)) == ([1], None, "RayResourcePool([1], CPU, 'verl_ray')")
    pool.shutdown()
    assert not ray.is_initialized()
