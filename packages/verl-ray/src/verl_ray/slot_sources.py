"""Where the slots of a pool come from, and who may free them."""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ray.util.placement_group import PlacementGroup

from verl_ray.accelerator_ids import accelerator_ids_of_bundles
from verl_ray.cluster import alive_nodes, connection, ensure_ray_started
from verl_ray.defaults import UnsaidStr, is_unsaid
from verl_ray.errors import MadeOfFacts, PoolAlreadyPlaced, PoolClosed
from verl_ray.placement import place, release
from verl_ray.pool_spec import PoolSpec
from verl_ray.slots import Slot, node_sizes, rank_order_of_groups, slots_of_groups

__all__ = [
    "DEFAULT_ASK",
    "BorrowedSlots",
    "FixedSlots",
    "OwnedSlots",
    "Part",
    "PlacementArgument",
    "PlacementAsk",
    "SlotSource",
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

    @abstractmethod
    def keep_when_dropped(self) -> None:
        """The raw placement groups are in the user's hands: garbage collection must not free them."""

    @abstractmethod
    def close(self) -> None:
        """End this source, and free what it owns. Safe to call twice."""

    def sizes(self) -> list[int]:
        """Slots per node, in rank order."""
        return node_sizes(self.slots()) if self.placed else self.planned_sizes()


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
        ensure_ray_started()
        spec = replace(self._spec, accelerator=self._spec.accelerator_on(ask.device_name))
        if spec.topology_strategy and is_unsaid(ask.strategy):
            ask = replace(ask, strategy="PACK")
        offered = sorted({name for node in alive_nodes() for name in node.total})
        requests = spec.requests(self._sizes, ask.strategy, ask.name, self._pool, offered)
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
