"""Dispatch over a named mesh: rows split over dp ranks, every replica of a dp rank gets the same part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from verl_dispatch.call_scope import current_labels, current_options
from verl_dispatch.collect import collect_nd_compute_dataproto
from verl_dispatch.dispatch_functions import Lists
from verl_dispatch.errors import EntryCountError, MeshError
from verl_dispatch.mesh import mesh_of, name_problem
from verl_dispatch.split import SplitList, split_batches

if TYPE_CHECKING:
    from verl_dispatch.typed_modes import NdBatches

__all__ = [
    "NdCollect",
    "NdDispatch",
    "dispatch_nd_compute",
    "dispatch_nd_compute_dataproto",
    "make_nd_compute_dataproto_dispatch_fn",
]


def dispatch_nd_compute(
    dp_rank_mapping: Sequence[int], dp_size: int, group: Any, *args: Any, **kwargs: Any
) -> Lists:
    """Lists with one entry per dp rank, spread over all ranks: replicas get the very same object.

    Raises:
        EntryCountError: a list without one entry per dp rank, or a mapping without one per worker.
        MeshError: a dp rank outside `0..dp_size-1`.

    Example:
        >>> from types import SimpleNamespace
        >>> dispatch_nd_compute([0, 0, 1, 1], 2, SimpleNamespace(world_size=4), ["a", "b"])
        ((['a', 'a', 'b', 'b'],), {})
    """
    _check_mapping(dp_rank_mapping, dp_size, group.world_size)
    labels = current_labels()
    positional = tuple(
        _spread(entries, labels.positional(index), dp_rank_mapping, dp_size)
        for index, entries in enumerate(args)
    )
    named = {
        name: _spread(entries, labels.keyword(name), dp_rank_mapping, dp_size)
        for name, entries in kwargs.items()
    }
    return positional, named


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: Sequence[int], dp_size: int, group: Any, *args: Any, **kwargs: Any
) -> Lists:
    """Batches split by rows over the dp ranks, then spread over all ranks.

    Raises:
        UnsplittableArgumentError, UnevenRowsError, UnequalRowsError: see `split_batches`.
    """
    split = split_batches(dp_size, args, kwargs, current_labels(), current_options())
    return dispatch_nd_compute(dp_rank_mapping, dp_size, group, *split.args, **split.kwargs)


@dataclass(frozen=True, slots=True)
class NdDispatch:
    """The dispatch function of a mesh mode; which ranks the mesh has is asked of the group at the call."""

    mesh_name: str

    def __call__(self, group: Any, *args: Any, **kwargs: Any) -> Lists:
        """Batches split over the dp ranks of the group's mesh."""
        mesh = mesh_of(group, self.mesh_name)
        return dispatch_nd_compute_dataproto(mesh.dp_ranks, mesh.dp_size, group, *args, **kwargs)


@dataclass(frozen=True, slots=True)
class NdCollect:
    """The collect function of a mesh mode."""

    mesh_name: str

    def __call__(self, group: Any, output: Sequence[Any]) -> Any:
        """The answers of the answering ranks, joined in dp order."""
        mesh = mesh_of(group, self.mesh_name)
        in_dp_order = [output[rank] for rank in mesh.answering_ranks]
        return collect_nd_compute_dataproto([True] * len(in_dp_order), _Ranks(len(in_dp_order)), in_dp_order)


@dataclass(frozen=True, slots=True)
class _Ranks:
    world_size: int


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> NdBatches:
    """A dispatch mode that splits batches over the dp ranks of a named mesh.

    Workers register their place in it with `_register_dispatch_collect_info(mesh_name, dp_rank, is_collect)`.
    Only answering ranks are fetched, and the result is in dp order.

    Raises:
        MeshError: `mesh_name` is no text.

    Example:
        >>> from verl_dispatch import register
        >>> class Actor:
        ...     @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("actor"))
        ...     def update(self, batch): ...
    """
    problem = name_problem(mesh_name)
    if problem:
        raise MeshError(mesh_name, problem, "")
    return cast("NdBatches", {"dispatch_fn": NdDispatch(mesh_name), "collect_fn": NdCollect(mesh_name)})


def _check_mapping(dp_rank_mapping: Sequence[int], dp_size: int, world_size: int) -> None:
    if len(dp_rank_mapping) != world_size:
        raise EntryCountError("dp_rank_mapping", world_size, len(dp_rank_mapping))
    outside = sorted({dp for dp in dp_rank_mapping if not 0 <= dp < dp_size})
    if outside:
        table = "\n".join(f"  rank {rank} -> dp rank {dp}" for rank, dp in enumerate(dp_rank_mapping))
        raise MeshError("dp_rank_mapping", f"dp ranks {outside} are outside 0..{dp_size - 1}", table)


def _spread(entries: Any, label: str, dp_rank_mapping: Sequence[int], dp_size: int) -> list[Any]:
    if not isinstance(entries, (list, tuple)) or len(entries) != dp_size:
        raise EntryCountError(label, dp_size, len(entries) if hasattr(entries, "__len__") else 1)
    layout = entries.layout if isinstance(entries, SplitList) else None
    spread = layout.spread(dp_rank_mapping) if layout else None
    return SplitList([entries[dp] for dp in dp_rank_mapping], spread)
