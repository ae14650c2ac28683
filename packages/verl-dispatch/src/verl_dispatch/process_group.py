"""How the ranks of one group talk to each other: torch.distributed, threads, or not at all."""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal

import torch

from verl_dispatch.errors import _Facts

if TYPE_CHECKING:
    from verl_dispatch.rank_info import RankInfo

__all__ = [
    "CollectiveError",
    "CollectiveNotPossibleError",
    "InvalidCollectiveError",
    "LonelyProcessGroup",
    "ProcessGroup",
    "ReduceOp",
    "TorchProcessGroup",
    "reduce_in_rank_order",
]

ReduceOp = Literal["sum", "mean", "max", "min", "product"]
_OPS: tuple[str, ...] = ("sum", "mean", "max", "min", "product")


class CollectiveError(RuntimeError):
    """A collective could not be finished because another rank failed, left, or did something else."""


class CollectiveNotPossibleError(_Facts, RuntimeError):
    """The ranks of this group cannot meet where this collective was called."""

    def __init__(self, rank: int, collective: str, reason: str) -> None:
        self.rank, self.collective, self.reason = rank, collective, reason
        super().__init__(f"{collective} on rank {rank} cannot meet the other ranks: {reason}")


class InvalidCollectiveError(_Facts, ValueError):
    """An argument of a collective is not usable."""

    def __init__(self, argument: str, given: object, expected: str) -> None:
        self.argument, self.given, self.expected = argument, given, expected
        super().__init__(f"{argument}={given!r}, expected {expected}")


class ProcessGroup(ABC):
    """Collectives over all ranks of one group; every rank must call them in the same order."""

    def __init__(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size

    @property
    def rank(self) -> int:
        """This worker's rank, 0 to `world_size - 1`."""
        return self._rank

    @property
    def world_size(self) -> int:
        """How many ranks take part."""
        return self._world_size

    def all_reduce(self, tensor: torch.Tensor, op: ReduceOp = "sum") -> torch.Tensor:
        """Reduce `tensor` over the ranks, in place, and return it.

        Raises:
            InvalidCollectiveError: no tensor, or `op` is none of sum, mean, max, min, product.
        """
        _check_tensor(tensor)
        if op not in _OPS:
            raise InvalidCollectiveError("op", op, f"one of {', '.join(_OPS)}")
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
        return [_copy_of(value)] if self.world_size == 1 else self._all_gather_object(value)

    def broadcast(self, tensor: torch.Tensor, source: int = 0) -> torch.Tensor:
        """Overwrite `tensor` with that of rank `source`, in place, and return it."""
        _check_tensor(tensor)
        if source not in range(self.world_size):
            raise InvalidCollectiveError("source", source, f"a rank, 0 to {self.world_size - 1}")
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


class LonelyProcessGroup(ProcessGroup):
    """The group of a rank that runs alone: with more than one rank every collective raises."""

    def __init__(self, rank: int, world_size: int, reason: str) -> None:
        super().__init__(rank, world_size)
        self._reason = reason

    def _refuse(self, collective: str) -> CollectiveNotPossibleError:
        return CollectiveNotPossibleError(self.rank, collective, self._reason)

    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        raise self._refuse("all_reduce")

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        raise self._refuse("all_gather")

    def _all_gather_object(self, value: Any) -> list[Any]:
        raise self._refuse("all_gather_object")

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        raise self._refuse("broadcast")

    def _barrier(self) -> None:
        raise self._refuse("barrier")


class TorchProcessGroup(ProcessGroup):
    """torch.distributed over the address the group provides; joined at the first collective.

    Uses gloo on CPU and nccl on GPU. A default process group that the program has already initialised
    is used as it is, and then never destroyed from here.
    """

    def __init__(self, rank_info: RankInfo, timeout_s: float = 1800.0) -> None:
        super().__init__(rank_info.rank, rank_info.world_size)
        self._info = rank_info
        self._timeout_s = timeout_s
        self._owned = False

    def destroy(self) -> None:
        """Leave the process group if this object joined it."""
        import torch.distributed as dist

        if self._owned and dist.is_initialized():
            dist.destroy_process_group()
        self._owned = False

    def _distributed(self) -> Any:
        import torch.distributed as dist

        if not dist.is_initialized():
            self._join(dist)
        elif (dist.get_rank(), dist.get_world_size()) != (self.rank, self.world_size):
            found = f"rank {dist.get_rank()} of {dist.get_world_size()}"
            raise CollectiveNotPossibleError(
                self.rank, "torch.distributed", f"this process already joined another group, as {found}"
            )
        return dist

    def _join(self, dist: Any) -> None:
        info = self._info
        if info.master_addr is None or info.master_port is None:
            raise CollectiveNotPossibleError(
                self.rank, "torch.distributed", "MASTER_ADDR and MASTER_PORT are not set"
            )
        backend = "cpu:gloo"
        device_index = _device_index(info)
        if device_index is not None:
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device_index)
        dist.init_process_group(
            backend,
            init_method=f"tcp://{_url_host(info.master_addr)}:{info.master_port}",
            rank=self.rank,
            world_size=self.world_size,
            timeout=timedelta(seconds=self._timeout_s),
        )
        self._owned = True

    def _all_reduce(self, tensor: torch.Tensor, op: ReduceOp) -> None:
        dist = self._distributed()
        # gloo has no mean of its own.
        name = "SUM" if op == "mean" else op.upper()
        packed = tensor.detach().contiguous()
        dist.all_reduce(packed, op=getattr(dist.ReduceOp, name))
        _overwrite(tensor, packed)
        if op == "mean":
            _divide_in_place(tensor, self.world_size)

    def _all_gather(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        dist = self._distributed()
        source = tensor.detach().contiguous()
        outputs = [torch.empty_like(source) for _ in range(self.world_size)]
        dist.all_gather(outputs, source)
        return outputs

    def _all_gather_object(self, value: Any) -> list[Any]:
        outputs: list[Any] = [None] * self.world_size
        self._distributed().all_gather_object(outputs, value)
        return outputs

    def _broadcast(self, tensor: torch.Tensor, source: int) -> None:
        packed = tensor.detach().contiguous()
        self._distributed().broadcast(packed, src=source)
        _overwrite(tensor, packed)

    def _barrier(self) -> None:
        # dist.barrier would pick the GPU where there is one, and ranks may share it.
        self._distributed().all_reduce(torch.zeros(1))


def _check_tensor(value: object) -> None:
    if not isinstance(value, torch.Tensor):
        raise InvalidCollectiveError("tensor", value, "a tensor; all_gather_object takes anything")


def reduce_in_rank_order(parts: list[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """A fresh tensor: `parts` reduced from first to last, so the same parts give the same bits."""
    total = parts[0].clone()
    for part in parts[1:]:
        if op in ("sum", "mean"):
            total += part
        elif op == "product":
            total *= part
        else:
            combine = torch.maximum if op == "max" else torch.minimum
            combine(total, part, out=total)
    if op == "mean":
        _divide_in_place(total, len(parts))
    return total


def _overwrite(tensor: torch.Tensor, result: torch.Tensor) -> None:
    if tensor.data_ptr() != result.data_ptr():
        tensor.detach().copy_(result)


def _divide_in_place(tensor: torch.Tensor, divisor: int) -> None:
    tensor = tensor.detach()
    if tensor.is_floating_point() or tensor.is_complex():
        tensor.div_(divisor)
    else:
        tensor.div_(divisor, rounding_mode="floor")


def _device_index(info: RankInfo) -> int | None:
    """The GPU of this rank; None on CPU, and in a group whose backend gave the rank none."""
    if info.device_index is not None or not torch.cuda.is_available():
        return info.device_index
    return None if info.backend else info.local_rank % torch.cuda.device_count()


def _copy_of(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value, protocol=5))


def _url_host(host: str) -> str:
    bare = host.strip("[]")
    return f"[{bare}]" if ":" in bare else bare
