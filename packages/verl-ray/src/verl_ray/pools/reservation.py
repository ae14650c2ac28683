"""A reservation: the placement groups whose bundles are the slots of a pool, and who may free them."""

from __future__ import annotations

import threading
import uuid
import weakref
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ray.util.placement_group import PlacementGroup
from verl_protocol.errors import InvalidValueError

from verl_ray.errors import PoolAlreadyPlaced, PoolClosed, unusable
from verl_ray.pools.cluster import alive_node_ids, ensure_ray_started, offered_resources, placement_progress
from verl_ray.pools.placement import await_placement, place, release
from verl_ray.pools.shares import LEDGER
from verl_ray.pools.slots import Slot, accelerator_ids_of_bundles, slots_of_groups
from verl_ray.pools.spec import PoolSpec
from verl_ray.wire.refs import connection, no_connection


class Reservation:
    """Slots of one spec: reserved at the first use, moved where a node is lost, freed at the end.

    Slots that somebody else reserved are used in the same way and never freed.

    Args:
        pool: name of the pool, for messages and for the placement groups.
        spec: what the slots have in common.
        sizes: slots per node.
    """

    def __init__(self, pool: str, spec: PoolSpec, sizes: Sequence[int]) -> None:
        self.pool: str = pool
        self.spec: PoolSpec = spec
        self.sizes: list[int] = list(sizes)
        self.closed: bool = False
        self._lock = threading.RLock()
        self._strategy: str | None = None
        self._name: str | None = None
        self._cluster: str | None = None
        self._groups: dict[PlacementGroup, int] = {}
        self._slots: tuple[Slot, ...] | None = None
        self._owned = False
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process may use the slots, never free them; its groups are counted there.
        slots = self.slots()
        return reserved_by_others, (self.pool, self.spec, self._groups, slots)

    @property
    def placed(self) -> bool:
        """Whether the slots are there."""
        return bool(self._groups) and not self.closed and self._cluster == connection()

    def add_node(self, size: int) -> None:
        """One more node with so many slots.

        Raises:
            PoolAlreadyPlaced: the slots are reserved.
        """
        with self._lock:
            if self._groups:
                raise PoolAlreadyPlaced(self.pool, self.sizes)
            self.sizes.append(size)

    # --- reserving -----------------------------------------------------------------------------------------

    def place(
        self, strategy: str | None = None, name: str | None = None, device_name: str | None = None
    ) -> None:
        """Reserve the slots in this way, unless they are reserved in this way already; None leaves it open.

        Raises:
            PoolClosed: they were freed, or this process has left their cluster.
            InvalidValueError: they are reserved in another way, or cannot be reserved in this one.
            PlacementTimeout: they could not be reserved in time.
        """
        with self._lock:
            if self.closed:
                raise PoolClosed(self.pool)
            if not self._groups:
                self._reserve(strategy, name, device_name)
            elif self._cluster != connection():
                raise PoolClosed(self.pool, f"cannot be used here: {no_connection()}")
            else:
                self._check_same(strategy, name, device_name)

    def _reserve(self, strategy: str | None, name: str | None, device_name: str | None) -> None:
        if not self.sizes:
            raise unusable("process_on_nodes", [], "one node at least; see add_node")
        ensure_ray_started()
        spec = replace(self.spec, accelerator=self.spec.accelerator_on(device_name))
        # After a failed try to move, the first ask still holds where this one says nothing.
        name = self._name if name is None else name
        need = spec.need(self.sizes, strategy or self._strategy, offered_resources())
        # Names get a unique ending, unless the user chose one: that gets the number only.
        base = (
            f"{self.pool}_{'_'.join(map(str, self.sizes))}_{uuid.uuid4().hex[:8]}:" if name is None else name
        )
        names = [f"{base}{number}" for number in range(len(need.spec))]
        groups = place(need, names, spec.timeout_s, detached=spec.detached)
        self.spec, self._strategy, self._name, self._cluster = spec, need.strategy, name, connection()
        self._groups, self._owned = groups, True
        if not spec.detached:
            self._finalizer = weakref.finalize(self, _release_later, list(groups))
            self._finalizer.atexit = False

    def _check_same(self, strategy: str | None, name: str | None, device_name: str | None) -> None:
        asks = [
            ("name", name, self._name),
            ("accelerator", self.spec.accelerator_on(device_name), self.spec.accelerator),
            ("strategy", strategy if self._owned else None, self._strategy),
        ]
        for what, asked, used in asks:
            if asked not in (None, used):
                raise InvalidValueError(
                    f"pool {self.pool!r} is already created with {what} {used}, it cannot be had with "
                    f"{asked}; ask at the first use, or make another pool"
                )

    def adopt(self, groups: Mapping[PlacementGroup, int], slots: tuple[Slot, ...] | None = None) -> None:
        """Use so many of the first bundles of each of these placement groups, which come in rank order."""
        with self._lock:
            self.sizes, self._owned = list(groups.values()), False
            self._groups, self._slots, self._cluster = dict(groups), slots, connection()

    # --- using ---------------------------------------------------------------------------------------------

    def slots(self) -> tuple[Slot, ...]:
        """The slots in rank order, reserved first where they are not yet."""
        with self._lock:
            self.place()
            if self._slots is None:
                accelerator = self.spec.known_accelerator()
                devices = accelerator_ids_of_bundles(self._groups, accelerator) if accelerator else {}
                self._slots = slots_of_groups(self._groups, devices)
            return self._slots

    def raw_groups(self) -> list[PlacementGroup]:
        """The placement group of each slot, reserved first if need be; they are in the user's hands then."""
        # Their order does not depend on devices, so nobody is asked for these.
        with self._lock:
            self.place()
            self._keep_when_dropped()
            return [group for group, size in self._groups.items() for _ in range(size)]

    def node_keys(self) -> list[Hashable]:
        """What stands for the node of each slot, also before they are reserved."""
        if not self.placed:
            return [node for node, size in enumerate(self.sizes) for _ in range(size)]
        slots = self._slots or slots_of_groups(self._groups)
        return [slot.node_key for slot in slots]

    def check_there(self) -> None:
        """Refuse to wait for slots whose placement groups somebody else removed.

        Raises:
            PoolClosed: so it is.
        """
        if any(placement_progress(group).state == "REMOVED" for group in self._groups):
            raise PoolClosed(self.pool, "lost its placement groups, which somebody else removed")

    def move_from_lost_nodes(self) -> None:
        """Find new places for the slots of lost nodes; a look at the cluster where there are none.

        Raises: as `place`.
        """
        with self._lock:
            if not self.placed or {slot.node_id for slot in self.slots()} <= alive_node_ids():
                return
            groups = list(self._groups)
            in_hands = self._finalizer is None or not self._finalizer.alive
            if in_hands or LEDGER.owners(slot.key for slot in self.slots()):
                # Others live there: Ray moves the groups that lost a node, and the ranks keep theirs.
                await_placement(groups, self.spec.timeout_s)
                self.check_there()
                self._slots = None
                return
            # All slots at once, so that what is left of the cluster is used as well as it can be, or none.
            self._keep_when_dropped()
            self._groups, self._slots = {}, None
            release(groups)
            self._reserve(None, None, None)

    # --- ending --------------------------------------------------------------------------------------------

    def _keep_when_dropped(self) -> None:
        """Garbage collection must not free the placement groups, or not any more."""
        if self._finalizer is not None:
            self._finalizer.detach()

    def close(self) -> None:
        """End the reservation, and free what was reserved here. Safe to call twice."""
        with self._lock:
            self.closed = True
            self._keep_when_dropped()
            groups, self._groups = list(self._groups), {}
            here = self._owned and self._cluster == connection()
        if here:
            release(groups)


def reserved_by_others(
    pool: str, spec: PoolSpec, groups: Mapping[PlacementGroup, int], slots: tuple[Slot, ...] | None = None
) -> Reservation:
    """Slots that somebody else reserved; see `Reservation.adopt`."""
    made = Reservation(pool, spec, [])
    made.adopt(groups, slots)
    return made


def _release_later(groups: list[PlacementGroup]) -> None:
    # A garbage collection may strike inside Ray itself, where a blocking call would never return.
    threading.Thread(target=release, args=(groups,), name="verl-ray-release", daemon=True).start()
