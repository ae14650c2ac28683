"""Weights in shards over the ranks, as FSDP2 does it, and whole ones again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


def shard(network: nn.Module, device: torch.device, world_size: int) -> None:
    """Have each rank hold a part of every weight; layers are gathered one at a time as they run.

    Gradients are summed over the ranks, not averaged: the loss of a rank is to be its part of the whole. The
    default process group must be there.
    """
    mesh = init_device_mesh(device.type, (world_size,))
    layers = {
        name for module in network.modules() for name in getattr(module, "_no_split_modules", None) or ()
    }
    for module in [each for each in network.modules() if type(each).__name__ in layers]:
        fully_shard(module, mesh=mesh)
    fully_shard(network, mesh=mesh)
    for module in network.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)


@torch.no_grad()
def whole_weights(network: nn.Module) -> dict[str, Tensor]:
    """Every weight as one tensor on the CPU; where there are shards, all ranks must call it."""
    weights: Mapping[str, Any] = dict(network.named_parameters())
    return {
        name: (weight.full_tensor() if isinstance(weight, DTensor) else weight).detach().cpu()
        for name, weight in weights.items()
    }
