"""A group's mesh tables: asked of the workers once, checked once, kept until invalidated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_dispatch.errors import UnknownMeshError
from verl_dispatch.mesh import Mesh

__all__ = ["mesh_of"]


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
        known = {name for answer in answers for name in answer["dispatch_dp_rank"]} | set(
            group._dispatch_info
        )
        raise UnknownMeshError(mesh_name, known)
    group._dispatch_info.setdefault(mesh_name, dp_ranks)
    group._collect_info.setdefault(mesh_name, collects)
