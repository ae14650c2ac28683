"""Who a worker is: its rank and its group, as the backend says or as torchrun's variables say."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from typing import Any

from verl_protocol.errors import PortableError

from verl_dispatch.process_group import ProcessGroup, by_torch

__all__ = [
    "InvalidRankVariableError",
    "MissingRankVariablesError",
    "RankInfo",
    "WorkerSite",
    "building",
    "current_site",
    "identity_of_new_worker",
]


class MissingRankVariablesError(PortableError, KeyError):
    """A worker was made outside a group and the environment does not say which rank it is."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        self.missing = missing
        super().__init__(
            f"cannot tell the rank of this worker: {' and '.join(self.missing)} not set in the environment; "
            "build the worker through a worker group, start the program with torchrun, "
            "or set RANK and WORLD_SIZE"
        )


class InvalidRankVariableError(PortableError, ValueError):
    """One of torchrun's variables does not hold a usable number."""

    def __init__(self, name: str, value: object, expected: str) -> None:
        self.name, self.value, self.expected = name, value, expected
        super().__init__(f"{name} is {value!r}, expected {expected}")


@dataclass(frozen=True)
class RankInfo:
    """What one worker of a group knows about its place in it.

    `local_rank` counts workers on the node; `device_index` is the index of the accelerator among those
    the process can see, None on CPU. The two are different numbers.

    >>> RankInfo(rank=1, world_size=2, local_rank=1, local_world_size=2).environment()["LOCAL_RANK"]
    '1'
    """

    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str | None = None
    master_port: str | None = None
    group_prefix: str = ""
    backend: str = ""
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise InvalidRankVariableError("world_size", self.world_size, "at least 1")
        if not 0 <= self.rank < self.world_size:
            raise InvalidRankVariableError("rank", self.rank, f"0 to {self.world_size - 1}")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> RankInfo:
        """Read the variables that torchrun sets.

        Raises:
            MissingRankVariablesError: RANK or WORLD_SIZE is not set.
            InvalidRankVariableError: a variable is no whole number, or the rank is outside the world.
        """
        env = os.environ if environ is None else environ
        missing = tuple(name for name in ("RANK", "WORLD_SIZE") if name not in env)
        if missing:
            raise MissingRankVariablesError(missing)
        return cls(
            rank=_whole_number(env, "RANK"),
            world_size=_whole_number(env, "WORLD_SIZE"),
            local_rank=_whole_number(env, "LOCAL_RANK", "0"),
            local_world_size=_whole_number(env, "LOCAL_WORLD_SIZE", "1"),
            master_addr=env.get("MASTER_ADDR"),
            master_port=env.get("MASTER_PORT"),
            group_prefix=env.get("WG_PREFIX", ""),
            backend=env.get("WG_BACKEND", ""),
        )

    def same_rank(self, other: RankInfo) -> bool:
        """Whether both are the same rank of an equally large group."""
        return (self.rank, self.world_size) == (other.rank, other.world_size)

    def environment(self) -> dict[str, str]:
        """The environment variables that say the same as this object."""
        variables = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "RAY_LOCAL_WORLD_SIZE": str(self.local_world_size),
            "WG_PREFIX": self.group_prefix,
            "WG_BACKEND": self.backend,
        }
        if self.master_addr is not None and self.master_port is not None:
            variables |= {"MASTER_ADDR": self.master_addr, "MASTER_PORT": self.master_port}
        return variables


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


_SITE: ContextVar[WorkerSite | None] = ContextVar("verl_dispatch_worker_site", default=None)


def current_site() -> WorkerSite | None:
    """The site of the worker that is being built or is running here, if a backend set one."""
    return _SITE.get()


@contextmanager
def building(
    rank_info: RankInfo,
    make_process_group: Callable[[RankInfo], ProcessGroup] = by_torch,
    *,
    sets_environment: bool = True,
    fused_workers: dict[str, Any] | None = None,
) -> Iterator[WorkerSite]:
    """Run a worker's constructor in this context: the first `Worker` made takes `rank_info`.

    >>> from verl_dispatch import Worker
    >>> with building(RankInfo(rank=2, world_size=4)):
    ...     worker = Worker()
    >>> worker.rank, worker.world_size
    (2, 4)
    """
    siblings = {} if fused_workers is None else fused_workers
    site = WorkerSite(rank_info, make_process_group, sets_environment, siblings)
    token = _SITE.set(site)
    try:
        yield site
    finally:
        _SITE.reset(token)


def enter_site(site: WorkerSite) -> Token[WorkerSite | None]:
    """Say that a method of the worker at this site runs now, so that workers it makes know where they are."""
    return _SITE.set(site)


def leave_site(token: Token[WorkerSite | None]) -> None:
    """Undo `enter_site`."""
    _SITE.reset(token)


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


def _whole_number(env: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = env[name] if default is None else env.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise InvalidRankVariableError(name, text, "a whole number") from None
