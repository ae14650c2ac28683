"""Slots that a pool reserves itself at the first use, mends when a node is lost, and frees."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ray.util.placement_group import PlacementGroup

from verl_ray.accelerator_ids import accelerator_ids_of_bundles
from verl_ray.cluster import connection, ensure_ray_started, offered_resources
from verl_ray.defaults import is_unsaid
from verl_ray.errors import PoolAlreadyPlaced, PoolClosed
from verl_ray.placement import place, release
from verl_ray.pool_spec import InvalidPoolArgument, PoolSpec
from verl_ray.shares import LEDGER
from verl_ray.slot_sources import (
    DEFAULT_ASK,
    PlacementArgument,
    PlacementAsk,
    SlotSource,
    await_new_places,
)
from verl_ray.slots import Slot, node_sizes, rank_order_of_groups, slots_of_groups

__all__ = ["OwnedSlots"]


class OwnedSlots(SlotSource):
    """Slots in placement groups that this source reserves at the first use and frees."""

    def __init__(self, pool: str, spec: PoolSpec, sizes: Sequence[int]) -> None:
        self._pool = pool
        self._spec = spec
        self._sizes = list(sizes)
        self._lock = threading.RLock()
        self._ask: PlacementAsk | None = None
        self._cluster: str | None = None
        self._groups: list[PlacementGroup] = []
        self._group_sizes: list[int] = []
        self._slots: tuple[Slot, ...] | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None
        self._closed = False

    @property
    def spec(self) -> PoolSpec:
        return self._spec

    @property
    def placed(self) -> bool:
        return self._ask is not None and not self._closed and self._cluster == connection()

    def sizes(self) -> list[int]:
        if not self.placed:
            return self.planned_sizes()
        return node_sizes(self._slots or slots_of_groups(self._groups, self._group_sizes))

    @property
    def closed(self) -> bool:
        return self._closed

    def planned_sizes(self) -> list[int]:
        return list(self._sizes)

    def add_node(self, size: int) -> None:
        """One more node, as long as nothing is reserved."""
        with self._lock:
            if self._ask is not None:
                raise PoolAlreadyPlaced(self._pool, self._sizes)
            self._sizes.append(size)

    def prepare(self, ask: PlacementAsk) -> None:
        with self._lock:
            if self._closed:
                raise PoolClosed(self._pool)
            if self._ask is None:
                self._reserve(ask)
            elif self._cluster != connection():
                raise PoolClosed(self._pool, "was reserved on a Ray cluster that this process has left")
            else:
                self._check_same(ask, self._ask)

    def _reserve(self, ask: PlacementAsk) -> None:
        if not self._sizes:
            raise InvalidPoolArgument("process_on_nodes", self._sizes, "one node at least; see add_node")
        ensure_ray_started()
        spec = replace(self._spec, accelerator=self._spec.accelerator_on(ask.device_name))
        if spec.topology_strategy and is_unsaid(ask.strategy):
            ask = replace(ask, strategy="PACK")
        requests = spec.requests(self._sizes, ask.strategy, ask.name, self._pool, offered_resources())
        placed = place(requests, spec.patience)
        order = rank_order_of_groups(placed, spec.group_sizes(self._sizes))
        self._groups = [placed[index] for index in order]
        self._group_sizes = [requests[index].size for index in order]
        self._spec, self._ask, self._cluster = spec, ask, connection()
        if not spec.detached:
            self._finalizer = weakref.finalize(self, _release_later, list(self._groups))
            self._finalizer.atexit = False

    def _check_same(self, ask: PlacementAsk, used: PlacementAsk) -> None:
        if not is_unsaid(ask.strategy) and ask.strategy != used.strategy:
            raise PlacementArgument(self._pool, "strategy", ask.strategy, used.strategy)
        if ask.name is not None and ask.name != used.name:
            raise PlacementArgument(self._pool, "name", ask.name, used.name)
        accelerator = self._spec.accelerator_on(ask.device_name)
        if accelerator != self._spec.accelerator:
            raise PlacementArgument(self._pool, "accelerator", accelerator, self._spec.accelerator)

    def groups(self) -> list[PlacementGroup]:
        # Their order does not depend on devices, so nobody is asked for these.
        with self._lock:
            self.prepare(DEFAULT_ASK)
            return list(self._groups)

    def slots(self) -> tuple[Slot, ...]:
        with self._lock:
            self.prepare(DEFAULT_ASK)
            if self._slots is None:
                accelerator = self._spec.known_accelerator()
                devices = accelerator_ids_of_bundles(self._groups, accelerator) if accelerator else {}
                self._slots = slots_of_groups(self._groups, self._group_sizes, devices)
            return self._slots

    def mend(self) -> None:
        with self._lock:
            if not self.lost_nodes():
                return
            if self._is_ours_alone():
                self._reserve_anew()
            else:
                self._await_new_places()

    def _is_ours_alone(self) -> bool:
        """Whether nobody uses a placement group: no group of workers, no holder of the raw groups."""
        kept = self._finalizer is None or not self._finalizer.alive
        return not kept and not LEDGER.owners(slot.key for slot in self.slots())

    def _reserve_anew(self) -> None:
        """All slots at once, so that what is left of the cluster is used as well as it can be, or none."""
        ask, groups = self._ask, self._groups
        self.keep_when_dropped()
        self._ask, self._groups, self._slots, self._finalizer = None, [], None, None
        release(groups)
        self.prepare(ask or DEFAULT_ASK)

    def _await_new_places(self) -> None:
        """Ray moves the groups that lost a node; the ranks keep their placement groups, others live there."""
        await_new_places(self._pool, self._groups, self._spec.patience)
        self._slots = None

    def keep_when_dropped(self) -> None:
        if self._finalizer is not None:
            self._finalizer.detach()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self.keep_when_dropped()
            groups, self._groups = self._groups, []
            here = self._cluster == connection()
        if here:
            release(groups)


def _release_later(groups: list[PlacementGroup]) -> None:
    # A garbage collection may strike inside Ray itself, where a blocking call would never return.
    threading.Thread(target=release, args=(groups,), name="verl-ray-release", daemon=True).start()
