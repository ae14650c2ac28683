"""The workers of one group and the state they are in: shared by the group and by the views of its roles.

A crew is starting, usable, broken (a worker died or stayed silent; only a restart helps) or closed. What the
group may do follows from that alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.rank_info import RankInfo

from verl_ray.failures import Survey, describe_failures
from verl_ray.group_errors import NotTheOwnerError, StaleFutureError
from verl_ray.health import Watch
from verl_ray.host import WorkerReport
from verl_ray.launch import Launched, LaunchSpec, Started, await_start, kill, launch
from verl_ray.shares import Share

__all__ = ["Breakage", "Crew"]


@dataclass(frozen=True)
class Breakage:
    """The failure after which a crew refuses calls."""

    method: str
    ranks: tuple[int, ...]

    def __str__(self) -> str:
        ranks = ("rank " if len(self.ranks) == 1 else "ranks ") + ", ".join(map(str, self.ranks))
        return f"broken by an earlier failure in {self.method!r} on {ranks}; call restart() or shutdown()"


class Crew:
    """Handles, reports and state of a group's workers.

    Args:
        name: name of the group, for messages.
        spec: how to start the workers; None for workers that somebody else started.
        share: the group's place on its pool, given back on close.
        pool_closed: whether the pool under the workers was shut down.
        grace_s: seconds that other ranks get to answer after a first one failed.
    """

    def __init__(
        self,
        name: str,
        spec: LaunchSpec | None = None,
        share: Share | None = None,
        pool_closed: Callable[[], bool] = lambda: False,
        grace_s: float = 2.0,
    ) -> None:
        self.name, self.grace_s = name, grace_s
        self.generation = 0
        self.placement_s = 0.0
        self.handles: tuple[Any, ...] = ()
        self.names: tuple[str, ...] = ()
        self.watches: list[Watch] = []
        self._spec, self._share, self._pool_closed = spec, share, pool_closed
        self._launched: Launched | None = None
        self._started: Started | None = None
        self._reports: Mapping[int, WorkerReport] = {}
        self._broken: Breakage | None = None
        self._closed = False
        self._lock = threading.RLock()

    @classmethod
    def attached(
        cls, name: str, handles: Sequence[Any], names: Sequence[str], reports: Sequence[WorkerReport]
    ) -> Crew:
        """A crew of workers that somebody else started and will end."""
        crew = cls(name)
        crew.handles, crew.names, crew._reports = tuple(handles), tuple(names), dict(enumerate(reports))
        return crew

    @property
    def closed(self) -> bool:
        """Whether the crew was shut down, or its pool was."""
        return self._closed or self._pool_closed()

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return self._spec.world_size if self._spec is not None else len(self.handles)

    def rank_info(self, rank: int) -> RankInfo:
        """Who a worker is, as it reports itself."""
        self.ready()
        return self._reports[rank].rank_info

    @property
    def owned(self) -> bool:
        """Whether this crew started its workers."""
        return self._spec is not None

    def start(self) -> None:
        """Request the workers of this generation; returns at once."""
        with self._lock:
            spec = self._startable()
            self._launched = launch(spec, self.generation)
            self.handles, self.names = self._launched.handles, self._launched.names

    def ready(self) -> None:
        """Wait until the workers are up, if they are not.

        Raises:
            WorkerGroupError: a worker could not start; the crew is closed then.
            StartTimeout: not all were ready in time; likewise.
        """
        if self._launched is not None:
            with self._lock:
                self._await_launch()

    def _await_launch(self) -> None:
        spec, launched = self._spec, self._launched
        # Another thread may have waited meanwhile.
        if spec is None or launched is None:
            return
        try:
            self._started = await_start(spec, launched)
        except BaseException:
            self.close()
            raise
        self._reports, self._launched = self._started.reports, None

    def started(self) -> Started | None:
        """How the start went; None for workers that somebody else started."""
        self.ready()
        return self._started

    def check_usable(self, method: str) -> None:
        """Refuse calls that cannot be answered.

        Raises:
            WorkerGroupError: the crew was shut down, or is broken.
        """
        if self._broken is None and self._launched is None and not self._closed and not self._pool_closed():
            return
        if self.closed:
            raise WorkerGroupError(
                self.name, method, reason="refused, because the group or its pool was shut down"
            )
        self.ready()
        if self._broken is not None:
            raise WorkerGroupError(self.name, method, reason=f"refused, because the group is {self._broken}")

    def check_generation(self, method: str, generation: int) -> None:
        """Refuse what an earlier generation made.

        Raises:
            StaleFutureError: the workers were restarted since.
        """
        if generation != self.generation:
            raise StaleFutureError(self.name, method, generation, self.generation)

    def mark_broken(self, method: str, ranks: Sequence[int], generation: int | None = None) -> None:
        """Remember a failure that leaves the workers useless; the first one counts."""
        with self._lock:
            if self._broken is None and generation in (None, self.generation):
                self._broken = Breakage(method, tuple(ranks))

    def failure(self, method: str, ranks: Sequence[int], found: Survey, generation: int) -> WorkerGroupError:
        """The error for what a survey of these ranks found; breaks the crew where that leaves it useless."""
        errors = {ranks[index]: error for index, error in found.errors.items()}
        silent = [ranks[index] for index in found.silent]
        if not found.leaves_group_usable:
            self.mark_broken(method, sorted(errors) or silent, generation)
        return WorkerGroupError(self.name, method, describe_failures(errors, self._reports), silent)

    def restart(self) -> None:
        """End all workers and start them anew on the same slots, as the next generation.

        Raises:
            NotTheOwnerError: somebody else started the workers.
            WorkerGroupError: the group or its pool was shut down, or a worker could not start.
        """
        with self._lock:
            self._startable()
            if self.closed:
                raise WorkerGroupError(
                    self.name, "restart", reason="refused, because the group or its pool was shut down"
                )
            kill(self.handles)
            self.handles, self._launched, self._broken = (), None, None
            self.generation += 1
            self.start()
            self.ready()

    def close(self) -> None:
        """End the workers that this crew started and give the place on the pool back. Safe to call twice."""
        with self._lock:
            was_open, self._closed = not self._closed, True
            handles, self.handles, self._launched = self.handles, (), None
        for watch in self.watches:
            watch.stop()
        if was_open and self.owned:
            kill(handles)
        if self._share is not None:
            self._share.release()

    def _startable(self) -> LaunchSpec:
        if self._spec is None:
            raise NotTheOwnerError(
                self.name, "restart", "it was attached to; restart it where it was started"
            )
        return self._spec
