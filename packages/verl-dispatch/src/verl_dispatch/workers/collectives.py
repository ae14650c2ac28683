"""How the ranks of one group talk to each other: torch.distributed, threads, or not at all."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Literal, get_args

from verl_protocol.errors import InvalidValueError
from verl_protocol.kinds import is_tensor

from verl_dispatch.errors import CollectiveError

if TYPE_CHECKING:
    import torch


ReduceOp = Literal["sum", "mean", "max", "min", "product"]
_OPS: tuple[str, ...] = get_args(ReduceOp)


def cannot_meet(rank: int, collective: str, reason: str) -> CollectiveError:
    """The error about ranks that cannot meet where this collective was called."""
    return CollectiveError(f"{collective} on rank {rank} cannot meet the other ranks: {reason}")


def _bad_argument(argument: str, given: object, expected: str) -> InvalidValueError:
    return InvalidValueError(f"{argument}={given!r}, expected {expected}")


class ProcessGroup(ABC):
    """Collectives over all ranks of one group; every rank must call them in the same order.

    Attributes:
        rank: this worker's rank, 0 to `world_size - 1`.
        world_size: how many ranks take part.
    """

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank: int = rank
        self.world_size: int = world_size

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> torch.Tensor:
        """Reduce `tensor` over the ranks, in place, and return it.

        Raises:
            InvalidValueError: no tensor, or `op` is none of sum, mean, max, min, product.
        """
        _check_tensor(tensor)
        if op not in _OPS:
            raise _bad_argument("op", op, f"one of {', '.join(_OPS)}")
        if self.world_size > 1:
            self._all_reduce(tensor, op)
        return tensor

    def all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """Every rank's `tensor`, in rank order; shapes must agree. The results are copies."""
        _check_tensor(tensor)
        if self.world_size == 1:
            return [tensor.detach().clone()]
        return self._all_gather(tensor)

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's `value`, in rank order, as copies; anything that can be pickled."""
        if self.world_size == 1:
            return [pickle.loads(pickle.dumps(value, protocol=5))]
        return self._all_gather_object(value)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrite `tensor` with that of rank `source`, in place, and return it."""
        _check_tensor(tensor)
        if source not in range(self.world_size):
            raise _bad_argument("source", source, f"a rank, 0 to {self.world_size - 1}")
        if self.world_size > 1:
            self._broadcast(tensor, source)
        return tensor

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            self._barrier()

    def destroy(self) -> None:
        """Give back what the group holds; the next collective would set it up again."""
        return

    @abstractmethod
    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None: ...

    @abstractmethod
    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]: ...

    @abstractmethod
    def _all_gather_object(self, value: Any) -> list[Any]: ...

    @abstractmethod
    def _broadcast(self, tensor: torch.Tensor, source: int) -> None: ...

    @abstractmethod
    def _barrier(self) -> None: ...


def _check_tensor(value: object) -> None:
    if not is_tensor(value):
        raise _bad_argument("tensor", value, "a tensor; all_gather_object takes anything")
