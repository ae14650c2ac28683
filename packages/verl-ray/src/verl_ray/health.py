"""Noticing that a worker died while nobody is calling it: a daemon thread that keeps one tiny call in flight
per worker.

No dashboard and no state API are asked, and nothing is ever killed: what follows from a death is the
callback's business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError

__all__ = ["Death", "Watch"]

_log = logging.getLogger(__name__)


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
        self._workers = workers
        self._on_death = on_death
        self._every_s = every_s
        self._stopped = threading.Event()
        self._handles: Mapping[int, Any] = {}
        self._in_flight: dict[int, Any] = {}
        self._told: set[int] = set()
        self.thread = threading.Thread(target=self._run, name="verl-ray-watch", daemon=True)
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
            except SystemExit:
                # So Ray ends whoever waits for an answer when the process leaves the cluster.
                return
            except Exception:
                # A watch that ends because Ray went away under it must not print a traceback at exit.
                if not ray.is_initialized():
                    return
                _log.exception("looking after the workers failed; the watch goes on")
            self._stopped.wait(self._every_s)

    def _look(self) -> bool:
        current = self._workers()
        if current is None or not ray.is_initialized():
            return False
        generation, handles = current
        if handles != self._handles:
            self._handles, self._in_flight, self._told = handles, {}, set()
        self._ask(handles)
        dead = self._dead()
        # Between asking and now the group may have been shut down or restarted on purpose.
        if dead and self._workers() == current and not self._stopped.is_set():
            self._told |= set(dead)
            self._tell(Death(sorted(dead), dead[min(dead)], generation))
        return True

    def _ask(self, handles: Mapping[int, Any]) -> None:
        for rank, handle in handles.items():
            if rank not in self._in_flight and rank not in self._told:
                self._in_flight[rank] = handle.__ray_ready__.remote()

    def _dead(self) -> dict[int, str]:
        if not self._in_flight:
            return {}
        refs = list(self._in_flight.values())
        done, _ = ray.wait(refs, num_returns=len(refs), timeout=min(1.0, self._every_s))
        answered = {rank: ref for rank, ref in self._in_flight.items() if ref in done}
        dead: dict[int, str] = {}
        for rank, ref in answered.items():
            del self._in_flight[rank]
            try:
                ray.get(ref)
            except RayActorError as error:
                dead[rank] = str(error)
        return dead

    def _tell(self, death: Death) -> None:
        try:
            self._on_death(death)
        except Exception:
            _log.exception("on_death failed for ranks %s", death.ranks)
