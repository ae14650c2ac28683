"""What can go wrong with pools and placement: one class per cause, each says the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_dispatch.errors import CallTimeout, NotTheOwnerError, WorkerFailure, WorkerGroupError
from verl_protocol.errors import PortableError

__all__ = [
    "NOTHING_LEFT",
    "AcceleratorNotOffered",
    "AttachError",
    "DetachedGroupError",
    "MadeOfFacts",
    "NodeLost",
    "NotTheOwnerError",
    "OutOfReachError",
    "PlacementNameTaken",
    "PlacementTimeout",
    "PoolAlreadyPlaced",
    "PoolClosed",
    "PoolFull",
    "PortRangeExhausted",
    "ResourceUnavailable",
    "RestartsRefusedError",
    "SlotOverdrawn",
    "StaleFutureError",
    "StaleReferenceError",
    "StartTimeout",
    "TransportRefusedError",
    "UnknownKeywordError",
    "UnsupportedOptionError",
    "WorkerNameTaken",
]


NOTHING_LEFT = "Nothing stays reserved"


class ResourceUnavailable(RuntimeError):
    """The cluster or the pool cannot give what was asked for."""


class MadeOfFacts(PortableError):
    """An error whose constructor takes facts, keeps them, and builds the message."""

    facts: tuple[Any, ...]


class PlacementTimeout(MadeOfFacts, ResourceUnavailable):
    """The bundles could not be reserved in time; `report` says what each node lacks."""

    def __init__(self, request: str, waited_s: float, report: str, left: str = NOTHING_LEFT) -> None:
        self.facts = (request, waited_s, report, left)
        self.request, self.waited_s, self.report, _ = self.facts
        super().__init__(
            f"could not reserve {request} within {waited_s:.0f} s; {report}. {left}. "
            "Ask for less (process_on_nodes, cpus_per_worker; leave max_colocate_count out, and all groups "
            "on a slot share its CPUs), shut down other pools, add nodes, or allow more time "
            "with timeout_s="
        )


class AcceleratorNotOffered(MadeOfFacts, ResourceUnavailable, ValueError):
    """No node of the cluster has the accelerator at all."""

    def __init__(self, accelerator: str, offered: Iterable[str], waited_s: float) -> None:
        self.facts = (accelerator, tuple(offered), waited_s)
        self.accelerator, self.offered, self.waited_s = self.facts
        known = ", ".join(self.offered) or "none"
        super().__init__(
            f"no node offers {accelerator!r} (waited {waited_s:.0f} s); the cluster offers: {known}. "
            "Name one of these with accelerator=, use use_gpu=False for a CPU pool, or add such a node"
        )


class PlacementNameTaken(MadeOfFacts, ValueError):
    """A placement group of the exact name exists already."""

    def __init__(self, name: str, owner: str) -> None:
        self.facts = (name, owner)
        self.name, self.owner = self.facts
        super().__init__(
            f"a placement group named {name!r} already exists, owned by {owner}; choose another name, leave "
            f"name= out for a unique one, or use it: pool.pgs = [ray.util.get_placement_group({name!r})]"
        )


class PoolFull(MadeOfFacts, ResourceUnavailable):
    """Every share of a slot is taken by a group."""

    def __init__(self, pool: str, taken: int, limit: int, owners: Sequence[str]) -> None:
        self.facts = (pool, taken, limit, tuple(owners))
        self.pool, self.taken, self.limit, self.owners = self.facts
        super().__init__(
            f"pool {pool!r} is full: {taken} of {limit} shares are taken by {', '.join(self.owners)}. "
            "Shut one of these groups down, or make the pool with a larger max_colocate_count"
        )


class SlotOverdrawn(MadeOfFacts, ResourceUnavailable):
    """A group asks more of a slot than its bundle still has."""

    def __init__(self, rank: int, resource: str, asked: float, free: float, total: float) -> None:
        self.facts = (rank, resource, asked, free, total)
        self.rank, self.resource, self.asked, self.free, self.total = self.facts
        super().__init__(
            f"the worker of rank {rank} asks {resource} {asked:g}, its slot has {free:g} of {total:g} left. "
            f"Ask for less {resource} in the options of RayClassWithInitArgs, or make the pool with larger "
            "bundles (max_colocate_count, cpus_per_worker)"
        )


class PoolClosed(MadeOfFacts, RuntimeError):
    """The slots of the pool are gone."""

    def __init__(self, pool: str, why: str = "was shut down") -> None:
        self.facts = (pool, why)
        self.pool, self.why = self.facts
        super().__init__(f"pool {pool!r} {why}; make a new one")


class PoolAlreadyPlaced(MadeOfFacts, RuntimeError):
    """The pool holds its bundles already, so its shape is fixed."""

    def __init__(self, pool: str, store: Sequence[int]) -> None:
        self.facts = (pool, tuple(store))
        self.pool, self.store = self.facts
        super().__init__(
            f"pool {pool!r} is already placed as {list(store)}; add nodes before the first use, "
            "or make a second pool and merge_resource_pool the two"
        )


class PortRangeExhausted(MadeOfFacts, ResourceUnavailable):
    """Every port of the range is in use on the node."""

    def __init__(self, first: int, stop: int, host: str) -> None:
        self.facts = (first, stop, host)
        self.first, self.stop, self.host = self.facts
        super().__init__(
            f"no free port in master_port_range {first}-{stop} on {host}: another group or program "
            "holds each. Widen the range, shut a group down, or leave master_port_range out"
        )


# --- What can go wrong with a group as such: one class per cause, each says the way out -------------------


class _Remade(Exception):
    """Errors here take facts, not a message; this lets them cross a process border."""

    facts: tuple[Any, ...]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.facts


class UnknownKeywordError(_Remade, TypeError):
    """A keyword that the constructor does not have."""

    def __init__(self, name: str, known: Sequence[str]) -> None:
        self.facts = (name, tuple(known))
        self.name = name
        near = difflib.get_close_matches(name, known, n=1)
        maybe = f"; did you mean {near[0]!r}?" if near else ""
        super().__init__(
            f"RayWorkerGroup got an unexpected keyword argument {name!r}{maybe}; "
            f"known: {', '.join(sorted(known))}"
        )


class RestartsRefusedError(_Remade, ValueError):
    """Ray is asked to restart dead workers behind the group's back."""

    def __init__(self, cls: str, max_restarts: int) -> None:
        self.facts = (cls, max_restarts)
        super().__init__(
            f"max_restarts={max_restarts} for {cls}: a worker that Ray restarts comes back without its "
            "state, its meshes and its process group; leave max_restarts out and use group.restart(), which "
            "restarts all workers together"
        )


class TransportRefusedError(_Remade, NotImplementedError):
    """A method asks for a direct transport of its result that Ray cannot offer to this group."""

    def __init__(self, method: str, transport: str, problem: str, advice: str) -> None:
        self.facts = (method, transport, problem, advice)
        super().__init__(
            f"method {method!r} asks for tensor_transport={transport!r}, but {problem}; {advice}, or leave "
            "tensor_transport out: results then travel through the object store"
        )


class OutOfReachError(_Remade, ValueError):
    """A result that stays in its worker's memory is handed to somebody who cannot get it from there."""

    def __init__(self, receiver: str, transport: str) -> None:
        self.facts = (receiver, transport)
        super().__init__(
            f"{receiver} got a result that its worker keeps for tensor_transport={transport!r}, and has no "
            "connection to that worker; hand it to a method of the group that made it, or call the method "
            "that makes it with .options(blocking=True), so that the result travels through the object store"
        )


class UnsupportedOptionError(_Remade, ValueError):
    """An argument whose value cannot be honoured."""

    def __init__(self, argument: str, given: object, expected: str) -> None:
        self.facts = (argument, given, expected)
        super().__init__(f"{argument} is {given!r}, expected {expected}")


class DetachedGroupError(_Remade, ValueError):
    """Workers and their pool would not live equally long."""

    def __init__(self, group: str) -> None:
        self.facts = (group,)
        super().__init__(
            f"group {group!r}: detached workers need a detached pool, or Ray ends them with the pool; "
            "make the pool with RayResourcePool(..., detached=True)"
        )


class WorkerNameTaken(_Remade, ValueError):
    """A worker of another group has the name that a worker of this one would get."""

    def __init__(self, group: str, name: str) -> None:
        self.facts = (group, name)
        super().__init__(
            f"group {group!r} cannot start a worker named {name!r}: one of that name lives already; choose "
            "another name_prefix, attach to it with RayWorkerGroup.from_detached(worker_names=[...]), or end "
            "it with destroy_detached([...])"
        )


class AttachError(_Remade, ValueError):
    """The workers named do not form a group that can be attached to."""

    def __init__(self, problem: str, advice: str) -> None:
        self.facts = (problem, advice)
        super().__init__(f"cannot attach: {problem}; {advice}")


class StartTimeout(CallTimeout):
    """The workers did not all start in time."""

    def __init__(self, group: str, timeout_s: float, unanswered_ranks: Sequence[int]) -> None:
        super().__init__(group, "__init__", timeout_s, unanswered_ranks)
        ranks = ", ".join(map(str, self.unanswered_ranks))
        self.args = (
            f"group {group!r}: the workers of ranks {ranks} did not start within {timeout_s:g} s (process, "
            "imports and constructor together); look at their logs, or allow more time with "
            "ray_wait_register_center_timeout=",
        )


class NodeLost(WorkerGroupError):
    """Nodes on which the group has places are gone."""

    def __init__(
        self,
        group: str,
        method: str,
        nodes: Sequence[str],
        errors: Mapping[int, WorkerFailure] | None = None,
        unanswered_ranks: Sequence[int] = (),
    ) -> None:
        self.nodes = tuple(nodes)
        lost = ", ".join(node[:8] for node in self.nodes)
        super().__init__(
            group,
            method,
            errors,
            unanswered_ranks,
            reason=f"the cluster lost node {lost} while workers were to start there; another start, by "
            "restart() or with a new group, looks for other places",
        )


class StaleFutureError(WorkerGroupError):
    """A result that an earlier generation of the workers was making."""

    def __init__(self, group: str, method: str, made_in: int, now: int) -> None:
        super().__init__(
            group,
            method,
            reason=f"this future was made by generation {made_in} of the workers; the group was restarted "
            f"since (generation {now}), so its result is refused: call the method again",
        )


class StaleReferenceError(WorkerGroupError):
    """A reference to what an earlier generation of some group's workers was making."""

    def __init__(self, group: str, made_in: int) -> None:
        super().__init__(
            group,
            "restart",
            reason=f"an ObjectRef among the arguments was made by generation {made_in} of the workers; the "
            "group was restarted since, so it is refused: call the method again, or pass the value",
        )
