"""What can go wrong with pools and placement: one class per cause, each says the way out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_protocol.errors import PortableError

__all__ = [
    "NOTHING_LEFT",
    "AcceleratorNotOffered",
    "AttributesDiffer",
    "MadeOfFacts",
    "PlacementNameTaken",
    "PlacementTimeout",
    "PoolAlreadyPlaced",
    "PoolClosed",
    "PoolFull",
    "PortRangeExhausted",
    "ResourceUnavailable",
    "SlotOverdrawn",
    "SplitSizeError",
]


NOTHING_LEFT = "Nothing stays reserved"


class ResourceUnavailable(RuntimeError):
    """The cluster or the pool cannot give what was asked for."""


class MadeOfFacts(PortableError):
    """An error whose constructor takes facts, keeps them, and builds the message."""

    facts: tuple[Any, ...]


class PlacementTimeout(MadeOfFacts, ResourceUnavailable):
    """The bundles could not be reserved in time; `report` says what each node lacks."""

    def __init__(self, request: str, waited_s: float, report: str, left: str = NOTHING_LEFT) -> None:
        self.facts = (request, waited_s, report, left)
        self.request, self.waited_s, self.report, _ = self.facts
        super().__init__(
            f"could not reserve {request} within {waited_s:.0f} s; {report}. {left}. "
            "Ask for less (process_on_nodes, cpus_per_worker; leave max_colocate_count out, and all groups "
            "of the pool share one CPU per process), shut down other pools, add nodes, or allow more time "
            "with timeout_s="
        )


class AcceleratorNotOffered(MadeOfFacts, ResourceUnavailable, ValueError):
    """No node of the cluster has the accelerator at all."""

    def __init__(self, accelerator: str, offered: Iterable[str], waited_s: float) -> None:
        self.facts = (accelerator, tuple(offered), waited_s)
        self.accelerator, self.offered, self.waited_s = self.facts
        known = ", ".join(self.offered) or "none"
        super().__init__(
            f"no node offers {accelerator!r} (waited {waited_s:.0f} s); the cluster offers: {known}. "
            "Name one of these with accelerator=, use use_gpu=False for a CPU pool, or add such a node"
        )


class PlacementNameTaken(MadeOfFacts, ValueError):
    """A placement group of the exact name exists already."""

    def __init__(self, name: str, owner: str) -> None:
        self.facts = (name, owner)
        self.name, self.owner = self.facts
        super().__init__(
            f"a placement group named {name!r} already exists, owned by {owner}; choose another name, leave "
            f"name= out for a unique one, or use it: pool.pgs = [ray.util.get_placement_group({name!r})]"
        )


class PoolFull(MadeOfFacts, ResourceUnavailable):
    """Every share of a slot is taken by a group."""

    def __init__(self, pool: str, taken: int, limit: int, owners: Sequence[str]) -> None:
        self.facts = (pool, taken, limit, tuple(owners))
        self.pool, self.taken, self.limit, self.owners = self.facts
        super().__init__(
            f"pool {pool!r} is full: {taken} of {limit} shares are taken by {', '.join(self.owners)}. "
            "Shut one of these groups down, or make the pool with a larger max_colocate_count"
        )


class SlotOverdrawn(MadeOfFacts, ResourceUnavailable):
    """A group asks more of a slot than its bundle still has."""

    def __init__(self, rank: int, resource: str, asked: float, free: float, total: float) -> None:
        self.facts = (rank, resource, asked, free, total)
        self.rank, self.resource, self.asked, self.free, self.total = self.facts
        super().__init__(
            f"the worker of rank {rank} asks {resource} {asked:g}, its slot has {free:g} of {total:g} left. "
            f"Ask for less {resource} in the options of RayClassWithInitArgs, or make the pool with larger "
            "bundles (max_colocate_count, cpus_per_worker)"
        )


class PoolClosed(MadeOfFacts, RuntimeError):
    """The slots of the pool are gone."""

    def __init__(self, pool: str, why: str = "was shut down") -> None:
        self.facts = (pool, why)
        self.pool, self.why = self.facts
        super().__init__(f"pool {pool!r} {why}; make a new one")


class PoolAlreadyPlaced(MadeOfFacts, RuntimeError):
    """The pool holds its bundles already, so its shape is fixed."""

    def __init__(self, pool: str, store: Sequence[int]) -> None:
        self.facts = (pool, tuple(store))
        self.pool, self.store = self.facts
        super().__init__(
            f"pool {pool!r} is already placed as {list(store)}; add nodes before the first use, "
            "or make a second pool and merge_resource_pool the two"
        )


class SplitSizeError(MadeOfFacts, ValueError):
    """The sizes do not cut the pool into whole parts."""

    def __init__(self, split_size: object, world_size: int) -> None:
        self.facts = (split_size, world_size)
        self.split_size, self.world_size = self.facts
        super().__init__(
            f"split_size is {split_size!r}, expected positive sizes that add up to the {world_size} slots "
            f"of the pool, or one number that divides {world_size}"
        )


class AttributesDiffer(MadeOfFacts, ValueError):
    """Two pools cannot be one because they were made differently."""

    def __init__(self, differences: Mapping[str, tuple[Any, Any]]) -> None:
        self.facts = (dict(differences),)
        self.differences = dict(differences)
        table = ", ".join(f"{name}: {left!r} and {right!r}" for name, (left, right) in differences.items())
        super().__init__(f"cannot merge pools that differ in {table}; make both with the same values")


class PortRangeExhausted(MadeOfFacts, ResourceUnavailable):
    """Every port of the range is in use on the node."""

    def __init__(self, first: int, stop: int, host: str) -> None:
        self.facts = (first, stop, host)
        self.first, self.stop, self.host = self.facts
        super().__init__(
            f"no free port in master_port_range {first}-{stop} on {host}: another group or program "
            "holds each. Widen the range, shut a group down, or leave master_port_range out"
        )
