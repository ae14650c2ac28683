"""Which devices each bundle holds: only a process inside the bundle is told, so one is asked."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from verl_ray.cluster import bundle_node_ids
from verl_ray.devices import Accelerator, worker_demand

__all__ = ["accelerator_ids_of_bundles"]

logger = logging.getLogger("verl_ray")

_PROBE_TIMEOUT_S = 60.0
# The smallest amount that Ray knows.
_SLIVER = 0.0001

SlotKey = tuple[str, int]


def _assigned_ids(resource: str) -> list[str]:
    assigned: Mapping[str, Sequence[Any]] = ray.get_runtime_context().get_accelerator_ids()
    return [str(each) for each in assigned.get(resource, ())]


def accelerator_ids_of_bundles(
    groups: Sequence[PlacementGroup], accelerator: Accelerator
) -> dict[SlotKey, list[str]]:
    """The device ids of every bundle, by `(placement group id, bundle index)`.

    Empty where they do not matter: one bundle per node, or a resource that Ray keeps no ids for.
    Nodes are asked side by side, the bundles of a node in turn, so that one process serves them all.
    """
    chains = [chain for group in groups for chain in _bundles_per_node(group) if len(chain) > 1]
    if accelerator.mask is None or not accelerator.fractional or not chains:
        return {}
    with ThreadPoolExecutor(max_workers=min(len(chains), 32)) as pool:
        answers = pool.map(lambda chain: _ask_chain(chain, accelerator.resource), chains)
        return {key: ids for answer in answers for key, ids in answer.items()}


def _bundles_per_node(group: PlacementGroup) -> list[list[tuple[PlacementGroup, int]]]:
    per_node: dict[str, list[tuple[PlacementGroup, int]]] = {}
    for index, node in enumerate(bundle_node_ids(group)):
        per_node.setdefault(node, []).append((group, index))
    return list(per_node.values())


def _ask_chain(chain: Sequence[tuple[PlacementGroup, int]], resource: str) -> dict[SlotKey, list[str]]:
    answers: dict[SlotKey, list[str]] = {}
    for group, index in chain:
        ids = _ask_bundle(group, index, resource)
        if ids is None:
            return {}
        answers[group.id.hex(), index] = ids
    return answers


def _ask_bundle(group: PlacementGroup, index: int, resource: str) -> list[str] | None:
    # max_calls=0 lets the process live on for the next bundle; Ray's default for GPU tasks ends it.
    probe: Any = ray.remote(max_calls=0)(_assigned_ids)
    options = worker_demand(0, Accelerator(resource), _SLIVER)
    place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
    answer = probe.options(**options, scheduling_strategy=place, max_retries=0).remote(resource)
    try:
        ids: list[str] = ray.get(answer, timeout=_PROBE_TIMEOUT_S)
    except ray.exceptions.RayError as error:
        ray.cancel(answer, force=True)
        logger.warning(
            "bundle %d did not say which %s it holds (%s); its index stands in", index, resource, error
        )
        return None
    return ids
