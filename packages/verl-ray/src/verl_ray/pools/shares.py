"""Who uses which slot: the count behind `max_colocate_count`, kept per slot for the whole process.

Split, merged and adopted pools look at the same slots, so the count belongs to the slot, not to a pool.
Amounts are counted as Ray does, so that n shares of 1/n fit for every n.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any
from weakref import WeakValueDictionary

from verl_ray.errors import PoolFull, ResourceUnavailable

SlotKey = tuple[str, int]
"""A placement group's id and the number of a bundle in it: unique in the cluster."""

Resources = Mapping[str, float]
"""How much of which resource."""

UNIT = 10_000
"""Ray counts a resource in so many parts of one, as floats would not add up; so does all here."""


def units(amount: float) -> int:
    """The amount in Ray's ten-thousandths."""
    return round(amount * UNIT)


def share_of(amount: float, shares: int) -> float:
    """The largest amount, in Ray's ten-thousandths, of which `shares` fit into `amount`.

    >>> share_of(1, 6), share_of(1, 1)
    (0.1666, 1.0)
    """
    return units(amount) // shares / UNIT


def demand_of_options(options: Mapping[str, Any]) -> dict[str, float]:
    """The resources that an actor with these Ray options takes.

    >>> demand_of_options({"num_cpus": 1, "num_gpus": 0.5, "resources": {"NPU": 1}})
    {'CPU': 1, 'GPU': 0.5, 'NPU': 1}
    """
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus")}
    return {name: amount for name, amount in named.items() if amount} | dict(options.get("resources") or {})


class Share(AbstractContextManager["Share"]):
    """A group's place on slots of a pool, until `release()`, the end of its block or of its own life.

    Attributes:
        owner: the group's name.
        slots: those that each have one worker of it.
        demand: what each worker takes.
        released: whether the place was given back.
    """

    def __init__(self, owner: str, slots: Iterable[SlotKey], demand: Resources) -> None:
        self.owner: str = owner
        self.slots: frozenset[SlotKey] = frozenset(slots)
        self.demand: Resources = demand
        self.released: bool = False

    def release(self) -> None:
        """Give the place back. Safe to call twice."""
        self.released = True

    def __exit__(self, *exc_info: object) -> None:
        self.release()


class ShareLedger:
    """Knows the shares that are taken, by looking at those that are alive. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shares: WeakValueDictionary[int, Share] = WeakValueDictionary()
        self._tickets = itertools.count()

    def take(
        self, pool: str, owner: str, slots: Mapping[SlotKey, Resources], demand: Resources, limit: int
    ) -> Share:
        """A share of all slots for a group, or of none.

        Args:
            slots: what each slot has, in rank order.
            demand: what each worker takes.

        Raises:
            PoolFull: a slot has `limit` holders already.
            ResourceUnavailable: a slot has less left than its worker asks.
        """
        share = Share(owner, slots, demand)
        with self._lock:
            near = self._holders(slots)
            for rank, (slot, capacity) in enumerate(slots.items()):
                holders = [each for each in near if slot in each.slots]
                if len(holders) >= limit:
                    raise PoolFull(pool, len(holders), limit, [each.owner for each in holders])
                _check_room(rank, capacity, holders, demand)
            self._shares[next(self._tickets)] = share
        return share

    def owners(self, slots: Iterable[SlotKey]) -> list[str]:
        """The groups that hold any of the slots, each once."""
        with self._lock:
            return list(dict.fromkeys(each.owner for each in self._holders(slots)))

    def _holders(self, slots: Iterable[SlotKey]) -> list[Share]:
        wanted = set(slots)
        return [
            each for each in self._shares.values() if not (each.released or each.slots.isdisjoint(wanted))
        ]


def _check_room(rank: int, capacity: Resources, holders: Iterable[Share], demand: Resources) -> None:
    for resource, asked in demand.items():
        total = capacity.get(resource, 0)
        used = sum(units(each.demand.get(resource, 0)) for each in holders)
        if used + units(asked) > units(total):
            raise ResourceUnavailable(
                f"the worker of rank {rank} asks {resource} {asked:g}, its slot has "
                f"{total - used / UNIT:g} of {total:g} left. Ask for less {resource} in the options of "
                "RayClassWithInitArgs, or make the pool with larger bundles (max_colocate_count, "
                "cpus_per_worker)"
            )


LEDGER = ShareLedger()
"""The count of this process."""
