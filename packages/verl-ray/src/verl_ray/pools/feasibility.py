"""Can this pool be placed on these nodes? Bin packing over all resources, answered in words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["Feasibility", "Need", "Nodes", "explain_feasibility", "explain_need", "labels_match"]


Nodes = Mapping[str, Mapping[str, float]]
"""Resources by node name."""

# Packing is searched exactly up to this many steps; beyond, the answer is yes, and the bounded wait decides.
_SEARCH_STEPS = 20_000


@dataclass(frozen=True)
class Feasibility:
    """Whether the pool fits, and if not, what every node lacks. Advisory: the cluster may change."""

    ok: bool
    reason: str = ""


@dataclass(frozen=True)
class Need:
    """What a pool asks for: processes per node, resources per process, and the strategy of each group."""

    spec: tuple[int, ...]
    per_process: Mapping[str, float]
    strategy: str = "STRICT_PACK"

    def of(self, processes: int) -> dict[str, float]:
        """The resources of so many processes."""
        return {name: round(amount * processes, 4) for name, amount in self.per_process.items()}


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
    if need.strategy == "STRICT_PACK":
        return _explain_packed(nodes, need, room)
    if need.strategy == "STRICT_SPREAD":
        return _explain_spread(nodes, need, room)
    return _explain_loose(nodes, need, room)


def _room(free: Mapping[str, float], per_process: Mapping[str, float]) -> int:
    """How many processes a node holds."""
    counts = [
        _units(free.get(name, 0)) // _units(amount) for name, amount in per_process.items() if amount > 0
    ]
    return min(counts, default=1_000_000)


def _units(amount: float) -> int:
    # Ray counts in ten-thousandths; floats would not add up.
    return max(round(amount * 10_000), 0)


def _explain_packed(
    nodes: Mapping[str, Mapping[str, float]], need: Need, room: Mapping[str, int]
) -> Feasibility:
    largest = max(need.spec, default=0)
    if largest > max(room.values(), default=0):
        lacks = _lacks(nodes, need, largest)
        return Feasibility(False, f"no node has room for a group of {_processes(largest)}: {lacks}")
    if _packs(sorted(need.spec, reverse=True), sorted(room.values(), reverse=True)):
        return Feasibility(True)
    return Feasibility(False, f"groups of {list(need.spec)} do not fit together: {_rooms(room, nodes, need)}")


def _explain_spread(
    nodes: Mapping[str, Mapping[str, float]], need: Need, room: Mapping[str, int]
) -> Feasibility:
    largest = max(need.spec, default=0)
    usable = sum(1 for count in room.values() if count > 0)
    if largest <= usable and sum(need.spec) <= sum(room.values()):
        return Feasibility(True)
    return Feasibility(
        False, f"{largest} different nodes are needed, {usable} have room: {_rooms(room, nodes, need)}"
    )


def _explain_loose(
    nodes: Mapping[str, Mapping[str, float]], need: Need, room: Mapping[str, int]
) -> Feasibility:
    wanted = sum(need.spec)
    if wanted <= sum(room.values()):
        return Feasibility(True)
    return Feasibility(False, f"{_processes(wanted)} do not fit: {_rooms(room, nodes, need)}")


def _processes(count: int) -> str:
    return f"{count} process{'es' if count != 1 else ''}"


def _lacks(nodes: Nodes, need: Need, processes: int) -> str:
    if not nodes:
        return "there is no usable node"
    wanted = need.of(processes)
    return "; ".join(
        f"{name} has {resource} {free.get(resource, 0):g}, needs {amount:g}"
        for name, free in nodes.items()
        for resource, amount in wanted.items()
        if _units(free.get(resource, 0)) < _units(amount)
    )


def _rooms(room: Mapping[str, int], nodes: Nodes, need: Need) -> str:
    each = ", ".join(f"{resource} {amount:g}" for resource, amount in need.of(1).items())
    if not nodes:
        return f"there is no usable node, each process needs {each}"
    held = "; ".join(
        f"{name} holds {room[name]} (has {', '.join(f'{r} {free.get(r, 0):g}' for r in need.per_process)})"
        for name, free in nodes.items()
    )
    return f"each process needs {each}; {held}"


def _packs(groups: list[int], rooms: list[int]) -> bool:
    """Whether every group fits on a node whole; `groups` largest first."""
    return _Packing(groups).search(0, tuple(rooms))


class _Packing:
    def __init__(self, groups: Sequence[int]) -> None:
        self._groups = groups
        self._steps = 0
        self._dead_ends: set[tuple[int, tuple[int, ...]]] = set()

    def search(self, index: int, rooms: tuple[int, ...]) -> bool:
        if index == len(self._groups):
            return True
        self._steps += 1
        if self._steps > _SEARCH_STEPS:
            return True
        if (index, rooms) in self._dead_ends:
            return False
        size = self._groups[index]
        # Rooms are kept sorted, so equal nodes look equal and each size of room is tried once.
        for room in sorted({room for room in rooms if room >= size}):
            place = rooms.index(room)
            left = (*rooms[:place], room - size, *rooms[place + 1 :])
            if self.search(index + 1, tuple(sorted(left, reverse=True))):
                return True
        self._dead_ends.add((index, rooms))
        return False


def labels_match(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    """Whether a node's labels satisfy a Ray label selector (`v`, `!v`, `in(a,b)`, `!in(a,b)`).

    >>> labels_match({"zone": "b"}, {"zone": "in(a,b)"}), labels_match({"zone": "b"}, {"zone": "!b"})
    (True, False)
    """
    return all(_label_matches(labels.get(key), wanted) for key, wanted in selector.items())


def _label_matches(label: str | None, wanted: str) -> bool:
    negated = wanted.startswith("!")
    body = wanted.removeprefix("!")
    if body.startswith("in(") and body.endswith(")"):
        accepted = {entry.strip() for entry in body[3:-1].split(",")}
    else:
        accepted = {body}
    return (label in accepted) is not negated
