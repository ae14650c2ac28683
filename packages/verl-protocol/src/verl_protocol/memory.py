"""Memory for large results, in pages so large that touching it for the first time costs next to nothing.

torch asks the system for fresh memory for every large result, and the system maps it page by page of 4 KiB
as it is written, which takes longer than copying the bytes. numpy asks for huge pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

LARGE_BYTES = 32 * 2**20
"""Below this the memory of earlier results is used again; above it malloc always asks the system."""


def large_result(model: torch.Tensor, shape: Sequence[int]) -> torch.Tensor | None:
    """Unset memory for a large result of this shape on the CPU; None where torch does better itself."""
    size = math.prod(shape) * model.element_size()
    if size < LARGE_BYTES or model.device.type != "cpu" or model.requires_grad:
        return None
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).view(model.dtype).view(*shape)
