"""Reserve bundles: all or nothing, within bounded time, with an answer to "why does it wait?"."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import ray
from ray.exceptions import RaySystemError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from verl_ray.errors import (
    NOTHING_LEFT,
    AcceleratorNotOffered,
    MadeOfFacts,
    PlacementNameTaken,
    PlacementTimeout,
)
from verl_ray.pools.cluster import (
    NodeFacts,
    PlacementProgress,
    alive_node_ids,
    alive_nodes,
    bundle_node_ids,
    is_placed,
    node_addresses,
    offered_resources,
    placement_option_supported,
    placement_progress,
    still_reserved,
)
from verl_ray.pools.feasibility import Feasibility, Need, explain_feasibility, explain_need, labels_match
from verl_ray.pools.ordering import node_order_key, order_bundles

__all__ = [
    "Feasibility",
    "GroupRequest",
    "Patience",
    "UnsupportedPlacementOption",
    "await_placement",
    "explain_feasibility",
    "order_bundles",
    "place",
    "release",
    "sort_placement_group_by_node_ip",
]


logger = logging.getLogger("verl_ray")

_FIRST_REPORT_S = 5.0
_NEXT_REPORT_S = 15.0
_SHOWN_AFTER_S = 0.3
_SETTLE_WITHIN_S = 5.0
# Longer than a node takes to answer a try to reserve, so that none is running when nothing has changed.
_BETWEEN_LOOKS_S = 0.05


class UnsupportedPlacementOption(MadeOfFacts, ValueError):
    """The installed Ray cannot do this kind of placement."""

    def __init__(self, option: str, version: str) -> None:
        self.facts = (option, version)
        self.option, self.version = option, version
        super().__init__(f"ray {version} does not know {option}=; install a newer Ray or leave {option} out")


@dataclass(frozen=True)
class GroupRequest:
    """One placement group to create: `size` equal bundles."""

    size: int
    bundle: Mapping[str, float]
    strategy: str
    name: str
    detached: bool = False
    label_selector: Mapping[str, str] | None = None
    topology_strategy: Mapping[str, str] | None = None

    def options(self) -> dict[str, Any]:
        """Keyword arguments for `ray.util.placement_group`.

        Raises:
            UnsupportedPlacementOption: this Ray version has no such option.
        """
        options: dict[str, Any] = {
            "bundles": [dict(self.bundle) for _ in range(self.size)],
            "name": self.name,
        }
        options["lifetime"] = "detached" if self.detached else None
        if self.label_selector:
            options["bundle_label_selector"] = [dict(self.label_selector) for _ in range(self.size)]
        if self.topology_strategy:
            # Ray takes the strategy over nodes inside this dict, not beside it.
            options["topology_strategy"] = {"ray.io/node-id": self.strategy} | dict(self.topology_strategy)
        else:
            options["strategy"] = self.strategy
        for option in ("bundle_label_selector", "topology_strategy"):
            if option in options and not placement_option_supported(option):
                raise UnsupportedPlacementOption(option, ray.__version__)
        return options


@dataclass(frozen=True)
class Patience:
    """How long to wait: `timeout_s` where the cluster could serve it, `hopeless_s` where no node could."""

    timeout_s: float
    hopeless_s: float


def place(requests: Sequence[GroupRequest], patience: Patience) -> list[PlacementGroup]:
    """Create one placement group per request and wait until all are reserved.

    Raises:
        PlacementTimeout: the cluster could not reserve them in time; nothing stays reserved.
        AcceleratorNotOffered: no node has the accelerator asked for.
    """
    # Ray may put a small group on the only node that has room for a large one; so the large ones go first.
    largest_first = sorted(range(len(requests)), key=lambda index: -requests[index].size)
    ordered = [requests[index] for index in largest_first]
    groups: list[PlacementGroup] = []
    try:
        for request in ordered:
            groups.append(_create(request))
        _wait_until_ready(groups, ordered, patience)
    except BaseException:
        release(groups)
        raise
    return [group for _, group in sorted(zip(largest_first, groups, strict=True), key=itemgetter(0))]


def _create(request: GroupRequest) -> PlacementGroup:
    try:
        group: PlacementGroup = placement_group(**request.options())
    except RaySystemError as error:
        if "already exists" not in str(error):
            raise
        raise PlacementNameTaken(request.name, _owner_of(request.name)) from error
    return group


def _owner_of(name: str) -> str:
    for group_id, entry in placement_group_table().items():
        if entry["name"] == name and entry["state"] != "REMOVED":
            # The last four bytes of every id are those of the job that made it.
            return f"job {group_id[-8:]} (placement group {group_id}, {entry['state']})"
    return "another namespace"


def _wait_until_ready(
    groups: Sequence[PlacementGroup], requests: Sequence[GroupRequest], patience: Patience
) -> None:
    refs = [group.ready() for group in groups]

    def ready_within(seconds: float) -> bool:
        _, pending = ray.wait(refs, num_returns=len(refs), timeout=seconds, fetch_local=False)
        return not pending

    _wait(groups, requests, patience, ready_within)


def await_placement(groups: Sequence[PlacementGroup], patience: Patience) -> None:
    """Wait until Ray has found new places for groups that lost a node.

    Raises:
        PlacementTimeout: there was no room in time; Ray goes on looking.
        LookupError: somebody removed a group.
    """
    requests = [_request_of(group) for group in groups]

    def placed_within(seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not (placed := _on_living_nodes(groups)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return placed

    _wait(groups, requests, patience, placed_within, left="What other groups use stays reserved")


def _on_living_nodes(groups: Sequence[PlacementGroup]) -> bool:
    if not all(is_placed(group) for group in groups):
        return False
    living = alive_node_ids()
    return all(living.issuperset(bundle_node_ids(group)) for group in groups)


def _request_of(group: PlacementGroup) -> GroupRequest:
    entry = placement_group_table(group)
    return GroupRequest(group.bundle_count, group.bundle_specs[0], entry["strategy"], entry["name"])


def _wait(
    groups: Sequence[PlacementGroup],
    requests: Sequence[GroupRequest],
    patience: Patience,
    done_within: Callable[[float], bool],
    left: str = NOTHING_LEFT,
) -> None:
    started = time.monotonic()
    next_report = _FIRST_REPORT_S
    while True:
        if done_within(_step(time.monotonic() - started, patience)):
            return
        waited = time.monotonic() - started
        if waited >= min(patience.timeout_s, patience.hopeless_s):
            _give_up_if_due(groups, requests, patience, waited, left)
        if waited >= next_report:
            report = _report(groups, requests)
            logger.warning("still waiting for %s after %.0f s: %s", _describe(requests), waited, report)
            next_report = waited + _NEXT_REPORT_S


def _step(waited: float, patience: Patience) -> float:
    return max(0.01, min(1.0, patience.timeout_s - waited))


def _give_up_if_due(
    groups: Sequence[PlacementGroup],
    requests: Sequence[GroupRequest],
    patience: Patience,
    waited: float,
    left: str,
) -> None:
    nodes = _eligible(alive_nodes(), requests)
    hopeless = not explain_need({node.title: node.total for node in nodes}, _need(requests)).ok
    if not hopeless and waited < patience.timeout_s:
        return
    offered = offered_resources()
    for name in requests[0].bundle:
        if name not in offered:
            raise AcceleratorNotOffered(name, _for_people(offered), waited)
    raise PlacementTimeout(_describe(requests), waited, _report(groups, requests), left)


def _for_people(resources: Sequence[str]) -> list[str]:
    internal = ("node:", "object_store_memory", "memory", "accelerator_type:")
    return [name for name in resources if not name.startswith(internal) and "_group_" not in name]


def _need(requests: Sequence[GroupRequest]) -> Need:
    return Need(tuple(request.size for request in requests), requests[0].bundle, requests[0].strategy)


def _eligible(nodes: Sequence[NodeFacts], requests: Sequence[GroupRequest]) -> list[NodeFacts]:
    selector = requests[0].label_selector or {}
    return [node for node in nodes if labels_match(node.labels, selector)]


def _describe(requests: Sequence[GroupRequest]) -> str:
    need = _need(requests)
    each = ", ".join(f"{name} {amount:g}" for name, amount in need.per_process.items())
    total = ", ".join(f"{name} {amount:g}" for name, amount in need.of(sum(need.spec)).items())
    labels = f", on nodes with {dict(requests[0].label_selector)}" if requests[0].label_selector else ""
    return f"processes {list(need.spec)} with {each} each ({total} in all), {need.strategy}{labels}"


def _report(groups: Sequence[PlacementGroup], requests: Sequence[GroupRequest]) -> str:
    """What is needed against what is there, per node: all resources, then those that others leave free."""
    nodes = _eligible(alive_nodes(), requests)
    need = _need(requests)
    total = explain_need({node.title: node.total for node in nodes}, need)
    if not total.ok:
        return f"the cluster is too small: {total.reason}"
    ours = _held_by(groups, requests)
    free = explain_need({node.title: _sum(node.free, ours.get(node.node_id, {})) for node in nodes}, need)
    if free.ok:
        return "what is free now would do, but Ray has not placed it yet"
    return f"the cluster is large enough, but not what is free now: {free.reason}"


def _held_by(
    groups: Sequence[PlacementGroup], requests: Sequence[GroupRequest]
) -> dict[str, Mapping[str, float]]:
    """What those of our groups that are placed already take from each node."""
    held: dict[str, Mapping[str, float]] = {}
    for group, request in zip(groups, requests, strict=True):
        for node_id in bundle_node_ids(group):
            held[node_id] = _sum(held.get(node_id, {}), request.bundle)
    return held


def _sum(left: Mapping[str, float], right: Mapping[str, float]) -> dict[str, float]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in {**left, **right}}


def release(groups: Sequence[PlacementGroup], timeout_s: float = 10.0) -> None:
    """Give bundles back and wait, within bounds, until the cluster shows them as free; say so where it does
    not."""
    if not groups or not ray.is_initialized():
        return
    try:
        unsettled = _settle(groups)
        reported = all(still_reserved(group) for group in groups)
    finally:
        for group in groups:
            remove_placement_group(group)
    # Nodes report every tenth of a second. A group younger than that may yet show up before it goes.
    shown = time.monotonic() + (0.0 if reported else _SHOWN_AFTER_S)
    deadline = time.monotonic() + timeout_s
    while (held := [group for group in groups if still_reserved(group)]) or time.monotonic() < shown:
        if time.monotonic() >= deadline:
            break
        time.sleep(0.02)
    for group in {*unsettled, *held}:
        logger.warning(
            "placement group %s was removed, but Ray may keep what it held, %s, until the cluster ends; "
            "`ray status` shows what is taken",
            group.id.hex(),
            group.bundle_specs,
        )


def _settle(groups: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    """Wait until Ray has made or refused each group, and return those where it has not in time.

    Ray loses track of what is removed while a node prepares it, and those resources stay taken for good.
    """
    looks: dict[PlacementGroup, PlacementProgress | None] = dict.fromkeys(groups)
    deadline = time.monotonic() + _SETTLE_WITHIN_S
    while True:
        for group, earlier in list(looks.items()):
            looks[group] = now = placement_progress(group)
            if now.settled(earlier):
                del looks[group]
        if not looks or time.monotonic() >= deadline:
            return list(looks)
        time.sleep(_BETWEEN_LOOKS_S)


def sort_placement_group_by_node_ip(pgs: Sequence[PlacementGroup]) -> list[PlacementGroup]:
    """Sort placed groups by the address of their first node: IPv4 by number, IPv6, host names, node ids."""
    addresses = node_addresses()

    def first_node(group: PlacementGroup) -> tuple[object, ...]:
        return min(node_order_key(addresses.get(node, ""), node) for node in bundle_node_ids(group))

    return sorted(pgs, key=first_node)
