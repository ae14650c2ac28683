"""Resource pools: who reserves what, who may use it, who frees it. A pool is slots, a slot is a place in a
reservation."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, SupportsIndex, TypeVar

from ray.util.placement_group import PlacementGroup
from verl_dispatch.groups.pool import EndsWithBlock, ResourcePool
from verl_protocol.arguments import flag, seconds, text, whole_number, whole_numbers
from verl_protocol.arguments import mapping as checked_mapping
from verl_protocol.errors import InvalidValueError, UnknownKeyError

from verl_ray.errors import PoolAlreadyPlaced, PoolClosed, unusable
from verl_ray.pools.cluster import alive_node_ids
from verl_ray.pools.ordering import together
from verl_ray.pools.placement import in_rank_order
from verl_ray.pools.reservation import Reservation, reserved_by_others
from verl_ray.pools.shares import LEDGER, Share, demand_of_options
from verl_ray.pools.slots import Slot
from verl_ray.pools.spec import PoolSpec, checked_accelerator, checked_cpus, checked_labels, checked_shares

V = TypeVar("V")
Place = tuple[Reservation, int]
"""A slot before and after it is reserved: its number in a reservation."""


class RayResourcePool(ResourcePool, EndsWithBlock):
    """Slots for workers: Ray placement groups, reserved at the first use; a context manager that frees them.

    Args:
        process_on_nodes: processes per node, such as `[8, 8]` or `[4, 2]`; each entry goes to one node.
        use_gpu: one GPU per process; False makes a CPU pool.
        name_prefix: start of the placement groups' names, which get a unique ending.
        max_colocate_count: groups that fit on the pool; each has `cpus_per_worker` CPUs per process. None:
            ten groups, and all that are on the pool share these CPUs.
        detached: the reservation outlives this driver.
        accelerator_type: kind of device, such as `"A100"` or `"accelerator_type:A100"`.
        accelerator: Ray resource to use in place of GPU: `"NPU"`, `"TPU"` or a custom name.
        cpus_per_worker: CPUs per process, see `max_colocate_count`. None: one.
        timeout_s: seconds that a reservation may take. None: 300, but only 30 where the cluster has no node
            that could ever serve it, and none where moreover this process has started the cluster itself.
        label_selector: Ray node labels that every slot's node must have.
        topology_strategy: Ray's topology strategy, such as `{"ray.io/gpu-domain": "STRICT_PACK"}` to keep
            all nodes of the pool in one NVLink domain; the pool is then one placement group.

    Raises:
        InvalidValueError: a value is out of range, or two contradict each other.

    >>> with RayResourcePool([2, 2], use_gpu=False) as pool:
    ...     pool.world_size, pool.local_world_size_list()
    (4, [2, 2, 2, 2])
    """

    _default_shares: ClassVar[int] = 10
    """Groups that fit where the user did not say how many."""

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        use_gpu: bool = True,
        name_prefix: str | None = None,
        max_colocate_count: int | None = None,
        detached: bool = False,
        accelerator_type: str | None = None,
        *,
        accelerator: str | None = None,
        cpus_per_worker: float | None = None,
        timeout_s: float | None = None,
        label_selector: Mapping[str, str] | None = None,
        topology_strategy: Mapping[str, str] | None = None,
    ) -> None:
        named = checked_accelerator(flag("use_gpu", use_gpu), accelerator)
        shares = checked_shares(max_colocate_count, self._default_shares, named)
        seconds("timeout_s", timeout_s, above_zero=True)
        spec = PoolSpec(
            accelerator=named,
            shares=shares,
            # Groups whose number the user gave have CPUs of their own; else all groups of a slot share them.
            cpus=checked_cpus(cpus_per_worker) * (1 if max_colocate_count is None else shares),
            detached=flag("detached", detached),
            accelerator_type=None if accelerator_type is None else text("accelerator_type", accelerator_type),
            timeout_s=timeout_s,
            label_selector=checked_labels("label_selector", label_selector),
            topology_strategy=checked_labels("topology_strategy", topology_strategy),
            accelerator_is_named=accelerator is not None,
        )
        sizes = whole_numbers("process_on_nodes", process_on_nodes, 1)
        name = text("name_prefix", name_prefix or "verl_ray")
        self._set_up(name, Reservation(name, spec, sizes))

    def _set_up(
        self,
        name_prefix: str,
        own: Reservation | None,
        cut: Sequence[Place] = (),
        parents: Sequence[RayResourcePool] = (),
    ) -> None:
        self.name_prefix = name_prefix
        self._own, self._cut, self._parents, self._closed = own, tuple(cut), tuple(parents), False
        super().__init__(None, self.spec.shares)
        self.detached: bool = self.spec.detached
        """Whether the reservation outlives the driver."""
        self.accelerator_type: str | None = self.spec.accelerator_type
        """The kind of device asked for."""

    @property
    def _places(self) -> Sequence[Place]:
        if self._own is None:
            return self._cut
        return [(self._own, number) for number in range(sum(self._own.sizes))]

    @property
    def _reservations(self) -> list[Reservation]:
        return [self._own] if self._own is not None else list(dict.fromkeys(each for each, _ in self._cut))

    def _of_each(self, ask: Callable[[Reservation], Sequence[V]]) -> list[V]:
        """What the reservations say, slot by slot, about the slots of this pool."""
        said = {reservation: ask(reservation) for reservation in self._reservations}
        return [said[reservation][number] for reservation, number in self._places]

    @property
    def _placed(self) -> bool:
        return not self.closed and all(reservation.placed for reservation in self._reservations)

    @property
    def spec(self) -> PoolSpec:
        """What the pool was made with."""
        return self._reservations[0].spec

    @property
    def accelerator(self) -> str | None:
        """The Ray resource of the accelerators, None for CPU pools."""
        return self.spec.accelerator

    @property
    def use_gpu(self) -> bool:
        """Whether the slots hold accelerators."""
        return self.spec.accelerator is not None

    @property
    def closed(self) -> bool:
        """Whether the pool, or the one it was cut from, was shut down."""
        gone = any(reservation.closed for reservation in self._reservations)
        return self._closed or gone or any(parent.closed for parent in self._parents)

    @property
    def store(self) -> list[int]:
        """Processes per node, in rank order: a copy."""
        return list(Counter(self._of_each(lambda held: [(held, key) for key in held.node_keys()])).values())

    @property
    def world_size(self) -> int:
        """Slots of the pool, which is workers of each group on it."""
        return len(self._places)

    def add_node(self, process_count: int) -> None:
        """One more node with so many processes.

        Raises:
            PoolAlreadyPlaced: the slots are reserved, or the pool is a view of another.
        """
        if self._own is None:
            raise PoolAlreadyPlaced(self.name_prefix, self.store)
        self._own.add_node(whole_number("process_count", process_count, 1))

    def get_placement_groups(
        self, strategy: str | None = None, name: str | None = None, device_name: str | None = None
    ) -> list[PlacementGroup]:
        """The placement groups that hold the slots, in rank order, reserved at the first call.

        Args:
            strategy: how the bundles of each group are spread over nodes. None: as they are reserved already,
                else "STRICT_PACK", with a `topology_strategy` "PACK".
            name: exact start of the names, followed by 0, 1, ...; for `ray.util.get_placement_group`. None: a
                unique one.
            device_name: torch device that says which accelerator a pool with `use_gpu` means. None: "cuda".

        Raises:
            PlacementTimeout: the cluster could not reserve the slots in time.
            InvalidValueError: the pool is placed already, in another way.
            PoolClosed: the pool was shut down.
        """
        self._reserve(strategy, name, device_name)
        return self._raw_groups()

    @property
    def pgs(self) -> list[PlacementGroup] | None:
        """The placement groups, None before the first use; assign groups that somebody else reserved."""
        return self._raw_groups() if self._placed else None

    @pgs.setter
    def pgs(self, groups: Sequence[PlacementGroup]) -> None:
        self._check_open()
        if self._placed:
            raise PoolAlreadyPlaced(self.name_prefix, self.store)
        sizes = self.store
        fit = all(g.bundle_count >= s for g, s in zip(groups, sizes, strict=False))
        if not fit or not len(groups) == len(set(groups)) == len(sizes):
            given = [group.bundle_count for group in groups]
            raise unusable("pgs", given, f"groups of at least {sizes} bundles, each once")
        adopted = in_rank_order(groups, sizes)
        if self._own is None:
            self._set_up(self.name_prefix, reserved_by_others(self.name_prefix, self.spec, adopted))
        else:
            self._own.adopt(adopted)

    def _check_open(self) -> None:
        if self.closed:
            raise PoolClosed(self.name_prefix)

    def _reserve(self, strategy: str | None, name: str | None, device_name: str | None) -> None:
        self._check_open()
        for reservation in self._reservations:
            reservation.place(strategy, name, device_name)

    def _raw_groups(self) -> list[PlacementGroup]:
        return list(dict.fromkeys(self._of_each(Reservation.raw_groups)))

    def place(self, strategy: str | None = None, device_name: str | None = None) -> tuple[Slot, ...]:
        """Reserve the slots if they are not yet, or anew where a node was lost; a group calls this.

        Raises: as `get_placement_groups`.
        """
        self._reserve(strategy, None, device_name)
        if self.lost_nodes():
            for reservation in self._reservations:
                reservation.move_from_lost_nodes()
        return self.slots()

    def lost_nodes(self) -> tuple[str, ...]:
        """Ids of nodes that held slots of the pool and are gone, sorted.

        Raises:
            PoolClosed: somebody else removed the placement groups.
        """
        if not self._placed:
            return ()
        for reservation in self._reservations:
            reservation.check_there()
        return tuple(sorted({slot.node_id for slot in self.slots()} - alive_node_ids()))

    def slots(self) -> tuple[Slot, ...]:
        """The slots in rank order: the same at every call. Reserved first if they are not yet."""
        self._check_open()
        return tuple(self._of_each(Reservation.slots))

    def worker_options(self) -> dict[str, Any]:
        """Ray actor options (`num_cpus`, `num_gpus`, `resources`) of one worker: one share of a slot."""
        return self.spec.worker_options()

    def acquire(self, owner: str = "a group", demand: Mapping[str, float] | None = None) -> Share:
        """Take one share of every slot for a group, until the answer is released.

        Args:
            owner: the group's name, for messages.
            demand: Ray resources that each worker takes; by default its share.

        Raises:
            PoolFull: as many groups as `max_colocate_count` allows are on a slot.
            ResourceUnavailable: a slot has less left than `demand`.
            PoolClosed: the pool was shut down.
        """
        slots = {slot.key: slot.capacity for slot in self.slots()}
        wanted = dict(demand) if demand is not None else demand_of_options(self.worker_options())
        return LEDGER.take(self.name_prefix, owner, slots, wanted, self.spec.shares)

    def owners(self) -> list[str]:
        """The groups of this process that are on the pool's slots."""
        return LEDGER.owners(slot.key for slot in self.slots()) if self._placed else []

    def split(self, split_size: SupportsIndex | Sequence[int]) -> list[SubRayResourcePool]:
        """Cut the pool into views, in rank order; parts may cross nodes and may be cut again.

        Raises:
            InvalidValueError: the sizes are not positive or do not add up to `world_size`.

        >>> [part.world_size for part in RayResourcePool([2, 1], use_gpu=False).split([1, 2])]
        [1, 2]
        """
        sizes = _split_sizes(split_size, self.world_size)
        starts = itertools.accumulate([0, *sizes[:-1]])
        return [SubRayResourcePool(self, start, size) for start, size in zip(starts, sizes, strict=True)]

    def shutdown(self) -> None:
        """Free the slots if this pool reserved them; a view only ends itself. Safe to call twice."""
        self._closed = True
        if self._own is not None:
            self._own.close()

    def __repr__(self) -> str:
        kind = type(self).__name__.removeprefix("_")
        return f"{kind}({self.store}, {self.accelerator or 'CPU'}, {self.name_prefix!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _PoolView, (self.name_prefix, tuple(self._places))


class SubRayResourcePool(RayResourcePool):
    """A run of slots of another pool: it has every attribute of its parent and never frees what that owns."""

    def __init__(self, parent: RayResourcePool, start_bundle_index: int, subgroup_world_size: int) -> None:
        whole_number("start_bundle_index", start_bundle_index, 0)
        stop = start_bundle_index + whole_number("subgroup_world_size", subgroup_world_size, 1)
        if stop > parent.world_size:
            given = (start_bundle_index, subgroup_world_size)
            expected = f"a run of the parent's {parent.world_size} slots"
            raise unusable("(start_bundle_index, subgroup_world_size)", given, expected)
        self.parent = parent
        # Counted from the pool that holds the reservation, however often it was cut.
        self.start_bundle_index: int = getattr(parent, "start_bundle_index", 0) + start_bundle_index
        self.subgroup_world_size = subgroup_world_size
        places = parent._places[start_bundle_index:stop]
        self._set_up(f"{parent.name_prefix}[{start_bundle_index}:{stop}]", None, places, [parent])


class _PoolView(RayResourcePool):
    """Slots of other pools, of this process or of another, which free them."""

    def __init__(
        self, name_prefix: str, places: Sequence[Place], parents: Sequence[RayResourcePool] = ()
    ) -> None:
        self._set_up(name_prefix, None, places, parents)


def _split_sizes(split_size: SupportsIndex | Sequence[int], world_size: int) -> list[int]:
    sizes = whole_numbers("split_size", split_size if isinstance(split_size, Iterable) else [split_size], 1)
    if not isinstance(split_size, Iterable):
        sizes *= world_size // sizes[0]
    if sum(sizes) != world_size:
        sums = f"sizes that add up to the {world_size} slots of the pool"
        raise unusable("split_size", split_size, f"{sums}, or one number that divides {world_size}")
    return sizes


# --- Pools made of pools: cut, joined, or placed on groups that another reserved --------------------------


def split_resource_pool(
    resource_pool: RayResourcePool, split_size: SupportsIndex | Sequence[int]
) -> list[SubRayResourcePool]:
    """Cut a pool into views: all of one size, or of the sizes listed.

    Raises:
        InvalidValueError: the sizes do not add up to the pool's world size.
    """
    return _checked_pool("resource_pool", resource_pool).split(split_size)


def _checked_pool(argument: str, given: RayResourcePool) -> RayResourcePool:
    if not isinstance(given, RayResourcePool):
        raise unusable(argument, given, "a RayResourcePool")
    return given


def merge_resource_pool(rp1: RayResourcePool, rp2: RayResourcePool) -> RayResourcePool:
    """One view over the slots of two pools, those of `rp1` first; the two keep owning their slots.

    Raises:
        InvalidValueError: the pools were not made alike, or share slots.
    """
    if differences := _checked_pool("rp1", rp1).spec.differences(_checked_pool("rp2", rp2).spec):
        raise InvalidValueError(
            f"cannot merge pools that differ in {differences}; make both with the same values"
        )
    slots = rp1.slots() + rp2.slots()
    if len({slot.key for slot in slots}) < len(slots):
        raise unusable("rp2", rp2, f"a pool that shares no slot with {rp1!r}")
    # Parts may come from one placement group with others between; ranks are contiguous per node.
    order = together([slot.node_key for slot in slots])
    places = [*rp1._places, *rp2._places]
    return _PoolView(f"{rp1.name_prefix}+{rp2.name_prefix}", [places[number] for number in order], [rp1, rp2])


def extract_pg_from_exist(
    resource_pools: Mapping[str, RayResourcePool],
    src_role_names: Sequence[str],
    resource_pool: RayResourcePool,
) -> list[PlacementGroup]:
    """Choose placement groups of the named pools that can hold `resource_pool`, one per entry of its store.

    The largest entry gets the largest group; the answer is in the order of `resource_pool.store`. Only the
    pools that are named get reserved.

    Raises:
        InvalidValueError: a role is unknown, or the groups are too few or too small.
    """
    sizes = _checked_pool("resource_pool", resource_pool).store
    checked_mapping("resource_pools", resource_pools)
    if unknown := [name for name in src_role_names if name not in resource_pools]:
        known = ", ".join(resource_pools)
        raise InvalidValueError(f"src_role_names has {unknown}, expected names among {known}")
    groups = [group for name in src_role_names for group in resource_pools[name].get_placement_groups()]
    # Roles may share a pool.
    largest_first = sorted(dict.fromkeys(groups), key=lambda group: -group.bundle_count)
    wanted = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    chosen = dict(zip(wanted, largest_first, strict=False))
    if len(chosen) < len(sizes) or any(chosen[index].bundle_count < sizes[index] for index in wanted):
        given = [group.bundle_count for group in largest_first]
        raise unusable("src_role_names", list(src_role_names), f"groups for {sizes}, they have {given}")
    return [chosen[index] for index in range(len(sizes))]


# --- Which role runs on which pool ------------------------------------------------------------------------


RoleT = TypeVar("RoleT", bound=Hashable)


class _ManagedPool(RayResourcePool):
    _default_shares = 3


class ResourcePoolManager(EndsWithBlock, Generic[RoleT]):
    """Pools by name and the roles that run on them; a context manager that frees all its pools.

    Args:
        resource_pool_spec: pool name to processes per node.
        mapping: role to pool name; None for pools that are used by their names alone.
        max_colocate_count: groups that fit on each pool, as for `RayResourcePool`; but None allows three.
        pool_options: further parameters of every `RayResourcePool`, such as `use_gpu=False`.

    Raises:
        InvalidValueError: a role is mapped to a pool that the spec does not have.

    >>> manager = ResourcePoolManager({"main": [2]}, {"actor": "main", "critic": "main"}, use_gpu=False)
    >>> manager.create_resource_pool()
    >>> manager.get_resource_pool("actor") is manager.get_resource_pool("critic")
    True
    """

    def __init__(
        self,
        resource_pool_spec: Mapping[str, Sequence[int]],
        mapping: Mapping[RoleT, str] | None = None,
        max_colocate_count: int | None = None,
        **pool_options: Any,
    ) -> None:
        self.resource_pool_spec: dict[str, list[int]] = {
            name: whole_numbers(f"resource_pool_spec[{name!r}]", sizes, 1)
            for name, sizes in checked_mapping("resource_pool_spec", resource_pool_spec).items()
        }
        checked_mapping("mapping", mapping or {})
        self.mapping: dict[RoleT, str] = dict(mapping or {})
        self.max_colocate_count = max_colocate_count
        self.resource_pool_dict: dict[str, RayResourcePool] = {}
        self._pool_options = pool_options
        unknown = {role: name for role, name in self.mapping.items() if name not in self.resource_pool_spec}
        if unknown:
            known = ", ".join(self.resource_pool_spec)
            raise InvalidValueError(f"mapping has {unknown}, expected pools among {known}")

    def create_resource_pool(self) -> None:
        """Make the pools that do not exist yet; each reserves its slots at its first use."""
        for name, sizes in self.resource_pool_spec.items():
            if name not in self.resource_pool_dict:
                self.resource_pool_dict[name] = _ManagedPool(
                    sizes, name_prefix=name, max_colocate_count=self.max_colocate_count, **self._pool_options
                )

    def get_resource_pool(self, role: RoleT) -> RayResourcePool:
        """The pool of a role, made if need be.

        Raises:
            UnknownKeyError: the mapping does not name the role.
        """
        if role not in self.mapping:
            raise UnknownKeyError([str(role)], "role in the mapping", map(str, self.mapping))
        self.create_resource_pool()
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """Processes of all pools together, each of which has one accelerator."""
        return sum(sum(sizes) for sizes in self.resource_pool_spec.values())

    def shutdown(self) -> None:
        """Free all pools. Safe to call twice."""
        for pool in self.resource_pool_dict.values():
            pool.shutdown()
