"""Resource pools: who reserves what, who may use it, who frees it. A pool is a view over slots."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Generic, Self, SupportsIndex, TypeVar

from ray.util.placement_group import PlacementGroup
from verl_dispatch.groups.pool import ResourcePool

from verl_ray.errors import AttributesDiffer, MadeOfFacts, PoolAlreadyPlaced, SplitSizeError
from verl_ray.pools.shares import LEDGER, Claim, Share, demand_of_options
from verl_ray.pools.slots import Slot, rank_order_of_groups, slots_of_groups
from verl_ray.pools.sources import BorrowedSlots, FixedSlots, OwnedSlots, Part, PlacementAsk, SlotSource
from verl_ray.pools.spec import InvalidPoolArgument, PoolSpec, UnsaidFloat, UnsaidInt, UnsaidStr, as_count

__all__ = [
    "RayResourcePool",
    "ResourcePoolManager",
    "SubRayResourcePool",
    "UnknownRole",
    "extract_pg_from_exist",
    "merge_resource_pool",
    "split_resource_pool",
]


_DEFAULT_STRATEGY = UnsaidStr("STRICT_PACK")
_DEFAULT_DEVICE = UnsaidStr("cuda")
_DEFAULT_SHARES = UnsaidInt(10)
_DEFAULT_TIMEOUT_S = UnsaidFloat(300.0)

_GROUP_NUMBERS = itertools.count()


class RayResourcePool(ResourcePool):
    """Slots for workers: Ray placement groups, reserved at the first use; a context manager that frees them.

    Args:
        process_on_nodes: processes per node, such as `[8, 8]` or `[4, 2]`; each entry goes to one node.
        use_gpu: one GPU per process; False makes a CPU pool.
        name_prefix: start of the placement groups' names, which get a unique ending.
        max_colocate_count: groups that fit on the pool. Given outright, each has a CPU per process;
            by default all of them share one.
        detached: the reservation outlives this driver.
        accelerator_type: kind of device, such as `"A100"` or `"accelerator_type:A100"`.
        accelerator: Ray resource to use in place of GPU: `"NPU"`, `"TPU"` or a custom name.
        cpus_per_worker: CPUs that each process of each group gets.
        timeout_s: seconds that a reservation may take. By default 300, but only 30 where the
            cluster has no node that could ever serve it.
        label_selector: Ray node labels that every slot's node must have.
        topology_strategy: Ray's topology strategy, such as `{"ray.io/gpu-domain": "STRICT_PACK"}` to keep
            all nodes of the pool in one NVLink domain; the pool is then one placement group.

    Raises:
        InvalidPoolArgument: a value is out of range, or two contradict each other.

    >>> with RayResourcePool([2, 2], use_gpu=False) as pool:
    ...     pool.world_size, pool.local_world_size_list()
    (4, [2, 2, 2, 2])
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int = _DEFAULT_SHARES,
        detached: bool = False,
        accelerator_type: str | None = None,
        *,
        accelerator: str | None = None,
        cpus_per_worker: float | None = None,
        timeout_s: float = _DEFAULT_TIMEOUT_S,
        label_selector: Mapping[str, str] | None = None,
        topology_strategy: Mapping[str, str] | None = None,
    ) -> None:
        spec = PoolSpec.of(
            use_gpu=use_gpu,
            max_colocate_count=max_colocate_count,
            detached=detached,
            accelerator_type=accelerator_type,
            accelerator=accelerator,
            cpus_per_worker=cpus_per_worker,
            timeout_s=timeout_s,
            label_selector=label_selector,
            topology_strategy=topology_strategy,
        )
        sizes = [_checked_size(size) for size in process_on_nodes or ()]
        self.name_prefix = name_prefix or "verl_ray"
        self._set_source(OwnedSlots(self.name_prefix, spec, sizes))

    def _set_source(self, source: SlotSource) -> None:
        super().__init__(source.planned_sizes(), source.spec.shares)
        self._source = source

    @property
    def spec(self) -> PoolSpec:
        """What the pool was made with."""
        return self._source.spec

    @property
    def accelerator(self) -> str | None:
        """The Ray resource of the accelerators, None for CPU pools."""
        return self.spec.accelerator

    @property
    def use_gpu(self) -> bool:
        """Whether the slots hold accelerators."""
        return self.spec.accelerator is not None

    @property
    def detached(self) -> bool:
        """Whether the reservation outlives the driver."""
        return self.spec.detached

    @property
    def accelerator_type(self) -> str | None:
        """The kind of device asked for."""
        return self.spec.accelerator_type

    @property
    def closed(self) -> bool:
        """Whether the pool, or the one it was cut from, was shut down."""
        return self._source.closed

    @property
    def store(self) -> list[int]:
        """Processes per node, in rank order: a copy."""
        return self._source.sizes()

    def pool(self) -> list[int]:
        """The same as `store`."""
        return self.store

    @property
    def world_size(self) -> int:
        """Slots of the pool, which is workers of each group on it."""
        return sum(self._source.planned_sizes())

    def local_world_size_list(self) -> list[int]:
        """For each rank, the ranks on its node."""
        return [size for size in self.store for _ in range(size)]

    def local_rank_list(self) -> list[int]:
        """For each rank, its number on its node."""
        return [rank for size in self.store for rank in range(size)]

    def add_node(self, process_count: int) -> None:
        """One more node with so many processes.

        Raises:
            PoolAlreadyPlaced: the slots are reserved, or the pool is a view of another.
        """
        if not isinstance(self._source, OwnedSlots):
            raise PoolAlreadyPlaced(self.name_prefix, self.store)
        self._source.add_node(_checked_size(process_count))

    def get_placement_groups(
        self, strategy: str = _DEFAULT_STRATEGY, name: str | None = None, device_name: str = _DEFAULT_DEVICE
    ) -> list[PlacementGroup]:
        """The placement groups that hold the slots, in rank order, reserved at the first call.

        Args:
            strategy: how the bundles of each group are spread over nodes.
            name: exact start of the names, followed by 0, 1, ...; for `ray.util.get_placement_group`.
            device_name: torch device that says which accelerator a pool with `use_gpu` means.

        Raises:
            PlacementTimeout: the cluster could not reserve the slots in time.
            PlacementArgument: the pool is placed already, in another way.
            PoolClosed: the pool was shut down.
        """
        self._source.prepare(PlacementAsk(strategy, name, device_name))
        self._source.keep_when_dropped()
        return self._source.groups()

    @property
    def pgs(self) -> list[PlacementGroup] | None:
        """The placement groups, None before the first use; assign groups that somebody else reserved."""
        if not self._source.placed:
            return None
        self._source.keep_when_dropped()
        return self._source.groups()

    @pgs.setter
    def pgs(self, groups: Sequence[PlacementGroup]) -> None:
        if self._source.placed:
            raise PoolAlreadyPlaced(self.name_prefix, self.store)
        sizes = self._source.planned_sizes()
        if len(groups) != len(sizes) or any(g.bundle_count < s for g, s in zip(groups, sizes, strict=True)):
            given = [group.bundle_count for group in groups]
            raise InvalidPoolArgument("pgs", given, f"groups of at least {sizes} bundles")
        order = rank_order_of_groups(groups, sizes)
        slots = slots_of_groups([groups[index] for index in order], [sizes[index] for index in order])
        self._set_source(FixedSlots(self.name_prefix, self.spec, slots))

    def place(
        self, strategy: str = _DEFAULT_STRATEGY, device_name: str = _DEFAULT_DEVICE
    ) -> tuple[Slot, ...]:
        """Reserve the slots if they are not yet, or anew where a node was lost; a group calls this.

        Raises: as `get_placement_groups`.
        """
        self._source.prepare(PlacementAsk(strategy, None, device_name))
        self._source.mend()
        return self._source.slots()

    def lost_nodes(self) -> tuple[str, ...]:
        """Ids of nodes that held slots of the pool and are gone, sorted."""
        return self._source.lost_nodes()

    def slots(self) -> tuple[Slot, ...]:
        """The slots in rank order: the same at every call. Reserved first if they are not yet."""
        return self._source.slots()

    def worker_options(self) -> dict[str, Any]:
        """Ray actor options (`num_cpus`, `num_gpus`, `resources`) of one worker: one share of a slot."""
        return self.spec.worker_options()

    def acquire(self, owner: str | None = None, demand: Mapping[str, float] | None = None) -> Share:
        """Take one share of every slot for a group, until the answer is released.

        Args:
            owner: the group's name, for messages.
            demand: Ray resources that each worker takes; by default its share.

        Raises:
            PoolFull: as many groups as `max_colocate_count` allows are on a slot.
            SlotOverdrawn: a slot has less left than `demand`.
            PoolClosed: the pool was shut down.
        """
        slots = self.slots()
        owner = owner or f"group {next(_GROUP_NUMBERS)}"
        wanted = dict(demand) if demand is not None else demand_of_options(self.worker_options())
        claims = [Claim(rank, slot.key, _capacity(slot), wanted) for rank, slot in enumerate(slots)]
        ticket = LEDGER.take(self.name_prefix, owner, claims, self.spec.shares)
        return Share(LEDGER, ticket, owner)

    def owners(self) -> list[str]:
        """The groups of this process that are on the pool's slots."""
        return LEDGER.owners(slot.key for slot in self._source.slots()) if self._source.placed else []

    def split(self, split_size: SupportsIndex | Sequence[int]) -> list[SubRayResourcePool]:
        """Cut the pool into views, in rank order; parts may cross nodes and may be cut again.

        Raises:
            SplitSizeError: the sizes are not positive or do not add up to `world_size`.

        >>> [part.world_size for part in RayResourcePool([2, 1], use_gpu=False).split([1, 2])]
        [1, 2]
        """
        sizes = _split_sizes(split_size, self.world_size)
        starts = itertools.accumulate([0, *sizes[:-1]])
        return [SubRayResourcePool(self, start, size) for start, size in zip(starts, sizes, strict=True)]

    def shutdown(self) -> None:
        """Free the slots if this pool reserved them; a view only ends itself. Safe to call twice."""
        self._source.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return object.__hash__(self)

    def __repr__(self) -> str:
        kind = self.accelerator or "CPU"
        return f"{type(self).__name__}({self._source.planned_sizes()}, {kind}, {self.name_prefix!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may use the slots, never free them; its groups are counted there.
        return _view_elsewhere, (self.name_prefix, self.spec, self.slots())


class SubRayResourcePool(RayResourcePool):
    """A run of slots of another pool: it has every attribute of its parent and never frees what that owns."""

    def __init__(self, parent: RayResourcePool, start_bundle_index: int, subgroup_world_size: int) -> None:
        stop = start_bundle_index + subgroup_world_size
        if start_bundle_index < 0 or subgroup_world_size < 1 or stop > parent.world_size:
            given = (start_bundle_index, subgroup_world_size)
            raise InvalidPoolArgument(
                "(start_bundle_index, subgroup_world_size)",
                given,
                f"a run of the parent's {parent.world_size} slots",
            )
        self.parent = parent
        self.name_prefix = f"{parent.name_prefix}[{start_bundle_index}:{stop}]"
        # Counted from the pool that holds the reservation, however often it was cut.
        self.start_bundle_index = getattr(parent, "start_bundle_index", 0) + start_bundle_index
        self.subgroup_world_size = subgroup_world_size
        self._set_source(BorrowedSlots(self.name_prefix, [Part(parent._source, start_bundle_index, stop)]))


class _ForeignPool(RayResourcePool):
    def __init__(self, name_prefix: str, spec: PoolSpec, slots: tuple[Slot, ...]) -> None:
        self.name_prefix = name_prefix
        self._set_source(FixedSlots(name_prefix, spec, slots))


def _view_elsewhere(name_prefix: str, spec: PoolSpec, slots: tuple[Slot, ...]) -> RayResourcePool:
    return _ForeignPool(name_prefix, spec, slots)


def _checked_size(size: object) -> int:
    count = as_count(size)
    if count is None:
        raise InvalidPoolArgument("process_on_nodes", size, "whole numbers of processes, 1 or more")
    return count


def _split_sizes(split_size: object, world_size: int) -> list[int]:
    if not isinstance(split_size, Iterable):
        each = as_count(split_size)
        if each is None or world_size % each:
            raise SplitSizeError(split_size, world_size)
        return [each] * (world_size // each)
    given = list(split_size)
    sizes = [count for size in given if (count := as_count(size)) is not None]
    if len(sizes) < len(given) or sum(sizes) != world_size:
        raise SplitSizeError(given, world_size)
    return sizes


def _capacity(slot: Slot) -> Mapping[str, float]:
    capacity: Mapping[str, float] = slot.placement_group.bundle_specs[slot.bundle_index]
    return capacity


# --- Pools made of pools: cut, joined, or placed on groups that another reserved --------------------------


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


# --- Which role runs on which pool ------------------------------------------------------------------------


RoleT = TypeVar("RoleT", bound=Hashable)


class UnknownRole(MadeOfFacts, KeyError):
    """No pool is mapped to the role."""

    def __init__(self, role: object, known: Sequence[object]) -> None:
        self.facts = (role, known)
        self.role, self.known = role, tuple(known)
        super().__init__(role, self.known)

    def __str__(self) -> str:
        known = ", ".join(map(str, self.known)) or "nothing"
        return f"no pool is mapped to role {self.role!r}; mapping has: {known}"


class ResourcePoolManager(Generic[RoleT]):
    """Pools by name and the roles that run on them; a context manager that frees all its pools.

    Args:
        resource_pool_spec: pool name to processes per node.
        mapping: role to pool name.
        max_colocate_count: groups that fit on each pool.
        pool_options: further parameters of every `RayResourcePool`, such as `use_gpu=False`.

    Raises:
        InvalidPoolArgument: a role is mapped to a pool that the spec does not have.

    >>> manager = ResourcePoolManager({"main": [2]}, {"actor": "main", "critic": "main"}, use_gpu=False)
    >>> manager.create_resource_pool()
    >>> manager.get_resource_pool("actor") is manager.get_resource_pool("critic")
    True
    """

    def __init__(
        self,
        resource_pool_spec: Mapping[str, Sequence[int]],
        mapping: Mapping[RoleT, str],
        max_colocate_count: int = UnsaidInt(3),
        **pool_options: Any,
    ) -> None:
        self.resource_pool_spec = {name: list(sizes) for name, sizes in resource_pool_spec.items()}
        self.mapping = dict(mapping)
        self.max_colocate_count = max_colocate_count
        self.resource_pool_dict: dict[str, RayResourcePool] = {}
        self._pool_options = pool_options
        unknown = {role: name for role, name in self.mapping.items() if name not in self.resource_pool_spec}
        if unknown:
            raise InvalidPoolArgument("mapping", unknown, f"pools among {', '.join(self.resource_pool_spec)}")

    def create_resource_pool(self) -> None:
        """Make the pools that do not exist yet; each reserves its slots at its first use."""
        for name, sizes in self.resource_pool_spec.items():
            if name not in self.resource_pool_dict:
                self.resource_pool_dict[name] = RayResourcePool(
                    sizes, name_prefix=name, max_colocate_count=self.max_colocate_count, **self._pool_options
                )

    def get_resource_pool(self, role: RoleT) -> RayResourcePool:
        """The pool of a role, made if need be.

        Raises:
            UnknownRole: the mapping does not name the role.
        """
        if role not in self.mapping:
            raise UnknownRole(role, list(self.mapping))
        self.create_resource_pool()
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """Processes of all pools together, each of which has one accelerator."""
        return sum(sum(sizes) for sizes in self.resource_pool_spec.values())

    def shutdown(self) -> None:
        """Free all pools. Safe to call twice."""
        for pool in self.resource_pool_dict.values():
            pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
