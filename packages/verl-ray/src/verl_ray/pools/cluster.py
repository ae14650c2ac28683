"""What Ray says about the cluster: the few calls that read its state, behind typed functions."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import PlacementGroupID
from ray._private import state as ray_state
from ray._private.worker import global_worker
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table

from verl_ray.errors import ResourceUnavailable
from verl_ray.wire.refs import is_fork, no_connection


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


def ensure_ray_started() -> None:
    """Start or join Ray as `ray.init()` would, unless this process is connected already.

    Raises:
        ResourceUnavailable: this process can have no connection of the kind that groups need.
    """
    if is_fork():
        raise ResourceUnavailable(no_connection())
    if not (ray.is_initialized() or _is_client()):
        ray.init()
    if _is_client():
        raise ResourceUnavailable(
            "this process is connected to Ray by a ray:// address, through which pools and groups cannot "
            "work: run the program on a node of the cluster, with ray.init(address='auto'), or send it there "
            "with `ray job submit`"
        )


def started_here() -> bool:
    """Whether `ray.init()` of this process has started the cluster, which then gets no nodes by itself."""
    # Ray has no public word for it, and its autoscaler's monitor runs in every cluster.
    node: Any = getattr(global_worker, "node", None)
    return node is not None and bool(node.is_head())


def _is_client() -> bool:
    from ray.util.client import ray as client

    return bool(client.is_connected())


def alive_nodes() -> tuple[NodeFacts, ...]:
    """All living nodes, in the order Ray lists them."""
    free = ray_state.available_resources_per_node()
    return tuple(
        NodeFacts(
            node_id=node["NodeID"],
            address=node["NodeManagerAddress"],
            total=dict(node["Resources"]),
            free=dict(free.get(node["NodeID"], {})),
            labels=dict(node.get("Labels") or {}),
        )
        for node in ray.nodes()
        if node["Alive"]
    )


def offered_resources() -> list[str]:
    """The names of all resources that living nodes have, sorted."""
    return sorted({name for node in alive_nodes() for name in node.total})


def alive_node_ids() -> frozenset[str]:
    """The ids of all living nodes."""
    return frozenset(str(node["NodeID"]) for node in ray.nodes() if node["Alive"])


def dead_node_addresses() -> tuple[str, ...]:
    """Addresses of the nodes that the cluster has lost."""
    return tuple(str(node["NodeManagerAddress"]) for node in ray.nodes() if not node["Alive"])


def node_addresses() -> dict[str, str]:
    """The address of each living node, by node id."""
    return {node.node_id: node.address for node in alive_nodes()}


def bundle_node_ids(group: PlacementGroup) -> list[str]:
    """The node of each bundle of a placed group, by bundle index."""
    table: dict[int, str] = placement_group_table(group)["bundles_to_node_id"]
    return [table[index] for index in sorted(table)]


def actor_state(actor_id: str) -> str:
    """What Ray says an actor is doing: `PENDING_CREATION`, `ALIVE`, `DEAD` and more, or "unknown"."""
    return str(ray_state.actors(actor_id).get("State", "unknown"))


def actors_on(group_id: str, bundle_index: int) -> dict[str, str]:
    """The actors that live on a bundle of a placement group, of whoever: id to name and namespace."""
    return {
        actor.actor_id.hex(): f"{actor.name or actor.class_name!r} (namespace {actor.ray_namespace!r})"
        for actor in _actor_table()
        if actor.ActorState.Name(actor.state) == "ALIVE"
        and f"bundle_group_{bundle_index}_{group_id}" in actor.required_resources
    }


def placement_groups_of(actor_names: Collection[str]) -> list[PlacementGroup]:
    """The placement groups of the last actors of these names in this namespace, which may be gone."""
    namespace = ray.get_runtime_context().namespace
    # Of one name, one actor at most is not dead; before it is alive, it has no time.
    in_turn = sorted(
        _actor_table(), key=lambda actor: (actor.ActorState.Name(actor.state) != "DEAD", actor.start_time)
    )
    lasts = {
        actor.name: actor.placement_group_id
        for actor in in_turn
        if actor.name in actor_names and actor.ray_namespace == namespace
    }
    return [PlacementGroup(PlacementGroupID(each)) for each in set(lasts.values()) if each]


def job_runs(job_id: str) -> bool:
    """Whether the driver of the job is connected to the cluster."""
    return any(job["JobID"] == job_id and not job["IsDead"] for job in ray_state.jobs())


def _actor_table() -> list[Any]:
    # The state API asks the dashboard, which need not run; this asks where that asks too.
    from ray.core.generated import gcs_pb2

    table: Any = gcs_pb2.ActorTableData  # type: ignore[attr-defined]  # made by protobuf
    accessor: Any = ray_state.state._connect_and_get_accessor()
    return [table.FromString(entry) for entry in accessor.get_actor_table(None, None)]


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


def still_reserved(groups: Iterable[PlacementGroup]) -> list[PlacementGroup]:
    """Those of the groups of which any node still reports resources."""
    reported = {name for free in ray_state.available_resources_per_node().values() for name in free}
    return [group for group in groups if any(group.id.hex() in name for name in reported)]


def placement_option_supported(option: str) -> bool:
    """Whether `ray.util.placement_group` of this Ray version takes the option."""
    return option in inspect.signature(placement_group).parameters
