"""Reserve bundles: all or nothing, within bounded time, with an answer to "why does it wait?"."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.exceptions import RaySystemError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from verl_protocol.errors import InvalidValueError

from verl_ray.errors import NOTHING_LEFT, AcceleratorNotOffered, NameTakenError, PlacementTimeout
from verl_ray.pools import cluster
from verl_ray.pools.feasibility import Feasibility as Feasibility
from verl_ray.pools.feasibility import Need, explain_need, labels_match
from verl_ray.pools.feasibility import explain_feasibility as explain_feasibility
from verl_ray.pools.ordering import arrange_on_nodes, node_order_key
from verl_ray.pools.ordering import order_bundles as order_bundles
from verl_ray.wire.refs import connection

_log = logging.getLogger("verl_ray")

# How long a reservation may take where the user did not say: where the cluster could serve it, and where no
# node of it could, though one that can may be on its way: unless this process started the cluster by itself,
# which no autoscaler then serves.
_TIMEOUT_S, _HOPELESS_S = 300.0, 30.0
_FIRST_REPORT_S = 5.0
_NEXT_REPORT_S = 15.0
_SHOWN_AFTER_S = 0.3
_SETTLE_WITHIN_S = 5.0
# Longer than a node takes to answer a try to reserve, so that none is running when nothing has changed.
_BETWEEN_LOOKS_S = 0.05


# --- reserving --------------------------------------------------------------------------------------------


def place(
    need: Need, names: Sequence[str], timeout_s: float | None, *, detached: bool
) -> dict[PlacementGroup, int]:
    """Reserve one placement group for each entry of `need.spec`, all of them or none; as `in_rank_order`.

    Args:
        names: of the placement groups.
        timeout_s: seconds to wait. None: 300, but only 30 where no node could ever serve the need, and
            none where this process has started the cluster itself.

    Raises:
        PlacementTimeout: not all could be reserved in time.
        AcceleratorNotOffered: no node has the resource.
        NameTakenError: a name exists already.
        InvalidValueError: this Ray knows no such kind of placement.
    """
    # The largest first: a small one that comes first may take the only node that is large enough.
    largest_first = sorted(range(len(need.spec)), key=lambda index: -need.spec[index])
    groups: dict[int, PlacementGroup] = {}
    try:
        for index in largest_first:
            groups[index] = _create(placement_options(need, need.spec[index], names[index], detached))
        _wait_until_ready(list(groups.values()), need, timeout_s)
        return in_rank_order([groups[index] for index in range(len(need.spec))], need.spec)
    except BaseException:
        release(list(groups.values()))
        raise


def placement_options(need: Need, size: int, name: str, detached: bool) -> dict[str, Any]:
    """Keyword arguments for `ray.util.placement_group` that make one of `size` bundles.

    Raises:
        InvalidValueError: this Ray version has no such option.
    """
    options: dict[str, Any] = {
        "bundles": [dict(need.per_process) for _ in range(size)],
        "name": name,
        "lifetime": "detached" if detached else None,
    }
    if need.label_selector:
        options["bundle_label_selector"] = [dict(need.label_selector) for _ in range(size)]
    if need.topology_strategy:
        # Ray takes the strategy over nodes inside this dict, not beside it.
        options["topology_strategy"] = {"ray.io/node-id": need.strategy} | dict(need.topology_strategy)
    else:
        options["strategy"] = need.strategy
    for option in ("bundle_label_selector", "topology_strategy"):
        if option in options and not cluster.placement_option_supported(option):
            raise InvalidValueError(
                f"ray {ray.__version__} does not know {option}=; install a newer Ray or leave {option} out"
            )
    return options


def _create(options: Mapping[str, Any]) -> PlacementGroup:
    try:
        group: PlacementGroup = placement_group(**options)
    except RaySystemError as error:
        if "already exists" not in str(error):
            raise
        name = options["name"]
        raise NameTakenError(
            f"a placement group named {name!r} already exists, owned by {_owner_of(name)}; choose another "
            "name, leave name= out for a unique one, or use it: "
            f"pool.pgs = [ray.util.get_placement_group({name!r})]"
        ) from error
    return group


def _owner_of(name: str) -> str:
    for group_id, entry in placement_group_table().items():
        if entry["name"] == name and entry["state"] != "REMOVED":
            # The last four bytes of every id are those of the job that made it.
            return f"job {group_id[-8:]} (placement group {group_id}, {entry['state']})"
    return "another namespace"


def _wait_until_ready(groups: Sequence[PlacementGroup], need: Need, timeout_s: float | None) -> None:
    refs = [group.ready() for group in groups]

    def ready_within(seconds: float) -> bool:
        return not ray.wait(refs, num_returns=len(refs), timeout=seconds, fetch_local=False)[1]

    _wait(groups, need, timeout_s, ready_within)


def await_placement(groups: Sequence[PlacementGroup], timeout_s: float | None) -> None:
    """Wait until Ray has found new places for groups that lost a node, or somebody removed one.

    Raises:
        PlacementTimeout: there was no room in time; Ray goes on looking.
    """
    sizes = tuple(group.bundle_count for group in groups)
    strategy = placement_group_table(groups[0])["strategy"]

    def placed_within(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (placed := _needs_no_wait(groups)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return placed

    need = Need(sizes, groups[0].bundle_specs[0], strategy)
    _wait(groups, need, timeout_s, placed_within, left="What other groups use stays reserved")


def _needs_no_wait(groups: Sequence[PlacementGroup]) -> bool:
    states = {cluster.placement_progress(group).state for group in groups}
    if states != {"CREATED"}:
        return "REMOVED" in states
    return {node for group in groups for node in cluster.bundle_node_ids(group)} <= cluster.alive_node_ids()


# --- waiting, and saying what for -------------------------------------------------------------------------


def _wait(
    groups: Sequence[PlacementGroup],
    need: Need,
    timeout_s: float | None,
    done_within: Callable[[float], bool],
    left: str = NOTHING_LEFT,
) -> None:
    hopeless_s = 0.0 if cluster.started_here() else _HOPELESS_S
    patience_s, hopeless_s = (timeout_s, timeout_s) if timeout_s is not None else (_TIMEOUT_S, hopeless_s)
    started = time.monotonic()
    next_report = _FIRST_REPORT_S
    while not done_within(max(0.01, min(1.0, started + patience_s - time.monotonic()))):
        waited = time.monotonic() - started
        if waited >= patience_s or (waited >= hopeless_s and _too_small(_eligible(need), need)):
            raise _placement_failure(groups, need, waited, left)
        if waited >= next_report:
            report = _report(groups, need)
            _log.warning("still waiting for %s after %.0f s: %s", need, waited, report)
            next_report = waited + _NEXT_REPORT_S


def _placement_failure(groups: Sequence[PlacementGroup], need: Need, waited: float, left: str) -> Exception:
    offered = cluster.offered_resources()
    for name in need.per_process:
        if name not in offered:
            return AcceleratorNotOffered(name, _alternatives(name, offered), waited)
    return PlacementTimeout(str(need), waited, _report(groups, need), left)


def _alternatives(missing: str, offered: Sequence[str]) -> list[str]:
    """What else of its kind the cluster has: types of accelerators, or resources for people."""
    if missing.startswith("accelerator_type:"):
        return [name for name in offered if name.startswith("accelerator_type:")]
    internal = ("node:", "object_store_memory", "memory", "accelerator_type:")
    return [name for name in offered if not name.startswith(internal) and "_group_" not in name]


def _eligible(need: Need) -> list[cluster.NodeFacts]:
    return [node for node in cluster.alive_nodes() if labels_match(node.labels, need.label_selector or {})]


def _too_small(nodes: Sequence[cluster.NodeFacts], need: Need) -> str:
    """Why these nodes could never serve the need; "" where they could."""
    return explain_need({node.title: node.total for node in nodes}, need).reason


def _report(groups: Sequence[PlacementGroup], need: Need) -> str:
    """What is needed against what is there, per node: all resources, then those that others leave free."""
    nodes = _eligible(need)
    if reason := _too_small(nodes, need):
        return f"the cluster is too small: {reason}"
    ours = _held_by(groups, need.per_process)
    free = explain_need({node.title: _sum(node.free, ours.get(node.node_id, {})) for node in nodes}, need)
    if free.ok:
        return "what is free now would do, but Ray has not placed it yet"
    return f"the cluster is large enough, but not what is free now: {free.reason}"


def _held_by(groups: Sequence[PlacementGroup], bundle: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """What those of our groups that are placed already take from each node."""
    held: dict[str, dict[str, float]] = {}
    for group in groups:
        for node_id in cluster.bundle_node_ids(group):
            held[node_id] = _sum(held.get(node_id, {}), bundle)
    return held


def _sum(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


# --- the order of what is placed --------------------------------------------------------------------------


def in_rank_order(groups: Sequence[PlacementGroup], sizes: Sequence[int]) -> dict[PlacementGroup, int]:
    """Placed groups in the order in which they give ranks, and how many bundles of each are used."""
    addresses = cluster.node_addresses()
    firsts = [_first_node(group, addresses) for group in groups]
    order = arrange_on_nodes(sizes, [(node, addresses.get(node, "")) for node in firsts])
    return {groups[index]: sizes[index] for index in order}


def _first_node(group: PlacementGroup, addresses: Mapping[str, str]) -> str:
    return min(cluster.bundle_node_ids(group), key=lambda node: node_order_key(addresses.get(node, ""), node))


def sort_placement_group_by_node_ip(pgs: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    """Sort placed groups by the address of their first node: IPv4 by number, IPv6, host names, node ids."""
    addresses = cluster.node_addresses()
    firsts = {group: _first_node(group, addresses) for group in pgs}
    return sorted(pgs, key=lambda group: node_order_key(addresses.get(firsts[group], ""), firsts[group]))


# --- giving back ------------------------------------------------------------------------------------------


def release(groups: Sequence[PlacementGroup], timeout_s: float = 10.0) -> None:
    """Give bundles back and wait, within bounds, until the cluster shows them as free; say so where it does
    not."""
    if not groups or connection() is None:
        return
    try:
        unsettled = _settle(groups)
        reported = cluster.still_reserved(groups) == list(groups)
    finally:
        for group in groups:
            remove_placement_group(group)
    # Nodes report every tenth of a second. A group younger than that may yet show up before it goes.
    shown = time.monotonic() + (0.0 if reported else _SHOWN_AFTER_S)
    deadline = time.monotonic() + timeout_s
    while (held := cluster.still_reserved(groups)) or time.monotonic() < shown:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    for group in {*unsettled, *held}:
        _log.warning(
            "placement group %s was removed, but Ray may keep what it held, %s, until the cluster ends; "
            "`ray status` shows what is taken",
            group.id.hex(),
            group.bundle_specs,
        )


def _settle(groups: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    """Wait until Ray has made or refused each group, and return those where it has not in time.

    Ray loses track of what is removed while a node prepares it, and those resources stay taken for good.
    """
    looks: dict[PlacementGroup, cluster.PlacementProgress | None] = dict.fromkeys(groups)
    deadline = time.monotonic() + _SETTLE_WITHIN_S
    while True:
        for group, earlier in list(looks.items()):
            looks[group] = now = cluster.placement_progress(group)
            if now.settled(earlier):
                del looks[group]
        if not looks or time.monotonic() >= deadline:
            return list(looks)
        time.sleep(_BETWEEN_LOOKS_S)
