"""What Ray says about the cluster: the few calls that read its state, behind typed functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import ray
from ray._private import state as ray_state
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

__all__ = [
    "NodeFacts",
    "PlacementProgress",
    "actor_state",
    "alive_node_ids",
    "alive_nodes",
    "bundle_node_ids",
    "connection",
    "dead_node_addresses",
    "ensure_ray_started",
    "is_placed",
    "node_addresses",
    "offered_resources",
    "placement_option_supported",
    "placement_progress",
    "still_reserved",
]


@dataclass(frozen=True)
class NodeFacts:
    """One living node: its total and free resources and its labels."""

    node_id: str
    address: str
    total: Mapping[str, float]
    free: Mapping[str, float]
    labels: Mapping[str, str]

    @property
    def title(self) -> str:
        """Name for messages; nodes may share an address, so a piece of the id goes with it."""
        return f"{self.address} ({self.node_id[:6]})"


# Ray leaves these untyped.
_list_nodes: Callable[[], list[dict[str, Any]]] = ray.nodes
_actor_entry: Callable[[str], dict[str, Any]] = ray_state.actors
_list_free: Callable[[], dict[str, dict[str, float]]] = ray_state.available_resources_per_node


def ensure_ray_started() -> None:
    """Start or join Ray as `ray.init()` would, unless this process is connected already."""
    if not ray.is_initialized():
        ray.init()


def connection() -> str | None:
    """What tells one connection to Ray from another, None without one."""
    return ray.get_runtime_context().gcs_address if ray.is_initialized() else None


def alive_nodes() -> tuple[NodeFacts, ...]:
    """All living nodes, in the order Ray lists them."""
    free = _list_free()
    return tuple(_facts(node, free) for node in _list_nodes() if node["Alive"])


def offered_resources() -> list[str]:
    """The names of all resources that living nodes have, sorted."""
    return sorted({name for node in alive_nodes() for name in node.total})


def alive_node_ids() -> frozenset[str]:
    """The ids of all living nodes."""
    return frozenset(str(node["NodeID"]) for node in _list_nodes() if node["Alive"])


def dead_node_addresses() -> tuple[str, ...]:
    """Addresses of the nodes that the cluster has lost."""
    return tuple(str(node["NodeManagerAddress"]) for node in _list_nodes() if not node["Alive"])


def _facts(node: Mapping[str, Any], free: Mapping[str, Mapping[str, float]]) -> NodeFacts:
    node_id = str(node["NodeID"])
    return NodeFacts(
        node_id=node_id,
        address=str(node["NodeManagerAddress"]),
        total=dict(node["Resources"]),
        free=dict(free.get(node_id, {})),
        labels=dict(node.get("Labels") or {}),
    )


def node_addresses() -> dict[str, str]:
    """The address of each living node, by node id."""
    return {node.node_id: node.address for node in alive_nodes()}


def bundle_node_ids(group: PlacementGroup) -> list[str]:
    """The node of each bundle of a placed group, by bundle index."""
    table: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [table[index] for index in sorted(table)]


def actor_state(actor_id: str) -> str:
    """What Ray says an actor is doing: `PENDING_CREATION`, `ALIVE`, `DEAD` and more, or "unknown"."""
    return str(_actor_entry(actor_id).get("State", "unknown"))


def is_placed(group: PlacementGroup) -> bool:
    """Whether the group holds all its bundles; not so while Ray looks for a place in lieu of a lost node.

    Raises:
        LookupError: somebody removed the group.
    """
    state = placement_progress(group).state
    if state == "REMOVED":
        raise LookupError(group.id.hex())
    return state == "CREATED"


@dataclass(frozen=True)
class PlacementProgress:
    """How far Ray is with a placement group, in Ray's own words."""

    state: str
    scheduling: str
    attempts: int

    def settled(self, earlier: PlacementProgress | None) -> bool:
        """Whether Ray is at rest: the group is there or gone, or was refused and not tried again since.

        Args:
            earlier: a look some time before; the word of the last refusal stands while a next try runs.
        """
        refused = self.state != "PREPARED" and self.scheduling in ("NO_RESOURCES", "INFEASIBLE")
        return self.state in ("CREATED", "REMOVED") or (refused and self == earlier)


def placement_progress(group: PlacementGroup) -> PlacementProgress:
    """What Ray says about a placement group now."""
    entry: Mapping[str, Any] = placement_group_table(group)
    stats = entry.get("stats", {})
    return PlacementProgress(
        entry.get("state", "REMOVED"), stats.get("scheduling_state", ""), stats.get("scheduling_attempt", 0)
    )


def still_reserved(group: PlacementGroup) -> bool:
    """Whether any node still reports resources that belong to the group."""
    group_id = group.id.hex()
    return any(group_id in resource for free in _list_free().values() for resource in free)


@cache
def placement_option_supported(option: str) -> bool:
    """Whether `ray.util.placement_group` of this Ray version takes the option."""
    return option in inspect.signature(placement_group).parameters
