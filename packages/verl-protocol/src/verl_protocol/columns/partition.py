"""How many rows go where: even sizes, and parts of near-equal total weight."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain
from operator import itemgetter
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from verl_protocol.arguments import flag, whole_number
from verl_protocol.errors import InvalidValueError, UnevenRowsError, counted
from verl_protocol.kinds import is_tensor


def even_sizes(num_rows: int, num_parts: SupportsIndex) -> list[int]:
    """Sizes of `num_parts` consecutive parts that differ by at most one, larger ones first.

    >>> even_sizes(5, 4)
    [2, 1, 1, 1]
    """
    parts = whole_number("num_parts", num_parts, 1)
    least, larger = divmod(whole_number("num_rows", num_rows, 0), parts)
    return [least + 1] * larger + [least] * (parts - larger)


def uneven_chunks(num_rows: int, chunks: int) -> UnevenRowsError:
    """The error about rows that do not divide into equal chunks."""
    return UnevenRowsError(
        f"{counted(num_rows, 'row')} cannot be cut into {chunks} equal chunks (only support equal chunk); "
        f"use chunk({chunks}, uneven=True), pad_dataproto_to_divisor(data, {chunks}), or auto_padding=True",
        num_rows,
        chunks,
    )


def boundaries(sizes: Sequence[int]) -> list[int]:
    """Where consecutive parts of these sizes begin and end: one entry more than parts.

    >>> boundaries([2, 1, 1])
    [0, 2, 3, 4]
    """
    return [0, *accumulate(sizes)]


@dataclass(frozen=True)
class Partition:
    """Which rows each part has.

    `order` lists the rows part after part, and `inverse` leads back: `rows[order][inverse]` is `rows`.
    """

    parts: tuple[tuple[int, ...], ...]

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The rows of all parts, one part after the other."""
        return tuple(chain.from_iterable(self.parts))

    @cached_property
    def inverse(self) -> tuple[int, ...]:
        """Where each row lies in `order`."""
        return tuple(np.argsort(np.array(self.order, dtype=np.int64)).tolist())

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many rows each part has."""
        return tuple(len(part) for part in self.parts)


def balanced_partition(weights: Any, num_parts: SupportsIndex, equal_size: bool = False) -> Partition:
    """Rows spread over parts so that the parts' weights add up to nearly the same (Karmarkar-Karp).

    Inside a part rows keep their order. With `equal_size` all parts have the same number of rows.

    Args:
        weights: one finite number of at least 0 per row, for example its tokens (list, array or tensor).

    Raises:
        InvalidValueError: weights that are not 1-D, finite and at least 0.
        UnevenRowsError: `equal_size`, and the rows do not divide by `num_parts`.

    >>> balanced_partition([5, 1, 4, 2], 2).parts
    ((0, 1), (2, 3))
    """
    values = _checked_weights(weights)
    num_parts = whole_number("num_parts", num_parts, 1)
    if flag("equal_size", equal_size) and len(values) % num_parts:
        raise UnevenRowsError(
            f"{counted(len(values), 'row')} cannot be spread over {num_parts} parts of equal size; pad them "
            f"to a multiple of {num_parts}, or allow sizes to differ",
            len(values),
            num_parts,
        )
    groups = _differencing(values.tolist(), num_parts, equal_size)
    # Part order follows the rows, so that equal weights leave the rows where they are as far as possible.
    ordered = sorted((sorted(group) for group in groups), key=lambda rows: (not rows, rows))
    return Partition(tuple(tuple(rows) for rows in ordered))


_NO_WEIGHTS = "cannot balance rows by these weights"


def _checked_weights(weights: Any) -> NDArray[np.float64]:
    if is_tensor(weights):
        weights = weights.detach().cpu().double().numpy()
    try:
        values = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidValueError(f"{_NO_WEIGHTS}: they are not all numbers") from None
    if values.ndim != 1:
        raise InvalidValueError(f"{_NO_WEIGHTS}: they have {values.ndim} dimensions, not 1")
    if not np.isfinite(values).all() or (values < 0).any():
        raise InvalidValueError(f"{_NO_WEIGHTS}: not all of them are finite and at least 0")
    return values


_Candidate: TypeAlias = list[tuple[float, tuple[int, ...]]]
"""Some of the rows, already spread over all parts: weight and rows of each, the heaviest first."""


def _differencing(weights: list[float], num_parts: int, equal_size: bool) -> Sequence[Sequence[int]]:
    """Karmarkar-Karp: merge the two candidates most out of balance, heavy to light, until one is left."""
    candidates = _seeds(weights, num_parts, equal_size)
    if not candidates:
        return [()] * num_parts
    heap = [(-_spread(candidate), number, candidate) for number, candidate in enumerate(candidates)]
    heapq.heapify(heap)
    for number in range(len(candidates), 2 * len(candidates) - 1):
        first, second = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        pairs = zip(first, reversed(second), strict=True)
        merged = [(heavy + light, rows + others) for (heavy, rows), (light, others) in pairs]
        merged.sort(key=itemgetter(0), reverse=True)
        heapq.heappush(heap, (-_spread(merged), number, merged))
    return [rows for _, rows in heap[0][2]]


def _spread(candidate: _Candidate) -> float:
    return candidate[0][0] - candidate[-1][0]


def _seeds(weights: list[float], num_parts: int, equal_size: bool) -> list[_Candidate]:
    """One row per candidate; for equal sizes one for every part, rows of like weight together.

    Merging then keeps the counts equal.
    """
    rows = sorted(range(len(weights)), key=lambda row: -weights[row]) if equal_size else range(len(weights))
    size = num_parts if equal_size else 1
    rest: _Candidate = [(0.0, ())] * (num_parts - size)
    groups = [rows[at : at + size] for at in range(0, len(rows), size)]
    return [[(weights[row], (row,)) for row in group] + rest for group in groups]
