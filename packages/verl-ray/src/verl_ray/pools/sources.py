"""Where the slots of a pool come from, and who may free them; those that a pool reserves itself are in
`owned_slots`."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.util.placement_group import PlacementGroup

from verl_ray.errors import MadeOfFacts, PoolAlreadyPlaced, PoolClosed
from verl_ray.pools.cluster import alive_node_ids, connection, ensure_ray_started, offered_resources
from verl_ray.pools.placement import Patience, await_placement, place, release
from verl_ray.pools.shares import LEDGER
from verl_ray.pools.slots import (
    Slot,
    accelerator_ids_of_bundles,
    node_sizes,
    rank_order_of_groups,
    relocated,
    slots_of_groups,
)
from verl_ray.pools.spec import InvalidPoolArgument, PoolSpec, UnsaidStr, is_unsaid

__all__ = [
    "DEFAULT_ASK",
    "BorrowedSlots",
    "FixedSlots",
    "OwnedSlots",
    "Part",
    "PlacementArgument",
    "PlacementAsk",
    "SlotSource",
    "await_new_places",
]


class PlacementArgument(MadeOfFacts, ValueError):
    """The pool is placed, and not the way that this call asks for."""

    def __init__(self, pool: str, argument: str, given: object, used: object) -> None:
        self.facts = (pool, argument, given, used)
        self.pool, self.argument, self.given, self.used = pool, argument, given, used
        super().__init__(
            f"pool {pool!r} is already created with {argument} {used}, it cannot be had with {given}; "
            "ask at the first use, or make another pool"
        )


@dataclass(frozen=True)
class PlacementAsk:
    """How a pool is to be placed; parts that the caller left out are `Unsaid*` values or None."""

    strategy: str
    name: str | None
    device_name: str


DEFAULT_ASK = PlacementAsk(UnsaidStr("STRICT_PACK"), None, UnsaidStr("cuda"))


class SlotSource(ABC):
    """A supply of slots under one `PoolSpec`."""

    @property
    @abstractmethod
    def spec(self) -> PoolSpec:
        """What the slots have in common."""

    @property
    @abstractmethod
    def placed(self) -> bool:
        """Whether the slots are reserved."""

    @property
    @abstractmethod
    def closed(self) -> bool:
        """Whether the slots are gone."""

    @abstractmethod
    def planned_sizes(self) -> list[int]:
        """Slots per node as they were asked for."""

    @abstractmethod
    def prepare(self, ask: PlacementAsk) -> None:
        """Reserve the slots as asked, or raise if they are reserved in another way."""

    def groups(self) -> list[PlacementGroup]:
        """The placement groups of the slots, in rank order, reserved first where they are not yet."""
        return list(dict.fromkeys(slot.placement_group for slot in self.slots()))

    @abstractmethod
    def slots(self) -> tuple[Slot, ...]:
        """The slots in rank order, reserved first where they are not yet."""

    def lost_nodes(self) -> tuple[str, ...]:
        """Ids of nodes that held slots and are gone, sorted; none where nothing is reserved."""
        if not self.placed:
            return ()
        return tuple(sorted({slot.node_id for slot in self.slots()} - alive_node_ids()))

    @abstractmethod
    def mend(self) -> None:
        """Find new places for the slots of lost nodes; a look at the cluster where there are none.

        Raises: as `prepare`.
        """

    @abstractmethod
    def keep_when_dropped(self) -> None:
        """The raw placement groups are in the user's hands: garbage collection must not free them."""

    @abstractmethod
    def close(self) -> None:
        """End this source, and free what it owns. Safe to call twice."""

    def sizes(self) -> list[int]:
        """Slots per node, in rank order."""
        return node_sizes(self.slots()) if self.placed else self.planned_sizes()


def await_new_places(pool: str, groups: Sequence[PlacementGroup], patience: Patience) -> None:
    """Wait until Ray has moved the groups of this pool that lost a node.

    Raises:
        PlacementTimeout: there was no room in time.
        PoolClosed: somebody removed a group.
    """
    try:
        await_placement(groups, patience)
    except LookupError:
        raise PoolClosed(pool, "lost a node, and its placement groups were removed") from None


class FixedSlots(SlotSource):
    """Slots that somebody else reserved and will free."""

    def __init__(self, pool: str, spec: PoolSpec, slots: tuple[Slot, ...]) -> None:
        self._pool = pool
        self._spec = spec
        self._slots = slots
        self._closed = False

    @property
    def spec(self) -> PoolSpec:
        return self._spec

    @property
    def placed(self) -> bool:
        return not self._closed

    @property
    def closed(self) -> bool:
        return self._closed

    def planned_sizes(self) -> list[int]:
        return node_sizes(self._slots)

    def prepare(self, ask: PlacementAsk) -> None:
        if self._closed:
            raise PoolClosed(self._pool)
        if ask.name is not None:
            raise PlacementArgument(self._pool, "name", ask.name, "the names that their owner chose")

    def slots(self) -> tuple[Slot, ...]:
        self.prepare(DEFAULT_ASK)
        return self._slots

    def mend(self) -> None:
        if not self.lost_nodes():
            return
        # Ray looks for new places by itself; whose groups these are is none of our business.
        await_new_places(self._pool, self.groups(), self._spec.patience)
        self._slots = relocated(self._slots)

    def keep_when_dropped(self) -> None:
        """Nothing to keep: these groups are freed by their owner alone."""

    def close(self) -> None:
        self._closed = True


@dataclass(frozen=True)
class Part:
    """A run of slots of another source."""

    source: SlotSource
    start: int
    stop: int


class BorrowedSlots(SlotSource):
    """Runs of slots of other sources, looked up when needed, never freed here."""

    def __init__(self, pool: str, parts: Sequence[Part]) -> None:
        self._pool = pool
        self._parts = tuple(parts)
        self._closed = False

    @property
    def spec(self) -> PoolSpec:
        return self._parts[0].source.spec

    @property
    def placed(self) -> bool:
        return not self.closed and all(part.source.placed for part in self._parts)

    @property
    def closed(self) -> bool:
        return self._closed or any(part.source.closed for part in self._parts)

    def planned_sizes(self) -> list[int]:
        return [size for part in self._parts for size in _cut(part.source.sizes(), part.start, part.stop)]

    def prepare(self, ask: PlacementAsk) -> None:
        if self._closed:
            raise PoolClosed(self._pool)
        for part in self._parts:
            part.source.prepare(ask)

    def slots(self) -> tuple[Slot, ...]:
        self.prepare(DEFAULT_ASK)
        slots = [slot for part in self._parts for slot in part.source.slots()[part.start : part.stop]]
        first_seen = {slot.node_key: place for place, slot in reversed(list(enumerate(slots)))}
        # Parts may come from one placement group with others between; ranks stay contiguous per node.
        return tuple(sorted(slots, key=lambda slot: first_seen[slot.node_key]))

    def mend(self) -> None:
        if self.lost_nodes():
            for part in self._parts:
                part.source.mend()

    def keep_when_dropped(self) -> None:
        for part in self._parts:
            part.source.keep_when_dropped()

    def close(self) -> None:
        self._closed = True


def _cut(sizes: Sequence[int], start: int, stop: int) -> list[int]:
    """The part of a run of nodes that lies between two slot numbers.

    >>> _cut([2, 1], 1, 3)
    [1, 1]
    """
    cut, first = [], 0
    for size in sizes:
        overlap = min(stop, first + size) - max(start, first)
        if overlap > 0:
            cut.append(overlap)
        first += size
    return cut


# --- Slots that a pool reserves itself at the first use, mends when a node is lost, and frees -------------


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
