"""Ranks that talk to each other by torch.distributed, and how tensors of several ranks become one."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from verl_dispatch.workers.collectives import ProcessGroup, ReduceOp, cannot_meet
from verl_dispatch.workers.rank import host_for_url

if TYPE_CHECKING:
    from verl_dispatch.workers.rank import RankInfo


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
            raise cannot_meet(
                self.rank, "torch.distributed", f"this process already joined another group, as {found}"
            )
        return dist

    def _join(self, dist: Any) -> None:
        info = self._info
        if info.master_addr is None or info.master_port is None:
            raise cannot_meet(self.rank, "torch.distributed", "MASTER_ADDR and MASTER_PORT are not set")
        backend = "cpu:gloo"
        device_index = _device_index(info)
        if device_index is not None:
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(device_index)
        dist.init_process_group(
            backend,
            init_method=f"tcp://{host_for_url(info.master_addr)}:{info.master_port}",
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
