"""Named meshes: which ranks get the same rows, which of them answers, and what a group knows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from numbers import Integral
from typing import Any

from verl_dispatch.errors import MeshError, UnknownMeshError


@dataclass(frozen=True, slots=True)
class Mesh:
    """A table rank -> (dp rank, whether it answers), checked when made.

    Ranks with the same dp rank are replicas: they get the same rows, and exactly one of them answers.

    Attributes:
        name: what the dispatch mode calls it.
        dp_ranks: dp rank of every rank.
        collects: for every rank whether its answer is fetched.
        axes: axis name -> size, outermost first, where the mesh was made from axes.

    Raises:
        MeshError: dp ranks are not exactly 0..k-1, or one has no answering rank or several; with the whole
            table.

    Example:
        >>> mesh = Mesh.from_sizes("actor", {"dp": 2, "tp": 2})
        >>> mesh.dp_ranks, mesh.answering_ranks
        ((0, 0, 1, 1), (0, 2))
    """

    name: str
    dp_ranks: tuple[int, ...]
    collects: tuple[bool, ...]
    axes: Mapping[str, int] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        problem = name_problem(self.name) or _problem_of(self.dp_ranks, self.collects)
        if problem:
            raise MeshError(self.name, problem, _table(self.dp_ranks, self.collects))

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.dp_ranks)

    @property
    def dp_size(self) -> int:
        """Number of parts that a batch is split into."""
        return max(self.dp_ranks) + 1

    @property
    def answering_ranks(self) -> tuple[int, ...]:
        """The rank that answers for each dp rank, in dp order."""
        answering = {dp: rank for rank, dp in enumerate(self.dp_ranks) if self.collects[rank]}
        return tuple(answering[dp] for dp in range(self.dp_size))

    def table(self) -> str:
        """The mesh as lines of `rank -> dp rank, answers`."""
        return _table(self.dp_ranks, self.collects)

    @classmethod
    def from_registration(
        cls,
        name: str,
        dp_ranks: Sequence[int | None],
        collects: Sequence[bool | None],
        world_size: int | None = None,
    ) -> Mesh:
        """A mesh from what each rank registered; None where a rank registered nothing.

        Raises:
            MeshError: a rank is missing, or the table is no valid mesh.
        """
        if world_size is not None and not len(dp_ranks) == len(collects) == world_size:
            problem = (
                f"it is of {len(dp_ranks)} ranks (collect flags: {len(collects)}), but the group has "
                f"{world_size} workers; a mesh names every worker once, so its sizes multiply to {world_size}"
            )
        elif missing := [
            rank for rank, told in enumerate(zip(dp_ranks, collects, strict=True)) if None in told
        ]:
            problem = f"ranks {missing} have not registered it"
        elif odd := [rank for rank, dp in enumerate(dp_ranks) if not is_whole(dp)]:
            problem = f"the dp ranks of ranks {odd} are no whole numbers"
        else:
            dps = tuple(int(dp) for dp in dp_ranks if dp is not None)
            return cls(name, dps, tuple(map(bool, collects)))
        raise MeshError(name, problem, _table(dp_ranks, collects))

    @classmethod
    def from_sizes(
        cls,
        name: str,
        sizes: Mapping[str, int],
        *,
        split_axes: Sequence[str] = ("dp",),
        answering: Mapping[str, int] | None = None,
    ) -> Mesh:
        """A mesh from axis sizes, outermost axis first; ranks count with the last axis fastest.

        Args:
            name: what the dispatch mode calls it.
            sizes: axis name -> size, for example `{"pp": 2, "dp": 4, "tp": 2}`.
            split_axes: axes over which rows are split; along all others the same rows are repeated.
            answering: on each other axis the index that answers, negative from the end; 0 if not given. For
                example `{"pp": -1}` where the last pipeline stage has the result.

        Raises:
            MeshError: a size below 1, or an axis that `sizes` does not have.
        """
        answering = dict(answering or {})
        _check_axes(name, sizes, split_axes, answering)
        sizes = {axis: int(size) for axis, size in sizes.items()}
        dp_ranks, collects = [], []
        split = product(*(range(sizes[axis]) for axis in split_axes))
        dp_rank_at = {place: dp for dp, place in enumerate(split)}
        for position in product(*map(range, sizes.values())):
            at = dict(zip(sizes, position, strict=True))
            dp_ranks.append(dp_rank_at[tuple([at[axis] for axis in split_axes])])
            others = (axis for axis in sizes if axis not in split_axes)
            collects.append(all(at[axis] == answering.get(axis, 0) % sizes[axis] for axis in others))
        return cls(name, tuple(dp_ranks), tuple(collects), dict(sizes))

    @classmethod
    def from_device_mesh(
        cls,
        name: str,
        device_mesh: Any,
        *,
        split_axes: Sequence[str] = ("dp",),
        answering: Mapping[str, int] | None = None,
    ) -> Mesh:
        """A mesh from a `torch.distributed.DeviceMesh` with named dimensions that covers the ranks 0..n-1.

        Raises:
            MeshError: unnamed dimensions, or ranks that are not 0..n-1.
        """
        names = device_mesh.mesh_dim_names
        if names is None:
            raise MeshError(name, "the DeviceMesh has no mesh_dim_names", str(device_mesh))
        shape = dict(zip(names, map(int, device_mesh.mesh.shape), strict=True))
        counted = cls.from_sizes(name, shape, split_axes=split_axes, answering=answering)
        ranks = device_mesh.mesh.flatten().tolist()
        if sorted(ranks) != list(range(len(ranks))):
            raise MeshError(
                name, f"the DeviceMesh covers ranks {ranks}, not 0..{len(ranks) - 1}", str(device_mesh)
            )
        order = sorted(range(len(ranks)), key=ranks.__getitem__)
        dp_ranks = tuple(counted.dp_ranks[at] for at in order)
        return replace(counted, dp_ranks=dp_ranks, collects=tuple(counted.collects[at] for at in order))


def name_problem(name: object) -> str:
    """What is wrong with a mesh's name; empty if nothing is."""
    return "" if isinstance(name, str) and name else "its name must be a text"


def _check_axes(name: str, sizes: Any, split_axes: Sequence[str], answering: Mapping[str, int]) -> None:
    if not isinstance(sizes, Mapping):
        raise MeshError(name, 'its sizes must be a dict such as {"dp": 2, "tp": 2}', f"got {sizes!r}")
    shown = ", ".join(f"{axis}={size}" for axis, size in sizes.items()) or "none"
    if unknown := [axis for axis in (*split_axes, *answering) if axis not in sizes]:
        raise MeshError(name, f"there is no axis {unknown[0]!r}", f"axes: {shown}")
    if not all(is_whole(size) and size >= 1 for size in sizes.values()):
        raise MeshError(name, "every axis needs a whole number of at least 1 as its size", f"axes: {shown}")
    for axis, index in answering.items():
        if axis in split_axes:
            problem = f"answering={{{axis!r}: {index}}}: rows are split over this axis, so all of it answers"
            raise MeshError(name, problem, f"split axes: {', '.join(split_axes)}")
        if not -sizes[axis] <= index < sizes[axis]:
            problem = f"answering={{{axis!r}: {index}}} is outside the axis, which has size {sizes[axis]}"
            raise MeshError(name, problem, shown)


def is_whole(value: object) -> bool:
    """Whether this is a whole number, of Python's or numpy's."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def _problem_of(dp_ranks: Sequence[int], collects: Sequence[bool]) -> str:
    if not dp_ranks or len(dp_ranks) != len(collects):
        return (
            f"it needs one dp rank and one collect flag per worker, got {len(dp_ranks)} and {len(collects)}"
        )
    expected = set(range(max(dp_ranks) + 1))
    if set(dp_ranks) != expected:
        return f"dp ranks must be exactly 0..k-1, got {sorted(set(dp_ranks))}"
    answering: dict[int, list[int]] = {dp: [] for dp in sorted(expected)}
    for rank, dp in enumerate(dp_ranks):
        if collects[rank]:
            answering[dp].append(rank)
    for dp, ranks in answering.items():
        if len(ranks) != 1:
            return f"dp rank {dp} must have exactly one answering rank, got {ranks or 'none'}"
    return ""


def _table(dp_ranks: Sequence[int | None], collects: Sequence[bool | None]) -> str:
    rows = zip(dp_ranks, collects, strict=False)
    return "\n".join(f"  rank {rank} -> dp rank {dp}, collect {flag}" for rank, (dp, flag) in enumerate(rows))


def mesh_of(group: Any, mesh_name: str) -> Mesh:
    """The group's mesh of that name.

    The tables are `group._dispatch_info` and `group._collect_info` (mesh -> one entry per rank); what they
    lack is asked of the workers.

    Raises:
        UnknownMeshError: no worker has registered it.
        MeshError: the table is no valid mesh.
    """
    if mesh_name not in group._dispatch_info or mesh_name not in group._collect_info:
        _ask(group, mesh_name)
    dp_ranks, collects = group._dispatch_info[mesh_name], group._collect_info[mesh_name]
    cache: dict[str, Mesh] = group.__dict__.setdefault("_meshes", {})
    known = cache.get(mesh_name)
    if known is None or known.dp_ranks != tuple(dp_ranks) or known.collects != tuple(collects):
        known = cache[mesh_name] = Mesh.from_registration(mesh_name, dp_ranks, collects, group.world_size)
    return known


def _ask(group: Any, mesh_name: str) -> None:
    ask_all = getattr(group, "_registered_meshes", None)
    if ask_all is None:
        group._dispatch_info.setdefault(mesh_name, group._query_dispatch_info(mesh_name))
        group._collect_info.setdefault(mesh_name, group._query_collect_info(mesh_name))
        return
    answers: Sequence[Mapping[str, Mapping[str, Any]]] = ask_all()
    dp_ranks = [answer["dispatch_dp_rank"].get(mesh_name) for answer in answers]
    collects = [answer["collect_dp_rank"].get(mesh_name) for answer in answers]
    if all(dp is None for dp in dp_ranks):
        known = {*group._dispatch_info, *(name for answer in answers for name in answer["dispatch_dp_rank"])}
        raise UnknownMeshError(mesh_name, known)
    group._dispatch_info.setdefault(mesh_name, dp_ranks)
    group._collect_info.setdefault(mesh_name, collects)
