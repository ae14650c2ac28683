"""Every error of this package: a class where a caller can react, a message where not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from verl_dispatch.errors import CallTimeout, WorkerFailure, WorkerGroupError
from verl_dispatch.errors import NotTheOwnerError as NotTheOwnerError
from verl_protocol.errors import InvalidValueError, PortableError

NOTHING_LEFT = "Nothing stays reserved"


class ResourceUnavailable(PortableError, RuntimeError):
    """The cluster or the pool cannot give what was asked for."""


def unusable(argument: str, given: object, expected: str) -> InvalidValueError:
    """The error about an argument whose value cannot be honoured."""
    return InvalidValueError(f"{argument} is {given!r}, expected {expected}")


def out_of_reach(receiver: str, transport: str) -> InvalidValueError:
    """The error about a result that stays in its worker's memory, handed to who cannot get it from there."""
    return InvalidValueError(
        f"{receiver} got a result that its worker keeps for tensor_transport={transport!r}, and has no "
        "connection to that worker; hand it to a method of the group that made it, or call the method "
        "that makes it with .options(blocking=True), so that the result travels through the object store"
    )


class PlacementTimeout(ResourceUnavailable):
    """The bundles could not be reserved in time; `report` says what each node lacks."""

    def __init__(self, request: str, waited_s: float, report: str, left: str = NOTHING_LEFT) -> None:
        self.request: str = request
        self.waited_s: float = waited_s
        self.report: str = report
        super().__init__(
            f"could not reserve {request} within {waited_s:.0f} s; {report}. {left}. "
            "Ask for less (process_on_nodes, cpus_per_worker; leave max_colocate_count out, and all groups "
            "on a slot share its CPUs), shut down other pools, add nodes, or allow more time "
            "with timeout_s="
        )


class AcceleratorNotOffered(ResourceUnavailable, ValueError):
    """No node of the cluster has the accelerator at all."""

    def __init__(self, accelerator: str, offered: Iterable[str], waited_s: float) -> None:
        self.accelerator: str = accelerator
        self.offered: tuple[str, ...] = tuple(offered)
        self.waited_s: float = waited_s
        known = ", ".join(self.offered) or "none"
        parameter = "accelerator_type" if accelerator.startswith("accelerator_type:") else "accelerator"
        others = [name for name in self.offered if name != "CPU"]
        first = f"Name one of these with {parameter}= ({', '.join(others)}), use" if others else "Use"
        super().__init__(
            f"no node offers {accelerator!r} (waited {waited_s:.0f} s); the cluster offers: {known}. "
            f"{first} use_gpu=False for a CPU pool, or add such a node"
        )


class NameTakenError(PortableError, ValueError):
    """A placement group, or a worker of another group, has the name already that is asked for."""


class PoolFull(ResourceUnavailable):
    """Every share of a slot is taken by a group."""

    def __init__(self, pool: str, taken: int, limit: int, owners: Sequence[str]) -> None:
        self.pool: str = pool
        self.owners: tuple[str, ...] = tuple(owners)
        super().__init__(
            f"pool {pool!r} is full: {taken} of {limit} shares are taken by {', '.join(self.owners)}. "
            "Shut one of these groups down, or make the pool with a larger max_colocate_count"
        )


class PoolClosed(PortableError, RuntimeError):
    """The slots of the pool are gone."""

    def __init__(self, pool: str, why: str = "was shut down") -> None:
        super().__init__(f"pool {pool!r} {why}; make a new one")


class PoolAlreadyPlaced(PortableError, RuntimeError):
    """The pool holds its bundles already, so its shape is fixed."""

    def __init__(self, pool: str, store: Sequence[int]) -> None:
        super().__init__(
            f"pool {pool!r} is already placed as {list(store)}; add nodes before the first use, "
            "or make a second pool and merge_resource_pool the two"
        )


# --- Groups -----------------------------------------------------------------------------------------------


class TransportRefusedError(PortableError, NotImplementedError):
    """A method asks for a direct transport of its result that Ray cannot offer to this group."""

    def __init__(self, method: str, transport: str, problem: str, advice: str) -> None:
        super().__init__(
            f"method {method!r} asks for tensor_transport={transport!r}, but {problem}; {advice}, or leave "
            "tensor_transport out: results then travel through the object store"
        )


class AttachError(PortableError, ValueError):
    """The workers named do not form a group that can be attached to."""

    def __init__(self, problem: str, advice: str) -> None:
        super().__init__(f"cannot attach: {problem}; {advice}")


class StartTimeout(CallTimeout):
    """The workers did not all start in time."""

    def __init__(
        self, group: str, timeout_s: float, unanswered_ranks: Sequence[int], way_out: str = ""
    ) -> None:
        super().__init__(group, "__init__", timeout_s, unanswered_ranks)
        ranks = ", ".join(map(str, self.unanswered_ranks))
        way = way_out or "look at their logs, or allow more time with ray_wait_register_center_timeout="
        self.args: tuple[str] = (
            f"group {group!r}: the workers of ranks {ranks} did not start within {timeout_s:g} s (process, "
            f"imports and constructor together); {way}",
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
        self.nodes: tuple[str, ...] = tuple(nodes)
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
    """What an earlier generation of the workers made, or was making, handed on or asked for."""
