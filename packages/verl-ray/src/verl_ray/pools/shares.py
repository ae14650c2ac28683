"""Who uses which slot: the count behind `max_colocate_count`, kept per slot for the whole process.

Split, merged and adopted pools look at the same slots, so the count belongs to the slot, not to a pool.
Amounts are counted in ten-thousandths, as Ray does, so that n shares of 1/n fit for every n.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from verl_ray.errors import PoolFull, ResourceUnavailable

__all__ = ["LEDGER", "Claim", "Share", "ShareLedger", "demand_of_options", "share_of"]


SlotKey = tuple[str, int]

_UNIT = 10_000


def share_of(amount: float, shares: int) -> float:
    """The largest amount, in Ray's ten-thousandths, of which `shares` fit into `amount`.

    >>> share_of(1, 6), share_of(1, 1)
    (0.1666, 1.0)
    """
    return (round(amount * _UNIT) // shares) / _UNIT


def demand_of_options(options: Mapping[str, Any]) -> dict[str, float]:
    """The resources that an actor with these Ray options takes.

    >>> demand_of_options({"num_cpus": 1, "num_gpus": 0.5, "resources": {"NPU": 1}})
    {'CPU': 1, 'GPU': 0.5, 'NPU': 1}
    """
    named = {"CPU": options.get("num_cpus"), "GPU": options.get("num_gpus")}
    return {name: amount for name, amount in named.items() if amount} | dict(options.get("resources") or {})


@dataclass(frozen=True)
class Claim:
    """What one worker of a group asks of one slot."""

    rank: int
    slot: SlotKey
    capacity: Mapping[str, float]
    demand: Mapping[str, float]


@dataclass(frozen=True)
class _Holding:
    owner: str
    claim: Claim


class ShareLedger:
    """Counts the groups on every slot and what they take. Thread-safe."""

    def __init__(self) -> None:
        # Re-entrant: a garbage collection inside a locked region may give a dropped share back.
        self._lock = threading.RLock()
        self._holdings: dict[SlotKey, dict[int, _Holding]] = {}
        self._tickets = itertools.count()

    def take(self, pool: str, owner: str, claims: Sequence[Claim], limit: int) -> int:
        """Enter all claims of a group or none; returns the ticket to give back.

        Raises:
            PoolFull: a slot has `limit` holders already.
            ResourceUnavailable: a slot has less left than its worker asks.
        """
        with self._lock:
            for claim in claims:
                self._check(pool, claim, limit)
            ticket = next(self._tickets)
            for claim in claims:
                self._holdings.setdefault(claim.slot, {})[ticket] = _Holding(owner, claim)
            return ticket

    def _check(self, pool: str, claim: Claim, limit: int) -> None:
        holdings = list(self._holdings.get(claim.slot, {}).values())
        if len(holdings) >= limit:
            raise PoolFull(pool, len(holdings), limit, [holding.owner for holding in holdings])
        for resource, asked in claim.demand.items():
            total = claim.capacity.get(resource, 0)
            used = sum(round(h.claim.demand.get(resource, 0) * _UNIT) for h in holdings)
            if used + round(asked * _UNIT) > round(total * _UNIT):
                raise ResourceUnavailable(
                    f"the worker of rank {claim.rank} asks {resource} {asked:g}, its slot has "
                    f"{total - used / _UNIT:g} of {total:g} left. Ask for less {resource} in the options of "
                    "RayClassWithInitArgs, or make the pool with larger bundles (max_colocate_count, "
                    "cpus_per_worker)"
                )

    def give_back(self, ticket: int) -> None:
        """Forget the claims of a ticket; unknown tickets are fine."""
        with self._lock:
            for slot in [slot for slot, held in self._holdings.items() if ticket in held]:
                del self._holdings[slot][ticket]
                if not self._holdings[slot]:
                    del self._holdings[slot]

    def owners(self, slots: Iterable[SlotKey]) -> list[str]:
        """The groups that hold any of the slots, each once."""
        with self._lock:
            held = [holding.owner for slot in slots for holding in self._holdings.get(slot, {}).values()]
        return list(dict.fromkeys(held))


LEDGER = ShareLedger()
"""The count of this process."""


class Share:
    """A group's place on the slots of a pool, until `release()`, the end of its block or of its own life."""

    def __init__(self, ledger: ShareLedger, ticket: int, owner: str) -> None:
        self.owner = owner
        self._finalizer = weakref.finalize(self, ledger.give_back, ticket)
        self._finalizer.atexit = False

    @property
    def released(self) -> bool:
        """Whether the place was given back."""
        return not self._finalizer.alive

    def release(self) -> None:
        """Give the place back. Safe to call twice."""
        self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.release()
