"""Where the slots of a pool come from, and who may free them; those that a pool reserves itself are in
`owned_slots`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from ray.util.placement_group import PlacementGroup

from verl_ray.cluster import alive_node_ids
from verl_ray.defaults import UnsaidStr
from verl_ray.errors import MadeOfFacts, PoolClosed
from verl_ray.placement import Patience, await_placement
from verl_ray.pool_spec import PoolSpec
from verl_ray.slots import Slot, node_sizes, relocated

__all__ = [
    "DEFAULT_ASK",
    "BorrowedSlots",
    "FixedSlots",
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
