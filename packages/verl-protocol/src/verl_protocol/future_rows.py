"""Which rows of which parts a share of a batch consists of, before any part has been fetched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from verl_protocol.errors import UnevenChunksError
from verl_protocol.partition import boundaries, even_sizes


@dataclass(frozen=True, slots=True)
class Cut:
    """The choice of one of several consecutive pieces."""

    num_pieces: int
    piece: int
    uneven: bool

    def __str__(self) -> str:
        return f"piece {self.piece} of {self.num_pieces}"

    def span(self, num_rows: int) -> tuple[int, int]:
        """Where the piece begins and ends among `num_rows` rows.

        Raises:
            UnevenChunksError: the rows do not divide by the number of pieces.
        """
        if num_rows % self.num_pieces and not self.uneven:
            raise UnevenChunksError(num_rows, self.num_pieces)
        ends = boundaries(even_sizes(num_rows, self.num_pieces))
        return ends[self.piece], ends[self.piece + 1]


@dataclass(frozen=True, slots=True)
class Rows:
    """The choice of rows `start` to `stop`."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"rows {self.start} to {self.stop}"

    def span(self, num_rows: int) -> tuple[int, int]:
        """These rows."""
        return self.start, self.stop


def span_of(cuts: Sequence[Cut | Rows], num_rows: int) -> tuple[int, int]:
    """The rows that are left of `num_rows` after one cut upon another.

    >>> span_of([Cut(2, 1, False), Cut(2, 0, False)], 8)
    (4, 6)
    """
    start, stop = 0, num_rows
    for cut in cuts:
        first, last = cut.span(stop - start)
        start, stop = start + first, start + last
    return start, stop


@dataclass(frozen=True, slots=True)
class PartSpan:
    """Rows `start` to `stop` of the part number `part`."""

    part: int
    start: int
    stop: int


def overlaps(row_counts: Sequence[int], start: int, stop: int) -> list[PartSpan]:
    """The pieces of parts that rows `start` to `stop` of all of them consist of.

    A part without rows, which may carry metrics, belongs to the span in which it lies, so that spans side by
    side name each part at least once. A span without rows names one part, which tells its columns.

    >>> overlaps([4, 4], 2, 6)
    [PartSpan(part=0, start=2, stop=4), PartSpan(part=1, start=0, stop=2)]
    """
    ends = boundaries(row_counts)
    found = [
        PartSpan(part, max(start, first) - first, min(stop, last) - first)
        for part, (first, last) in enumerate(pairwise(ends))
        if (first < stop and start < last) or (first == last and _holds(start, stop, first, ends[-1]))
    ]
    return found or [_empty_span(ends, start)]


def _holds(start: int, stop: int, place: int, end: int) -> bool:
    return start <= place < stop or (start < stop == end == place)


def _empty_span(ends: Sequence[int], place: int) -> PartSpan:
    for part, (first, last) in enumerate(pairwise(ends)):
        if place <= last:
            return PartSpan(part, place - first, place - first)
    return PartSpan(0, 0, 0)
