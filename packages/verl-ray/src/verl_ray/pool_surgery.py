"""Pools made of pools: cut, joined, or placed on groups that another reserved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import SupportsIndex

from ray.util.placement_group import PlacementGroup

from verl_ray.errors import AttributesDiffer
from verl_ray.pool_spec import InvalidPoolArgument
from verl_ray.resources import RayResourcePool, SubRayResourcePool
from verl_ray.slot_sources import BorrowedSlots, Part

__all__ = ["extract_pg_from_exist", "merge_resource_pool", "split_resource_pool"]


class _MergedPool(RayResourcePool):
    def __init__(self, pools: Sequence[RayResourcePool]) -> None:
        self.parents = tuple(pools)
        self.name_prefix = "+".join(pool.name_prefix for pool in pools)
        parts = [Part(pool._source, 0, pool.world_size) for pool in pools]
        self._set_source(BorrowedSlots(self.name_prefix, parts))


def split_resource_pool(
    resource_pool: RayResourcePool, split_size: SupportsIndex | Sequence[int]
) -> list[SubRayResourcePool]:
    """Cut a pool into views: all of one size, or of the sizes listed.

    Raises:
        SplitSizeError: the sizes do not add up to the pool's world size.
    """
    return resource_pool.split(split_size)


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """One view over the slots of two pools, those of `rp1` first; the two keep owning their slots.

    Raises:
        AttributesDiffer: the pools were not made alike.
        InvalidPoolArgument: the pools share slots.
    """
    differences = rp1.spec.differences(rp2.spec)
    if differences:
        raise AttributesDiffer(differences)
    if {slot.key for slot in rp1.slots()} & {slot.key for slot in rp2.slots()}:
        raise InvalidPoolArgument("rp2", rp2, f"a pool that shares no slot with {rp1!r}")
    return _MergedPool([rp1, rp2])


def extract_pg_from_exist(
    resource_pools: Mapping[str, RayResourcePool],
    src_role_names: Sequence[str],
    resource_pool: RayResourcePool,
) -> list[PlacementGroup]:
    """Choose placement groups of the named pools that can hold `resource_pool`, one per entry of its store.

    The largest entry gets the largest group; the answer is in the order of `resource_pool.store`. Only the
    pools that are named get reserved.

    Raises:
        InvalidPoolArgument: a role is unknown, or the groups are too few or too small.
    """
    unknown = [name for name in src_role_names if name not in resource_pools]
    if unknown:
        raise InvalidPoolArgument("src_role_names", unknown, f"names among {', '.join(resource_pools)}")
    groups = [group for name in src_role_names for group in resource_pools[name].get_placement_groups()]
    largest_first = sorted(groups, key=lambda group: -group.bundle_count)
    sizes = resource_pool.store
    wanted = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    chosen = dict(zip(wanted, largest_first, strict=False))
    if len(chosen) < len(sizes) or any(chosen[index].bundle_count < sizes[index] for index in wanted):
        given = [group.bundle_count for group in largest_first]
        raise InvalidPoolArgument(
            "src_role_names", list(src_role_names), f"groups for {sizes}, they have {given}"
        )
    return [chosen[index] for index in range(len(sizes))]
