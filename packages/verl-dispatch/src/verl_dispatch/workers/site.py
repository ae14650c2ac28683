"""The place that a backend prepares for a worker: who it is, and how it reaches the other ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from verl_dispatch.errors import MissingRankVariablesError
from verl_dispatch.workers.collectives import ProcessGroup
from verl_dispatch.workers.rank import RankInfo


def by_torch(info: RankInfo) -> ProcessGroup:
    """The group of a rank in a process of its own: torch.distributed, imported here and not before."""
    from verl_dispatch.workers.torch_collectives import TorchProcessGroup

    return TorchProcessGroup(info)


@dataclass
class WorkerSite:
    """The place a backend prepares for one worker: its identity and how it reaches the other ranks.

    The first `Worker` made there is the worker itself and takes the site; later ones are helpers inside it.
    """

    rank_info: RankInfo
    make_process_group: Callable[[RankInfo], ProcessGroup] = by_torch
    # Off where ranks share a process at the same time: the variables then speak for nobody.
    sets_environment: bool = True
    fused_workers: dict[str, Any] = field(default_factory=dict)
    taken: bool = False


SITE: ContextVar[WorkerSite | None] = ContextVar("verl_dispatch_worker_site", default=None)
"""Of the worker that is being built or is running here, so that workers it makes know where they are."""


@contextmanager
def building(site: WorkerSite) -> Iterator[None]:
    """Run a worker's constructor in this context: the first `Worker` made takes the site.

    >>> from verl_dispatch import Worker
    >>> with building(WorkerSite(RankInfo(rank=2, world_size=4))):
    ...     worker = Worker()
    >>> worker.rank, worker.world_size
    (2, 4)
    """
    token = SITE.set(site)
    try:
        yield
    finally:
        SITE.reset(token)


def identity_of_new_worker(site: WorkerSite | None) -> RankInfo:
    """Who a worker is that no backend builds: torchrun's variables, else the worker it is made in."""
    if site is not None and not site.sets_environment:
        return site.rank_info
    try:
        return RankInfo.from_environment()
    except MissingRankVariablesError:
        if site is None:
            raise
        return site.rank_info
