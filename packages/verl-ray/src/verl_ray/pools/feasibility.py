"""Can this pool be placed on these nodes? First fit over all resources, answered in words. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_ray.pools.shares import units

Nodes = Mapping[str, Mapping[str, float]]
"""Resources by node name."""

_NO_NODE = "there is no usable node"


@dataclass(frozen=True)
class Feasibility:
    """Whether the pool fits, and if not, what every node lacks. Advisory: the cluster may change."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Need:
    """What a pool asks for: processes of each placement group, and what all of them have in common."""

    spec: tuple[int, ...]
    per_process: Mapping[str, float]
    strategy: str = "STRICT_PACK"
    label_selector: Mapping[str, str] | None = None
    topology_strategy: Mapping[str, str] | None = None

    def of(self, processes: int) -> dict[str, float]:
        """The resources of so many processes."""
        return {name: round(amount * processes, 4) for name, amount in self.per_process.items()}

    def __str__(self) -> str:
        labels = f", on nodes with {dict(self.label_selector)}" if self.label_selector else ""
        total = _amounts(self.of(sum(self.spec)))
        return (
            f"processes {list(self.spec)} with {_amounts(self.per_process)} each ({total} in all), "
            f"{self.strategy}{labels}"
        )


def _amounts(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {amount:g}" for name, amount in resources.items())


def explain_feasibility(
    nodes: Nodes,
    spec: Sequence[int],
    cpu_per: float = 1,
    *,
    accelerator: str | None = "GPU",
    accelerator_per: float = 1,
    per_process: Mapping[str, float] | None = None,
    strategy: str = "STRICT_PACK",
) -> Feasibility:
    """Say whether `spec` (processes per node, in any order) fits on `nodes` (name to resources).

    Args:
        cpu_per: CPUs per process.
        accelerator: resource that each process needs besides, None for CPU pools.
        per_process: all resources of one process, in place of `cpu_per` and `accelerator`.

    >>> explain_feasibility({"n0": {"CPU": 5, "GPU": 8}}, [8], cpu_per=3).reason
    'no node has room for a group of 8 processes: n0 has CPU 5, needs 24'
    """
    if per_process is None:
        per_process = {"CPU": cpu_per} | ({accelerator: accelerator_per} if accelerator else {})
    return explain_need(nodes, Need(tuple(spec), per_process, strategy))


def explain_need(nodes: Nodes, need: Need) -> Feasibility:
    """Say whether `need` fits on `nodes`."""
    room = {name: _room(free, need.per_process) for name, free in nodes.items()}
    largest, wanted = max(need.spec, default=0), sum(need.spec)
    usable = sum(1 for count in room.values() if count > 0)
    if need.strategy == "STRICT_PACK" and largest > max(room.values(), default=0):
        problem = f"no node has room for a group of {_processes(largest)}: {_lacks(nodes, need, largest)}"
    elif need.strategy == "STRICT_PACK" and not _packs(need.spec, room.values()):
        problem = f"groups of {list(need.spec)} do not fit together: {_rooms(room, nodes, need)}"
    elif need.strategy == "STRICT_SPREAD" and largest > usable:
        problem = f"{largest} different nodes are needed, {usable} have room: {_rooms(room, nodes, need)}"
    elif wanted > sum(room.values()):
        problem = f"{_processes(wanted)} do not fit: {_rooms(room, nodes, need)}"
    else:
        return Feasibility(True)
    return Feasibility(False, problem)


def _room(free: Mapping[str, float], per_process: Mapping[str, float]) -> int:
    """How many processes a node holds."""
    counts = [
        max(units(free.get(name, 0)), 0) // units(amount)
        for name, amount in per_process.items()
        if amount > 0
    ]
    return min(counts, default=1_000_000)


def _packs(groups: Iterable[int], rooms: Iterable[int]) -> bool:
    """Whether the groups, largest first, fit on nodes whole, each on the fullest node that still has room.

    This may miss a way that an exact search would find; it is one that Ray, which places the largest first
    too, would miss as well.
    """
    left = sorted(rooms)
    for size in sorted(groups, reverse=True):
        place = bisect_left(left, size)
        if place == len(left):
            return False
        insort(left, left.pop(place) - size)
    return True


def _processes(count: int) -> str:
    return f"{count} process{'es' if count != 1 else ''}"


def _lacks(nodes: Nodes, need: Need, processes: int) -> str:
    wanted = need.of(processes)
    lacking = "; ".join(
        f"{name} has {resource} {free.get(resource, 0):g}, needs {amount:g}"
        for name, free in nodes.items()
        for resource, amount in wanted.items()
        if units(free.get(resource, 0)) < units(amount)
    )
    return lacking or _NO_NODE


def _rooms(room: Mapping[str, int], nodes: Nodes, need: Need) -> str:
    held = "; ".join(
        f"{name} holds {room[name]} (has {_amounts({r: free.get(r, 0) for r in need.per_process})})"
        for name, free in nodes.items()
    )
    return f"each process needs {_amounts(need.of(1))}; {held or _NO_NODE}"


def labels_match(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node's labels satisfy a Ray label selector (`v`, `!v`, `in(a,b)`, `!in(a,b)`).

    >>> labels_match({"zone": "b"}, {"zone": "in(a,b)"}), labels_match({"zone": "b"}, {"zone": "!b"})
    (True, False)
    """
    return all(_label_matches(labels.get(key), wanted) for key, wanted in selector.items())


def _label_matches(label: str | None, wanted: str) -> bool:
    negated = wanted.startswith("!")
    body = wanted.removeprefix("!")
    is_list = body.startswith("in(") and body.endswith(")")
    accepted = [entry.strip() for entry in body[3:-1].split(",")] if is_list else [body]
    return (label in accepted) is not negated
