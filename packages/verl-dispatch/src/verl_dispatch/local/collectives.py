"""Where the ranks of an in-process group meet, each in a thread of its own."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from verl_dispatch.errors import CollectiveError
from verl_dispatch.workers.collectives import ProcessGroup, ReduceOp, cannot_meet
from verl_dispatch.workers.torch_collectives import reduce_in_rank_order

Step: TypeAlias = tuple[Hashable, ...]
"""A collective by its name, and what all ranks must agree about."""


class Rendezvous:
    """Where all ranks meet during one call; a rank that cannot come any more ends the wait of the others."""

    def __init__(self, world_size: int, method: str, present: Iterable[int]) -> None:
        self._world_size = world_size
        self._method = method
        self._condition = threading.Condition()
        self._waiting: dict[int, Any] = {}
        self._step: Step = ("nothing",)
        self._round = 0
        self._result: Any = None
        self._broken: str | None = None
        self._gone = {
            rank: f"rank {rank} was not called" for rank in set(range(world_size)).difference(present)
        }

    def exchange(self, rank: int, step: Step, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        """Wait for every rank to call this with an equal `step`; all get `combine(values in rank order)`.

        Raises:
            CollectiveError: a rank failed, returned, was not called, or does another step.
        """
        with self._condition:
            self._check(rank, step)
            this_round = self._round
            self._waiting[rank] = value
            self._step = step
            if len(self._waiting) == self._world_size:
                self._finish(combine)
            while self._round == this_round and self._broken is None:
                self._condition.wait()
            if self._round == this_round:
                raise CollectiveError(self._broken)
            return self._result

    def leave(self, rank: int, error: BaseException | None = None) -> None:
        """Say that `rank` comes to no further meeting of this call; those who wait for it fail."""
        how = (
            "returned without joining it" if error is None else f"failed with {type(error).__name__}: {error}"
        )
        with self._condition:
            self._gone[rank] = f"rank {rank} {how}"
            if self._waiting:
                self._break(f"{self._step[0]} in '{self._method}' cannot be finished: {self._gone[rank]}")

    def abort(self, reason: str) -> None:
        """End every wait, now and later."""
        with self._condition:
            self._break(f"'{self._method}' was given up: {reason}")

    def _check(self, rank: int, step: Step) -> None:
        if self._broken is None and self._gone:
            gone = "; ".join(self._gone[other] for other in sorted(self._gone))
            self._break(f"{step[0]} in '{self._method}' cannot be finished: {gone}")
        if self._broken is None and self._waiting and step != self._step:
            others = ", ".join(str(other) for other in sorted(self._waiting))
            self._break(
                f"ranks of '{self._method}' are out of step: "
                f"rank {rank} calls {step}, rank {others} waits in {self._step}"
            )
        if self._broken is not None:
            raise CollectiveError(self._broken)

    def _finish(self, combine: Callable[[list[Any]], Any]) -> None:
        try:
            self._result = combine([self._waiting[rank] for rank in range(self._world_size)])
        except Exception as error:
            self._break(f"{self._step[0]} in '{self._method}' failed: {error}")
            return
        self._waiting = {}
        self._round += 1
        self._condition.notify_all()

    def _break(self, reason: str) -> None:
        self._broken = self._broken or reason
        self._condition.notify_all()


@dataclass(slots=True)
class Seat:
    """What a rank and its process groups share.

    Attributes:
        lonely: why the rank meets nobody where there is no rendezvous.
        rendezvous: that of the call that runs now, if the ranks run at the same time.
    """

    lonely: str = "no call of the group is running"
    rendezvous: Rendezvous | None = None


class LocalProcessGroup(ProcessGroup):
    """The process group of a rank in this process: meets the others at the rendezvous of the current call."""

    def __init__(self, rank: int, world_size: int, seat: Seat) -> None:
        super().__init__(rank, world_size)
        self._seat = seat

    def _meet(self, step: Step, value: Any, combine: Callable[[list[Any]], Any]) -> Any:
        rendezvous = self._seat.rendezvous
        if rendezvous is None:
            raise cannot_meet(self.rank, str(step[0]), self._seat.lonely)
        return rendezvous.exchange(self.rank, step, value, combine)

    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        # Nobody goes on before the parts are combined, so they are read where they are.
        step = ("all_reduce", op, *_form(tensor))
        total = self._meet(step, tensor.detach(), lambda parts: reduce_in_rank_order(parts, op))
        tensor.detach().copy_(total)

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        parts = self._meet(("all_gather", *_form(tensor)), tensor.detach(), _cloned)
        return _cloned(parts)

    def _all_gather_object(self, value: Any) -> list[Any]:
        # Pickled by its owner, who alone may look at it while the others go on.
        parts = self._meet(("all_gather_object",), pickle.dumps(value, protocol=5), list)
        return [pickle.loads(part) for part in parts]

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        step = ("broadcast", source, *_form(tensor))
        tensor.detach().copy_(self._meet(step, tensor.detach(), lambda parts: parts[source].clone()))

    def _barrier(self) -> None:
        self._meet(("barrier",), None, lambda _: None)


def _form(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    return tuple(tensor.shape), str(tensor.dtype)


def _cloned(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in tensors]
