"""Which rows go to which part, and which rows of an answer are padding: decided once per call, by numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import accumulate, chain
from typing import Any

import verl_protocol
from verl_protocol.columns.partition import balanced_partition, even_sizes
from verl_protocol.errors import counted
from verl_protocol.futures.any_batch import as_proto, like

from verl_dispatch.errors import AnswerError, RowCountError, UnevenRowsError
from verl_dispatch.planning.batches import answered_rows, padded_parts


@dataclass(frozen=True)
class RowLayout:
    """How the rows of a call lie over its parts.

    Attributes:
        num_rows: rows of the batch, without padding.
        parts: the rows of each part; rows of `num_rows` and beyond are padding, and always the last ones of a
            part.
        pad: how many rows of each part are padding.
        order: the input row at each position of the parts laid end to end, padding left out; None when the
            parts follow the input.
    """

    num_rows: int
    parts: tuple[range | tuple[int, ...], ...]
    pad: tuple[int, ...]
    order: tuple[int, ...] | None = None

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """Rows of each part, padding included."""
        return tuple(map(len, self.parts))

    @cached_property
    def changes_answers(self) -> bool:
        """Whether the answers have padding to take off or an order to restore."""
        return self.order is not None or any(self.pad)

    def __reduce__(self) -> tuple[Any, ...]:
        # What is worked out of these does not travel.
        return RowLayout, (self.num_rows, self.parts, self.pad, self.order)

    def cut(self, batch: Any) -> list[Any]:
        """A batch of `num_rows` rows, cut into the parts; padding repeats the last row."""
        if not self.changes_answers:
            proto = as_proto(batch)
            pieces: list[Any] = proto._pieces(self.rows)
            return pieces if proto is batch else [like(batch, piece) for piece in pieces]
        return padded_parts(batch, list(zip(self._real(), self.pad, strict=True)))

    def _real(self) -> tuple[range | tuple[int, ...], ...]:
        """The rows of each part without its padding."""
        return tuple([part[: len(part) - pad] for part, pad in zip(self.parts, self.pad, strict=True)])

    def of_parts(self, indices: Sequence[int]) -> RowLayout:
        """The layout as ranks see it of which each gets one of these parts."""
        parts, pad = zip(*[(self.parts[index], self.pad[index]) for index in indices], strict=True)
        return replace(self, parts=parts, pad=pad)

    def trim(self, method: str, rank: int, index: int) -> RowTrim:
        """How the answer to part `index`, which went to `rank`, loses its padding."""
        return RowTrim(method, rank, len(self.parts[index]), self.pad[index])

    def without_padding(self) -> RowLayout:
        """The layout after the padding is taken off."""
        return replace(self, parts=self._real(), pad=(0,) * len(self.parts))


# --- ways to lay out rows ---------------------------------------------------------------------------------


def uneven_layout(label: str, num_rows: int, num_parts: int) -> RowLayout:
    """Parts that differ by at most one row, none of them empty.

    Raises:
        UnevenRowsError: fewer rows than parts.
    """
    if 0 < num_rows < num_parts:
        raise uneven_rows(label, num_rows, num_parts)
    return RowLayout(num_rows, _consecutive(even_sizes(num_rows, num_parts)), (0,) * num_parts)


# Steps of a training loop have the same rows again and again, and every worker's piece of a future asks for
# it too; a layout is small.
@lru_cache(maxsize=64)
def padded_layout(num_rows: int, num_parts: int) -> RowLayout:
    """Parts of equal size, the last row repeated until the rows divide; no padding where they do."""
    size = -(-num_rows // num_parts)
    parts = _consecutive([size] * num_parts)
    pad = tuple([max(0, part.stop - max(part.start, num_rows)) for part in parts])
    return RowLayout(num_rows, parts, pad)


def balanced_layout(
    label: str, weights: Any, num_rows: int, num_parts: int, *, equal_size: bool, padded: bool
) -> RowLayout:
    """Parts of near-equal total weight; padding rows, needed only for equal sizes, weigh nothing.

    Raises:
        UnevenRowsError: fewer rows than parts, or equal sizes asked of rows that do not divide.
    """
    if 0 < num_rows < num_parts:
        if not padded:
            raise uneven_rows(label, num_rows, num_parts)
        equal_size = True
    missing = -num_rows % num_parts if equal_size else 0
    if missing and not padded:
        raise uneven_rows(label, num_rows, num_parts)
    weights = [*map(float, weights), *[0.0] * missing]
    found = balanced_partition(weights, num_parts, equal_size=equal_size).parts
    parts = tuple(map(tuple, _none_empty(found) if num_rows else found))
    order = tuple([row for row in chain.from_iterable(parts) if row < num_rows])
    pad = tuple([sum(row >= num_rows for row in part) for part in parts])
    return RowLayout(num_rows, parts, pad, order)


def _consecutive(sizes: Sequence[int]) -> tuple[range, ...]:
    return tuple([range(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)])


def _none_empty(found: Sequence[Sequence[int]]) -> list[list[int]]:
    """Rows without weight may all end up in one part; no rank shall be left without rows."""
    parts = [list(part) for part in found]
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return parts


_PAD = "auto_padding=True on the batch or in .options"


def uneven_rows(label: str, num_rows: int, num_parts: int) -> UnevenRowsError:
    """The error about a batch whose rows do not divide evenly among the workers."""
    if num_rows < num_parts:
        are = "is" if num_rows == 1 else "are"
        text = f"{are} fewer than one for each of {num_parts} workers; give more, or pad the batch ({_PAD})"
    else:
        text = (
            f"cannot be split over {num_parts} workers evenly; either pad the batch ({_PAD}, or "
            'pad_dataproto_to_divisor), or make the parts uneven with .options(uneven="balanced")'
        )
    return UnevenRowsError(f"{label}: {counted(num_rows, 'row')} {text}", num_rows, num_parts)


def unequal_rows(method: str, rows: Mapping[str, int]) -> RowCountError:
    """The error about batches of one padded, uneven or balanced call that differ in rows."""
    shown = ", ".join(f"{label}: {counted(count, 'row')}" for label, count in rows.items())
    return RowCountError(
        f"the batches of a padded, uneven or balanced call of {method!r} must have equal rows, got {shown}"
    )


# --- rows of answers --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RowTrim:
    """Takes padding off one rank's answer: it was sent `rows` rows, the last `pad` of them padding."""

    method: str
    rank: int
    rows: int
    pad: int

    def apply(self, answer: Any) -> Any:
        """The answer without padding rows; an answer that is no batch, or has no rows, stays as it is.

        Raises:
            AnswerError: the rows returned are no multiple of the rows sent.
        """
        returned = answered_rows(answer)
        if returned is None:
            return answer
        kept = (self.rows - self.pad) * answers_per_row(self.method, self.rank, self.rows, returned)
        if kept == returned:
            return answer
        return like(answer, verl_protocol.unpad_dataproto(as_proto(answer), returned - kept))


def answers_per_row(method: str, rank: int, sent: int, returned: int) -> int:
    """How many rows an answer has for each row sent.

    Raises:
        AnswerError: no whole number of at least one.
    """
    if sent == returned:
        return 1
    if sent == 0 or returned == 0 or returned % sent:
        raise unmatched_rows(method, rank, sent, returned, "its rows cannot be matched with the rows sent")
    return returned // sent


def unmatched_rows(method: str, rank: int, sent: int, returned: int, why: str) -> AnswerError:
    """The error about an answer whose rows cannot be matched with the padded or reordered rows sent."""
    return AnswerError(
        f"{method!r} on rank {rank} was sent {counted(sent, 'row')} and returned {returned}: {why}; "
        "return k rows for each row sent (the same k on every rank), or call without padding or balance"
    )
