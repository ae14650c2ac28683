"""The workers of one group and the state they are in: shared by the group and by the views of its roles.

The set is starting, usable, broken (a worker died or stayed silent; only a restart helps) or closed. What
the group may do follows from that alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from verl_dispatch.errors import WorkerGroupError, given_to
from verl_dispatch.workers.rank import RankInfo

from verl_ray.calls.failures import began_with, describe_failures, explained, is_gone
from verl_ray.calls.makers import remember, retire
from verl_ray.errors import NodeLost, NotTheOwnerError, StaleFutureError
from verl_ray.group.launch import Launch, LaunchSpec, Places, end
from verl_ray.wire.refs import connection, hear, no_connection
from verl_ray.worker.host import WorkerReport

_log = logging.getLogger(__name__)

# One node may be lost while the workers move away from another.
_RESTART_ATTEMPTS = 3


class WorkerSet:
    """Handles, reports and state of a group's workers.

    Args:
        name: name of the group, for messages.
        spec: how they are started; None for workers that somebody else started.

    Raises:
        ResourceUnavailable: the cluster cannot place the pool, or the pool has no room for another group.
    """

    def __init__(self, name: str, spec: LaunchSpec | None = None) -> None:
        self.name: str = name
        self.grace_s: float = 2.0 if spec is None else spec.grace_s
        self.generation: int = 0
        self.handles: tuple[Any, ...] = ()
        self.names: tuple[str, ...] = ()
        self.watches: list[Watch] = []
        self.owned: bool = spec is not None
        """Whether these workers end with the group here."""
        self._spec = spec
        self._find_spec: Callable[[], LaunchSpec] | None = None
        self._places: Places | None = None if spec is None else spec.find_places()
        self._cluster = connection()
        self._launches = 0
        self._launched: Launch | None = None
        self._times: dict[str, Any] = {}
        self._reports: Sequence[WorkerReport] = ()
        self._unusable = ""
        self._closed = False
        # Held while workers start and end, which takes long; the other one only while the state changes, so
        # that calls which fail meanwhile say so at once. Whoever needs both takes this one first.
        self._lock = threading.RLock()
        self._state = threading.Lock()
        self.sending: threading.Lock = threading.Lock()

    def attachment(self) -> tuple[Any, ...]:
        """What `attached` needs, anywhere in the cluster, for workers of which others then know too."""
        self.check_usable("__reduce__")
        return self.name, self.handles, self.names, self._reports, self.generation

    @property
    def closed(self) -> bool:
        """Whether the set or its pool was shut down, or this process has left the cluster they are on."""
        pool_closed = self._spec is not None and self._spec.pool.closed
        return self._closed or pool_closed or self._left_cluster()

    def _left_cluster(self) -> bool:
        return self._cluster is not None and self._cluster != connection()

    @property
    def world_size(self) -> int:
        """How many workers there are."""
        return len(self._places.slots) if self._places is not None else len(self.handles)

    def rank_info(self, rank: int) -> RankInfo:
        """Who a worker is, as it reports itself."""
        self.ready()
        return self._reports[rank].assignment.rank_info

    def start(self) -> None:
        """Request the workers of this generation; returns at once."""
        with self._lock:
            self._launched = Launch(*self._own(), self._launches)
            self._launches += 1
            self.handles, self.names = tuple(self._launched.handles), self._launched.names
            remember(self, self.handles, self.generation)

    def ready(self) -> None:
        """Wait until the workers are up, if they are not.

        Raises:
            WorkerGroupError: a worker could not start; the set is closed then.
            StartTimeout: not all were ready in time; likewise.
        """
        if self._launched is None:
            return
        with self._lock:
            try:
                self._await_launch()
            except BaseException:
                self.close()
                raise

    def _await_launch(self) -> None:
        # Another thread may have waited meanwhile.
        if self._launched is None:
            return
        try:
            reports = self._launched.reports()
        except WorkerGroupError:
            if ended := self._ended(self.generation):
                raise WorkerGroupError(self.name, "__init__", reason=ended) from None
            raise
        self._times = self._launched.times(reports)
        self._reports, self._launched = reports, None

    def startup_times(self) -> dict[str, Any]:
        """Seconds that each stage of the start took; empty for workers that somebody else started."""
        self.ready()
        return dict(self._times)

    def check_usable(self, method: str) -> None:
        """Refuse calls that cannot be answered.

        Raises:
            WorkerGroupError: the set was shut down, or is broken.
        """
        self._refuse_if_closed(method)
        self.ready()
        if self._unusable:
            raise self._refusal(method, self._unusable)

    def _refusal(self, method: str, why: str) -> WorkerGroupError:
        return WorkerGroupError(self.name, method, reason=f"refused, because {why}")

    def check_generation(self, method: str, generation: int) -> None:
        """Refuse what an earlier generation made.

        Raises:
            StaleFutureError: the workers were restarted since.
        """
        if generation != self.generation:
            raise StaleFutureError(
                self.name,
                method,
                reason=f"this future was made by generation {generation} of the workers; the group was "
                f"restarted since (generation {self.generation}), so its result is refused: call the "
                "method again",
            )

    def mark_broken(self, method: str, ranks: Sequence[int], generation: int) -> None:
        """Remember a failure that leaves the workers of this generation useless; the first one counts."""
        with self._state:
            if not self._unusable and generation == self.generation:
                where = f" on rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else ""
                self._unusable = self._broken_by(f"{method!r}{where}")

    def _broken_by(self, failure: str) -> str:
        way = "it was attached to: whoever started the workers restarts them, then attach anew"
        if self.owned or self._find_spec is not None:
            way = "call restart() or shutdown()"
        return f"the group is broken by an earlier failure in {failure}; {way}"

    def failure(
        self, method: str, errors: Mapping[int, BaseException], silent: Collection[int], generation: int
    ) -> BaseException:
        """The error of a call that failed on some ranks, while others did not answer within `grace_s`.

        It breaks the set where a rank is gone, or silent.
        """
        gone = [is_gone(error) for error in errors.values()]
        if all(gone) and (ended := self._ended(generation)):
            return WorkerGroupError(self.name, method, reason=ended)
        if silent or any(gone):
            self.mark_broken(method, sorted(errors), generation)
        elsewhere = [
            found
            for rank, error in errors.items()
            if (found := began_with(error))
            and (found[0].workers, found[0].rank, found[0].method) != (self, rank, method)
        ]
        if elsewhere and len(elsewhere) == len(errors):
            return given_to(explained(dict(elsewhere)), method, self.name)
        return WorkerGroupError(self.name, method, describe_failures(errors, self._reports), sorted(silent))

    def _ended(self, generation: int) -> str:
        """Who has ended the workers of this generation, if somebody has."""
        if generation != self.generation:
            return (
                f"restart() ended the workers (generation {generation}) before they had answered; call again"
            )
        if self._left_cluster():
            return "this process left the workers' Ray cluster before they had answered"
        if self.closed:
            return "shutdown() of the group or its pool ended the workers before they had answered"
        return ""

    def restart(self) -> None:
        """End all workers and start them anew as the next generation: on the same slots, or on others where
        a node was lost.

        The set stays broken if that fails, and may be restarted again.

        Raises:
            NotTheOwnerError: somebody else started the workers, and restarts them.
            WorkerGroupError: the group or its pool was shut down, or a worker could not start.
            ResourceUnavailable: a node was lost, and there is no room for its workers elsewhere.
        """
        with self._lock:
            # First, as whoever has let go of the workers shall take no place on their pool.
            self._refuse_if_closed("restart")
            self._own()
            retire(self.handles)
            with self._state:
                self._unusable = "restart() is still bringing up new workers; call again once it returns"
                self.generation += 1
            try:
                self._start_anew()
                self._unusable = ""
            except BaseException:
                self._unusable = self._broken_by("'restart'")
                self._dismiss()
                raise

    def _start_anew(self) -> None:
        for attempt in range(1, _RESTART_ATTEMPTS + 1):
            self._dismiss()
            spec, places = self._own()
            if places.share.released or spec.pool.lost_nodes():
                places.share.release()
                self._places = spec.find_places()
            try:
                self.start()
                self._await_launch()
                return
            except NodeLost:
                if attempt == _RESTART_ATTEMPTS:
                    raise

    def _dismiss(self) -> None:
        """End the workers, and nothing else."""
        handles, self.handles, self._launched = self.handles, (), None
        # Workers of a cluster that this process has left ended with it, or are out of reach.
        if not self._left_cluster():
            end(handles)

    def check_connected(self, method: str) -> None:
        """Refuse to ask Ray for answers where that would start or join another cluster.

        Raises:
            WorkerGroupError: this process has left the workers' cluster.
        """
        if self._left_cluster():
            raise self._refusal(method, no_connection())

    def _refuse_if_closed(self, method: str) -> None:
        if self.closed:
            self.check_connected(method)
            raise self._refusal(method, "the group or its pool was shut down")

    def close(self) -> None:
        """End the workers that were started here and give the place on the pool back. Safe to call twice."""
        try:
            with self._lock:
                self._closed = True
                if not self.owned:
                    self.handles = ()
                self._dismiss()
            for watch in self.watches:
                watch.stop()
        finally:
            if self._places is not None:
                self._places.share.release()

    def _own(self) -> tuple[LaunchSpec, Places]:
        if self._spec is None:
            if self._find_spec is None:
                raise NotTheOwnerError(
                    f"restart() on group {self.name!r}: it was attached to; restart it where it was started, "
                    "or, once the driver of detached workers has ended, attach with "
                    "from_detached(worker_names=...)"
                )
            self._spec = self._find_spec()
        if self._places is None:
            self._places = self._spec.find_places()
        return self._spec, self._places


def attached(
    name: str,
    handles: Sequence[Any],
    names: Sequence[str],
    reports: Sequence[WorkerReport],
    generation: int = 0,
    find_spec: Callable[[], LaunchSpec] | None = None,
) -> WorkerSet:
    """Workers that somebody else started; with `find_spec`, they may be restarted here."""
    found = WorkerSet(name)
    found._find_spec = find_spec
    found._launches = 1 + max((report.assignment.launch for report in reports), default=0)
    found.handles, found.names, found._reports = tuple(handles), tuple(names), reports
    found.generation = generation
    remember(found, handles, generation)
    return found


# --- Noticing that a worker died while nobody is calling it ------------------------------------------------
# A daemon thread keeps one tiny call in flight per worker. No dashboard and no state API are asked, and
# nothing is ever killed: what follows from a death is the callback's business.


@dataclass(frozen=True)
class Death:
    """Workers that were found dead.

    Attributes:
        ranks: the ranks that died, sorted.
        cause: what Ray says about the first of them.
        generation: the group's generation in which they died.
    """

    ranks: list[int]
    cause: str
    generation: int


class Watch:
    """Watches a group until `stop()`, the group's shutdown, or the group is gone; each death is told once.

    Args:
        workers: gives the group's generation and its living handles by rank, or None once there is nothing
            to watch.
        on_death: called in the watching thread with a `Death`.
        every_s: seconds between two looks.
    """

    def __init__(
        self,
        workers: Callable[[], tuple[int, Mapping[int, Any]] | None],
        on_death: Callable[[Death], object],
        every_s: float,
    ) -> None:
        self._workers, self._on_death, self._every_s = workers, on_death, every_s
        self._stopped = threading.Event()
        self._handles: Mapping[int, Any] = {}
        self._asked: set[int] = set()
        self._dead: dict[int, str] = {}
        self.thread: threading.Thread = threading.Thread(target=self._run, name="verl-ray-watch", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the watch; safe to call twice, and from the callback."""
        self._stopped.set()
        if self.thread is not threading.current_thread():
            self.thread.join(timeout=10.0)

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._look():
                    return
            except Exception:
                # A watch that ends because Ray went away under it must not print a traceback at exit.
                if connection() is None:
                    return
                _log.exception("looking after the workers failed; the watch goes on")
            self._stopped.wait(self._every_s)

    def _look(self) -> bool:
        """Tell of those that died, and ask the others; whether there is somebody to watch."""
        current = self._workers()
        if current is None or connection() is None:
            return False
        generation, handles = current
        if handles != self._handles:
            self._handles, self._asked, self._dead = handles, set(), {}
        for rank in handles.keys() - self._asked:
            self._asked.add(rank)
            hear(handles[rank].__ray_ready__.remote(), partial(self._heard, self._asked, self._dead, rank))
        # Whoever is dead stays asked, so that it is told once.
        dead = {rank: self._dead.pop(rank) for rank in sorted(self._dead)}
        # Meanwhile the group may have been shut down or restarted on purpose.
        if dead and self._workers() == current and not self._stopped.is_set():
            try:
                self._on_death(Death(list(dead), next(iter(dead.values())), generation))
            except Exception:
                _log.exception("on_death failed for ranks %s", list(dead))
        return True

    @staticmethod
    def _heard(asked: set[int], dead: dict[int, str], rank: int, _: Any, error: BaseException | None) -> None:
        if error is not None and is_gone(error):
            dead[rank] = str(error)
        else:
            asked.discard(rank)
