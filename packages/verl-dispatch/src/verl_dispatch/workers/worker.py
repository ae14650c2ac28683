"""The base class of what users write: one worker of a group, which knows its rank and its meshes."""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, SupportsIndex, TypeVar

from verl_protocol.arguments import text
from verl_protocol.errors import InvalidTypeError, InvalidValueError

from verl_dispatch.errors import UnknownMeshError, UnknownRoleError
from verl_dispatch.methods.decorator import register
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.workers.collectives import ProcessGroup
from verl_dispatch.workers.rank import RankInfo, free_port, node_address
from verl_dispatch.workers.site import SITE, by_torch, identity_of_new_worker


def _bad_entry(mesh_name: object, what: str, given: object, expected: str) -> InvalidTypeError:
    return InvalidTypeError(f"mesh {mesh_name!r}: {what} is {given!r}, expected {expected}")


def _entry(name: object, dp_rank: Any, is_collect: Any) -> tuple[int, bool]:
    if not isinstance(name, str) or not name:
        raise _bad_entry(name, "its name", name, "a text")
    # A scalar of numpy or torch stands for the value in it.
    rank, collect = (each.item() if hasattr(each, "item") else each for each in (dp_rank, is_collect))
    if isinstance(rank, bool) or not hasattr(rank, "__index__"):
        raise _bad_entry(name, "dp_rank", dp_rank, "a whole number")
    # A text such as "False" would count as true.
    if not isinstance(collect, int) or collect not in (0, 1):
        raise _bad_entry(name, "is_collect", is_collect, "True or False")
    return operator.index(rank), bool(collect)


T = TypeVar("T")

VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"


@dataclass
class _Place:
    """What a worker holds for its group, out of the way of the user's own attributes."""

    rank_info: RankInfo | None = None
    make_process_group: Callable[[RankInfo], ProcessGroup] = by_torch
    process_group: ProcessGroup | None = None
    meshes: dict[str, tuple[int, bool]] = field(default_factory=dict)

    def known_rank_info(self) -> RankInfo:
        if self.rank_info is None:
            site = SITE.get()
            self.rank_info = identity_of_new_worker(site)
            # A helper that stands where its worker stands reaches the other ranks the same way.
            if site is not None and site.rank_info.same_rank(self.rank_info):
                self.make_process_group = site.make_process_group
        return self.rank_info

    def add_meshes(self, dp_ranks: Mapping[str, SupportsIndex], collects: Mapping[str, object]) -> None:
        """Registers these meshes, or none of them if one is refused."""
        if not dp_ranks or set(dp_ranks) != set(collects):
            raise InvalidValueError(
                "dispatch_dp_rank and collect_dp_rank must name the same meshes, at least one; "
                f"given {sorted(dp_ranks)} and {sorted(collects)}"
            )
        for name in dp_ranks:
            if name in self.meshes:
                dp_rank, is_collect = self.meshes[name]
                raise InvalidValueError(
                    f"mesh {name!r} is already registered on this worker, with dp rank {dp_rank} and "
                    f"collect={is_collect}; register each mesh once, or use another name"
                )
        self.meshes |= {name: _entry(name, rank, collects[name]) for name, rank in dp_ranks.items()}

    def mesh(self, mesh_name: str) -> tuple[int, bool]:
        """The data-parallel rank in one mesh, and whether the worker answers for it."""
        if mesh_name not in self.meshes:
            raise UnknownMeshError(mesh_name, self.meshes)
        return self.meshes[mesh_name]


class Worker:
    """One process's share of the work; subclass it and mark methods with `@register`.

    Inside a group the group says who the worker is, even where a subclass never calls this constructor.
    Outside a group, or made inside another worker, it reads the variables that torchrun sets.

    Args:
        cuda_visible_devices: sets `CUDA_VISIBLE_DEVICES` for this process.

    Raises:
        MissingRankVariablesError: outside a group, where RANK or WORLD_SIZE is not set.
        InvalidTypeError: `cuda_visible_devices` is no str, as an argument for a constructor that is missing.
    """

    fused_worker_dict: dict[str, Any]
    __place: _Place

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Take the identity that the backend has prepared, before any constructor of the user runs."""
        self = super().__new__(cls)
        site = SITE.get()
        if site is not None and not site.taken:
            site.taken = True
            place = _Place(site.rank_info, site.make_process_group)
            siblings = site.fused_workers
        else:
            place, siblings = _Place(), {}
        # Past any __setattr__ of the user's, which may count on a constructor that has not run yet.
        object.__setattr__(self, "_Worker__place", place)
        object.__setattr__(self, "fused_worker_dict", siblings)
        return self

    def __init__(self, cuda_visible_devices: str | None = None) -> None:
        self.__place.known_rank_info()
        if cuda_visible_devices is not None:
            os.environ[VISIBLE_DEVICES] = text("cuda_visible_devices", cuda_visible_devices)

    @property
    def rank(self) -> int:
        """This worker's rank, 0 to `world_size - 1`."""
        return self.__place.known_rank_info().rank

    @property
    def world_size(self) -> int:
        """How many workers the group has."""
        return self.__place.known_rank_info().world_size

    @property
    def local_rank(self) -> int:
        """This worker's rank among those on its node; not a device index."""
        return self.__place.known_rank_info().local_rank

    @property
    def local_world_size(self) -> int:
        """How many workers of the group share this worker's node."""
        return self.__place.known_rank_info().local_world_size

    @property
    def rank_info(self) -> RankInfo:
        """All that this worker knows about its place in the group."""
        return self.__place.known_rank_info()

    _rank = rank
    _world_size = world_size

    def process_group(self) -> ProcessGroup:
        """Collectives over the ranks of this worker's group: all_reduce, all_gather, broadcast, barrier.

        Under torchrun and on a cluster it is torch.distributed, joined at the first collective (gloo on CPU,
        nccl on GPU). In an in-process group it is a rendezvous of threads; where ranks run one by one
        a collective raises.
        """
        place, info = self.__place, self.__place.known_rank_info()
        if place.process_group is None:
            place.process_group = place.make_process_group(info)
        return place.process_group

    def get_master_addr_port(self) -> tuple[str | None, str | None]:
        """The address and port where the ranks of this group meet for torch.distributed."""
        return self.rank_info.master_addr, self.rank_info.master_port

    def get_available_master_addr_port(self) -> tuple[str, str]:
        """This node's address and a port that is free on it now."""
        address = node_address()
        return address, str(free_port(address))

    def get_cuda_visible_devices(self) -> str:
        """The process's `CUDA_VISIBLE_DEVICES`, or "not set"."""
        return os.environ.get(VISIBLE_DEVICES, "not set")

    @classmethod
    def env_keys(cls) -> list[str]:
        """The environment variables that tell a worker its place."""
        of_torchrun = "WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"
        return [*of_torchrun, VISIBLE_DEVICES]

    def get_fused_worker_by_name(self, worker_name: str) -> Any:
        """The worker of another role in this process; in a constructor, of a role that was built before.

        Raises:
            UnknownRoleError: no such role here. `fused_worker_dict.get(name)` asks without an error.
        """
        return role_in(self.fused_worker_dict, worker_name)

    def _register_dispatch_collect_info(
        self, mesh_name: str, dp_rank: SupportsIndex, is_collect: bool
    ) -> None:
        """Say which data-parallel rank this worker has in a mesh, and whether it answers for it.

        Raises:
            InvalidValueError: this worker has registered the mesh before.
            InvalidTypeError: no name, no whole number, or neither True nor False.
        """
        self.__place.add_meshes({mesh_name: dp_rank}, {mesh_name: is_collect})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_dispatch_info(self, mesh_name: str) -> int:
        """The data-parallel rank of this worker in a mesh."""
        return self.__place.mesh(mesh_name)[0]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def _query_collect_info(self, mesh_name: str) -> bool:
        """Whether this worker answers for its data-parallel rank in a mesh."""
        return self.__place.mesh(mesh_name)[1]

    query_collect_info = _query_collect_info

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get_dispatch_collect(self) -> dict[str, dict[str, Any]]:
        """All meshes of this worker: `{"dispatch_dp_rank": {mesh: int}, "collect_dp_rank": {mesh: bool}}`."""
        meshes = self.__place.meshes
        return {
            "dispatch_dp_rank": {name: dp_rank for name, (dp_rank, _) in meshes.items()},
            "collect_dp_rank": {name: is_collect for name, (_, is_collect) in meshes.items()},
        }

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_dispatch_collect(
        self,
        mesh_name: str,
        dispatch_dp_rank: Mapping[str, SupportsIndex],
        collect_dp_rank: Mapping[str, bool],
    ) -> None:
        """Take over the meshes of a worker that this one wraps, as its `get_dispatch_collect` gives them.

        A single mesh is known here as `mesh_name`, whatever its name there. Of several each keeps its name.

        Raises:
            InvalidValueError: this worker has a mesh of that name.
            InvalidValueError: the two dicts do not name the same meshes.
        """
        if len(dispatch_dp_rank) == 1 and set(dispatch_dp_rank) == set(collect_dp_rank):
            [dp_rank], [is_collect] = dispatch_dp_rank.values(), collect_dp_rank.values()
            self.__place.add_meshes({mesh_name: dp_rank}, {mesh_name: is_collect})
        else:
            self.__place.add_meshes(dispatch_dp_rank, collect_dp_rank)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def execute_with_func_generator(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run `func(worker, *args, **kwargs)` on every worker, with the batches split over them."""
        return func(self, *args, **kwargs)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def execute_func_rank_zero(self, func: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Run `func(*args, **kwargs)` on rank 0 and return its value."""
        return func(*args, **kwargs)


def role_in(workers: Mapping[str, Any], role: str) -> Any:
    """The worker of a role among these.

    Raises:
        UnknownRoleError: there is none.
    """
    if role not in workers:
        raise UnknownRoleError(role, {name: type(worker).__name__ for name, worker in workers.items()})
    return workers[role]


# What help() and editors show for the class is what its constructor takes.
Worker.__new__.__dict__["__signature__"] = inspect.signature(Worker.__init__)
