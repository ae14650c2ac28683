"""The meshes one worker belongs to: its data-parallel rank in each, and whether it answers for that rank."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, SupportsIndex

from verl_protocol.errors import PortableError

from verl_dispatch.errors import UnknownMeshError

__all__ = ["MeshAlreadyRegisteredError", "MeshEntriesError", "MeshEntryError", "WorkerMeshes"]


class MeshAlreadyRegisteredError(PortableError, ValueError):
    """A worker registers the same mesh name twice."""

    def __init__(self, mesh_name: str, dp_rank: int, is_collect: bool) -> None:
        self.mesh_name, self.dp_rank, self.is_collect = mesh_name, dp_rank, is_collect
        super().__init__(
            f"mesh '{mesh_name}' is already registered on this worker, with dp rank {dp_rank} and "
            f"collect={is_collect}; register each mesh once, or use another name"
        )


class MeshEntryError(PortableError, TypeError):
    """What a worker says about its place in a mesh is not of the kind it should be."""

    def __init__(self, mesh_name: object, what: str, given: object, expected: str) -> None:
        self.mesh_name, self.what, self.given, self.expected = mesh_name, what, given, expected
        super().__init__(f"mesh {mesh_name!r}: {what} is {given!r}, expected {expected}")


class MeshEntriesError(PortableError, ValueError):
    """`dispatch_dp_rank` and `collect_dp_rank` speak of different meshes."""

    def __init__(self, dispatch_names: tuple[str, ...], collect_names: tuple[str, ...]) -> None:
        self.dispatch_names, self.collect_names = dispatch_names, collect_names
        super().__init__(
            "dispatch_dp_rank and collect_dp_rank must name the same meshes, at least one; "
            f"given {sorted(dispatch_names)} and {sorted(collect_names)}"
        )


class WorkerMeshes:
    """A small table: mesh name -> (dp rank, whether this worker answers for it)."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[int, bool]] = {}

    def add(self, mesh_name: str, dp_rank: SupportsIndex, is_collect: object) -> None:
        """Register one mesh.

        Raises:
            MeshAlreadyRegisteredError: the name is taken.
            MeshEntryError: `dp_rank` is no whole number, or `is_collect` neither true nor false.
        """
        self.add_all({mesh_name: dp_rank}, {mesh_name: is_collect})

    def add_all(self, dp_ranks: Mapping[str, SupportsIndex], collects: Mapping[str, object]) -> None:
        """Register several meshes, or none of them if one is refused."""
        if not dp_ranks or set(dp_ranks) != set(collects):
            raise MeshEntriesError(tuple(dp_ranks), tuple(collects))
        for name in dp_ranks:
            if name in self._entries:
                raise MeshAlreadyRegisteredError(name, *self._entries[name])
        self._entries |= {name: _entry(name, rank, collects[name]) for name, rank in dp_ranks.items()}

    def dp_rank(self, mesh_name: str) -> int:
        """The data-parallel rank in one mesh; UnknownMeshError lists the known ones."""
        return self._entry(mesh_name)[0]

    def is_collect(self, mesh_name: str) -> bool:
        """Whether this worker answers for its data-parallel rank in one mesh."""
        return self._entry(mesh_name)[1]

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """All meshes in the form that `Worker.set_dispatch_collect` takes."""
        return {
            "dispatch_dp_rank": {name: rank for name, (rank, _) in self._entries.items()},
            "collect_dp_rank": {name: collect for name, (_, collect) in self._entries.items()},
        }

    def _entry(self, mesh_name: str) -> tuple[int, bool]:
        try:
            return self._entries[mesh_name]
        except KeyError:
            raise UnknownMeshError(mesh_name, self._entries) from None


def _entry(name: object, dp_rank: Any, is_collect: Any) -> tuple[int, bool]:
    if not isinstance(name, str) or not name:
        raise MeshEntryError(name, "its name", name, "a text")
    # A scalar of numpy or torch stands for the value in it.
    rank, collect = (each.item() if hasattr(each, "item") else each for each in (dp_rank, is_collect))
    if isinstance(rank, bool) or not hasattr(rank, "__index__"):
        raise MeshEntryError(name, "dp_rank", dp_rank, "a whole number")
    # A text such as "False" would count as true.
    if not isinstance(collect, int) or collect not in (0, 1):
        raise MeshEntryError(name, "is_collect", is_collect, "True or False")
    return operator.index(rank), bool(collect)
