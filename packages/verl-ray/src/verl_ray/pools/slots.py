"""Slots: the places of a reservation that a pool offers to the workers of its groups."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from verl_ray.pools.cluster import bundle_node_ids, node_addresses
from verl_ray.pools.devices import Accelerator, worker_demand
from verl_ray.pools.ordering import order_bundles
from verl_ray.pools.shares import SlotKey

_log = logging.getLogger("verl_ray")

_PROBE_TIMEOUT_S = 60.0
# The smallest amount that Ray knows.
_SLIVER = 0.0001


@dataclass(frozen=True)
class Slot:
    """A place for one worker of each group on the pool: a bundle and the node it is on."""

    placement_group: PlacementGroup
    bundle_index: int
    node_id: str
    node_ip: str

    @property
    def key(self) -> SlotKey:
        """What makes the slot unique in the cluster."""
        return self.placement_group.id.hex(), self.bundle_index

    @property
    def capacity(self) -> Mapping[str, float]:
        """The resources of its bundle."""
        capacity: Mapping[str, float] = self.placement_group.bundle_specs[self.bundle_index]
        return capacity

    @property
    def node_key(self) -> tuple[str, str]:
        """What stands for the node when local ranks are counted: each entry of `process_on_nodes` is one."""
        return self.placement_group.id.hex(), self.node_id


def slots_of_groups(
    groups: Mapping[PlacementGroup, int], devices: Mapping[SlotKey, Sequence[str]] | None = None
) -> tuple[Slot, ...]:
    """The slots of placed groups, which come in rank order; of each the first bundles, so many as are said.

    `devices` says which accelerators a bundle holds, by `Slot.key`; bundles of one node follow them.
    """
    addresses, devices = node_addresses(), devices or {}
    slots: list[Slot] = []
    for group, size in groups.items():
        rows = [
            (node, addresses.get(node, ""), index, devices.get((group.id.hex(), index), ()))
            for index, node in enumerate(bundle_node_ids(group))
        ]
        slots += [Slot(group, index, node, address) for node, address, index, _ in order_bundles(rows)][:size]
    return tuple(slots)


# --- Which devices each bundle holds: only a process inside the bundle is told, so one is asked -----------


def _assigned_ids(resource: str, _: object) -> list[str]:
    assigned: Mapping[str, Sequence[Any]] = ray.get_runtime_context().get_accelerator_ids()
    return [str(each) for each in assigned.get(resource, ())]


def accelerator_ids_of_bundles(
    groups: Iterable[PlacementGroup], accelerator: Accelerator
) -> dict[SlotKey, list[str]]:
    """The device ids of bundles that share their node, by `(placement group id, bundle index)`.

    Empty where they do not matter (no node is shared, or Ray keeps no ids for the resource), and where a
    bundle does not say. Nodes are asked side by side, the bundles of a node in turn, so that one process
    serves them all.
    """
    bundles = [(group, *each) for group in groups for each in enumerate(bundle_node_ids(group))]
    on_node = Counter((group, node) for group, _, node in bundles)
    shared = [each for each in bundles if on_node[each[0], each[2]] > 1]
    if accelerator.mask is None or not accelerator.fractional or not shared:
        return {}
    # max_calls=0 lets the process live on for the next bundle; Ray's default for GPU tasks ends it.
    probe: Any = ray.remote(max_calls=0)(_assigned_ids)
    options = worker_demand(0, accelerator, _SLIVER)
    answers: dict[SlotKey, Any] = {}
    before: dict[Any, Any] = {}
    for group, index, node in shared:
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        asked = probe.options(**options, scheduling_strategy=place, max_retries=0)
        # Each waits for the one before it, whose answer it gets.
        answer = asked.remote(accelerator.resource, before.get((group, node)))
        answers[group.id.hex(), index] = before[group, node] = answer
    try:
        return dict(zip(answers, ray.get(list(answers.values()), timeout=_PROBE_TIMEOUT_S), strict=True))
    except RayError as error:
        for answer in answers.values():
            ray.cancel(answer, force=True)
        _log.warning(
            "not every bundle said which %s it holds (%s); indices stand in", accelerator.resource, error
        )
        return {}
