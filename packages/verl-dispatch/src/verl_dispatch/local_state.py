"""What an in-process group and the views spawned from it share: workers, generation, failure."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from typing import Any

from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.local_answer import LocalCall, LocalLife
from verl_dispatch.local_engines import ThreadEngine, TurnEngine
from verl_dispatch.network import free_port
from verl_dispatch.plan import CallPlan
from verl_dispatch.rank_info import RankInfo

__all__ = ["GRACE_S", "LocalState"]

_HOST = "127.0.0.1"
GRACE_S = 1.0


class LocalState:
    """The workers of one group, through all its generations."""

    def __init__(
        self,
        name: str,
        prefix: str,
        cls: type,
        world_size: int,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        concurrent: bool,
    ) -> None:
        self.name, self.prefix = name, prefix
        self.cls, self.args, self.kwargs = cls, args, dict(kwargs)
        self.world_size, self.concurrent = world_size, concurrent
        self.life = LocalLife()
        self.master_port = ""
        self.build_s: list[float] = []
        self._turn = threading.RLock()
        self.closed = False
        self._engine: TurnEngine | ThreadEngine
        self._finalizer: weakref.finalize[..., Any]

    @property
    def master_address(self) -> str:
        """The address where the ranks could meet for torch.distributed."""
        return _HOST

    @property
    def workers(self) -> list[Any]:
        """The users' objects, in rank order."""
        return self._engine.workers()

    def build(self) -> None:
        """Make the workers of this generation.

        Raises:
            WorkerGroupError: a constructor failed; nothing is left running.
        """
        self.master_port = str(free_port(_HOST))
        infos = [self._info(rank) for rank in range(self.world_size)]
        self._engine = ThreadEngine(infos, self.name) if self.concurrent else TurnEngine(infos)
        self._finalizer = weakref.finalize(self, self._engine.close, "the group was collected as garbage")
        self._finalizer.atexit = False
        call = LocalCall(self.life, self.name, "__init__", range(self.world_size))
        try:
            self._engine.build(call, self.cls, self.args, self.kwargs)
            call.wait(None, GRACE_S)
        except BaseException:
            self.close()
            raise
        if call.failed:
            error = call.error(call.failures(), call.silent_ranks())
            self.close()
            raise error
        self.build_s = [answer.seconds for answer in call.answers]

    def _info(self, rank: int) -> RankInfo:
        return RankInfo(
            rank=rank,
            world_size=self.world_size,
            local_rank=rank,
            local_world_size=self.world_size,
            master_addr=_HOST,
            master_port=self.master_port,
            group_prefix=self.prefix,
            backend="local",
        )

    def run(self, call: LocalCall, plan: CallPlan, role: str | None) -> None:
        """Start a call, or run it where ranks take turns."""
        if self.concurrent:
            self._engine.run(call, plan, role)
            return
        with self._turn:
            if self.closed:
                self.refuse(call.name, plan.method)
            try:
                self._engine.run(call, plan, role)
            except BaseException as error:
                silent = call.silent_ranks()
                self.life.break_off(f"an interruption of '{plan.method}' by {type(error).__name__}", silent)
                raise

    def refuse(self, name: str, method: str) -> None:
        """Say why a call on a group that is shut down or broken cannot be.

        Raises:
            WorkerGroupError: it is.
        """
        if self.closed:
            raise WorkerGroupError(name, method, reason="the group was shut down; make a new one")
        if self.life.broken:
            ways = "restart() builds its workers anew, shutdown() ends it"
            raise WorkerGroupError(name, method, reason=f"the group is broken by {self.life.broken}; {ways}")

    def restart(self) -> None:
        """Replace all workers by new ones, made from the same class and arguments."""
        if self.closed:
            self.refuse(self.name, "restart")
        self._engine.close("the group was restarted")
        self._finalizer.detach()
        self.life.generation += 1
        self.life.broken = ""
        self.build()

    def close(self) -> None:
        """End the workers; calls are refused from now on."""
        if not self.closed:
            self.closed = True
            self._finalizer.detach()
            self._engine.close("the group was shut down")

    def report(self) -> dict[str, float | int]:
        """Seconds that the start took, stage by stage, and which rank took longest."""
        slowest = max(range(self.world_size), key=self.build_s.__getitem__)
        init_s = max(self.build_s) if self.concurrent else sum(self.build_s)
        return {"placement_s": 0.0, "actors_s": 0.0, "init_s": init_s, "slowest_rank": slowest}
