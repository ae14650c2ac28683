"""Row operations on dense tensors of any dtype, each of which copies every byte once.

Large results are copied by torch on all its threads. Those of a few MiB are copied by numpy on one: torch's
threads wait for each other, and in a driver whose workers keep the cores busy that takes 16 to 64 ms for
what one thread does in less than one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

LARGE_BYTES = 32 * 2**20
"""Below this the memory of earlier results is used again; above it malloc always asks the system."""

# So it is once malloc has seen a block of some size freed. Before, it gives back what is free, and the system
# maps the same memory for the next result again, page by page, which takes longer than to fill it.
np.empty(8 * 2**20, np.uint8)


def large_result(sources: Sequence[torch.Tensor], shape: Sequence[int]) -> torch.Tensor | None:
    """Unset memory for a large result of this shape on the CPU; None where torch does better itself."""
    # torch asks the system for fresh memory for every large result, which the system maps page by page of
    # 4 KiB as it is written; that takes longer than copying the bytes. numpy asks for huge pages.
    model = sources[0]
    size = math.prod(shape) * model.element_size()
    if size < LARGE_BYTES or not model.is_cpu or any(source.requires_grad for source in sources):
        return None
    return torch.from_numpy(np.empty(size, dtype=np.uint8)).view(model.dtype).view(*shape)


THREADED_ELEMENTS = 32768
"""Below this torch works on one thread anyway, and is quicker than numpy."""
THREADED_BYTES = 8 * 2**20
"""From this on several threads are worth their waiting."""
FEW_SOURCES = 64
"""To look at more than so many takes longer than what it saves."""

_PLAIN_DTYPES = frozenset(
    [
        *(torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128),
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    ]
)
_SAME_SIZE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_plain(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes under a dtype that every torch kernel knows (fp8 and sub-byte ones have few)."""
    if tensor.dtype in _PLAIN_DTYPES or tensor.is_quantized:
        return tensor
    return tensor.view(_SAME_SIZE[tensor.element_size()])


def of_dtype(plain: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The way back from `as_plain`; a view under the same dtype would lose the gradient."""
    return plain if plain.dtype == dtype else plain.view(dtype)


def numpy_reads(tensor: torch.Tensor) -> bool:
    """Whether `same_bits` is all there is to the tensor."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
    )


def same_bits(tensor: torch.Tensor) -> NDArray[Any]:
    """The tensor's memory as an array of elements of the same size."""
    return tensor.view(_SAME_SIZE.get(tensor.element_size(), tensor.dtype)).numpy()


def gather(tensor: torch.Tensor, dim: int, index: torch.Tensor) -> torch.Tensor:
    """`index_select` for tensors of any dtype."""
    shape = (*tensor.shape[:dim], index.numel(), *tensor.shape[dim + 1 :])
    if _suits_one_thread([tensor], shape):
        taken = np.take(same_bits(tensor), index.cpu().numpy(), dim)
        return of_dtype(torch.from_numpy(taken), tensor.dtype)
    plain = as_plain(tensor)
    out = large_result([plain], shape)
    return of_dtype(torch.index_select(plain, dim, index.to(tensor.device), out=out), tensor.dtype)


def concat_dense(tensors: Sequence[torch.Tensor], dim: int = 0) -> torch.Tensor:
    """`torch.cat` for tensors of any one dtype."""
    shape = list(tensors[0].shape)
    shape[dim] = sum([tensor.shape[dim] for tensor in tensors])
    if _suits_one_thread(tensors, shape):
        # Where shapes do not fit, torch below says so, as it does for other sizes.
        try:
            joined = np.concatenate([same_bits(tensor) for tensor in tensors], dim)
            return of_dtype(torch.from_numpy(joined), tensors[0].dtype)
        except ValueError:
            pass
    parts = [as_plain(tensor) for tensor in tensors]
    return of_dtype(torch.cat(parts, dim, out=large_result(parts, shape)), tensors[0].dtype)


def _suits_one_thread(sources: Sequence[torch.Tensor], shape: Sequence[int]) -> bool:
    """Whether copying these into a tensor of this shape is better done by numpy."""
    elements = math.prod(shape)
    return (
        elements >= THREADED_ELEMENTS
        and elements * sources[0].element_size() < THREADED_BYTES
        and len(sources) <= FEW_SOURCES
        and {(source.dtype, source.is_contiguous(), numpy_reads(source)) for source in sources}
        == {(sources[0].dtype, True, True)}
    )
