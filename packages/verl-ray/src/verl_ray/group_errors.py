"""What can go wrong with a group as such: one class per cause, each says the way out."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from verl_dispatch.errors import CallTimeout, WorkerFailure, WorkerGroupError

__all__ = [
    "AttachError",
    "DetachedGroupError",
    "NodeLost",
    "NotTheOwnerError",
    "OutOfReachError",
    "RestartsRefusedError",
    "StaleFutureError",
    "StaleReferenceError",
    "StartTimeout",
    "TransportRefusedError",
    "UnknownKeywordError",
    "UnknownRolesError",
    "UnsupportedOptionError",
    "WorkerNameTaken",
]


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


class UnknownRolesError(_Remade, KeyError):
    """Roles that the group's workers do not hold."""

    def __init__(self, asked: Iterable[str], known: Iterable[str]) -> None:
        self.facts = (tuple(sorted(asked)), tuple(known))
        self.asked, self.known = self.facts
        super().__init__(*self.facts)

    def __str__(self) -> str:
        missing = "no role " + ", ".join(map(repr, self.asked)) + " here"
        if not self.known:
            return (
                f"{missing}: the workers hold one class only; make the group from "
                "create_colocated_worker_cls or create_colocated_worker_cls_fused"
            )
        return f"{missing}; roles of this group: {', '.join(map(repr, self.known))}"


class NotTheOwnerError(_Remade, RuntimeError):
    """A group that did not start its workers is asked to end or restart them."""

    def __init__(self, group: str, action: str, reason: str) -> None:
        self.facts = (group, action, reason)
        super().__init__(f"group {group!r} refuses {action}(): {reason}")


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
