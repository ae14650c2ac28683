"""Parts that the worker finishes: cut by the driver, resolved before the method runs, trimmed after it.

Most parts arrive ready. These do not: parts of futures, for which the driver does not wait, so that only the
rows needed are fetched and only where they are needed; and padded parts of calls whose answers the driver
never sees.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from verl_protocol import DataProtoFuture
from verl_protocol.futures.parts import Chunk

from verl_dispatch.errors import UnevenRowsError
from verl_dispatch.planning.batches import answered_rows, padded_parts
from verl_dispatch.planning.layout import RowTrim, padded_layout, unequal_rows, uneven_rows

# --- in the driver ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerChunk(Chunk):
    """The rows of one worker.

    Attributes:
        label: the argument.
        method: the method that gets it.
        num_rows: rows that it must have because another batch of the call has them; None if nothing is known.
    """

    label: str
    method: str
    num_rows: int | None

    def span(self, num_rows: int) -> tuple[int, int]:
        """Where the worker's rows begin and end among `num_rows` rows.

        Raises:
            RowCountError: the batch has other rows than the call's other batches.
            UnevenRowsError: uneven parts, but fewer rows than workers: no worker shall be left without rows.
            UnevenRowsError: the rows do not divide among the workers.
        """
        if self.num_rows is not None and num_rows != self.num_rows:
            raise unequal_rows(self.method, {"another batch": self.num_rows, self.label: num_rows})
        return self._span(num_rows)

    def _span(self, num_rows: int) -> tuple[int, int]:
        if self.uneven and 0 < num_rows < self.num_pieces:
            raise uneven_rows(self.label, num_rows, self.num_pieces)
        return Chunk.span(self, num_rows)


@dataclass(frozen=True, slots=True)
class PaddedChunk(WorkerChunk):
    """The rows of one worker, and padding after them.

    Without `num_rows` the worker also takes the padding off its answer.
    """

    pads: ClassVar[bool] = True

    def _span(self, num_rows: int) -> tuple[int, int]:
        """The rows that the piece is made of; one that is all padding repeats the last row."""
        rows, pad = self._rows(num_rows)
        start = min(rows[0], num_rows - 1) if rows else 0
        return start, min(num_rows, start + max(1, len(rows) - pad))

    def size(self, num_rows: int) -> int:
        """How many rows the piece has, padding included."""
        return len(self._rows(num_rows)[0])

    def made(self, rows: Any, num_rows: int) -> Any:
        """The rows with the padding after them."""
        padded, pad = self._rows(num_rows)
        own = range(len(padded) - pad)
        # Rows bring the metrics of the parts that begin in them; copies of another piece's row bring none.
        return padded_parts(rows, [(own, pad)], first=0 if own else self.piece)[0]

    def trim(self, num_rows: int) -> RowTrim | None:
        """How the worker trims its answer; None where the driver does, or where nothing was padded."""
        layout = padded_layout(num_rows, self.num_pieces)
        if self.num_rows is not None or not layout.changes_answers:
            return None
        return layout.trim(self.method, self.piece, self.piece)

    def _rows(self, num_rows: int) -> tuple[Sequence[int], int]:
        """The rows of the piece, padding included, and how many of them are padding."""
        layout = padded_layout(num_rows, self.num_pieces)
        return layout.parts[self.piece], layout.pad[self.piece]


@dataclass(frozen=True, slots=True)
class PaddedPart:
    """A part of a batch with padding rows at its end, whose answer is trimmed at the worker."""

    value: Any
    trim: RowTrim


# --- at the worker ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _LateTrim:
    """The trim of a method that resolves its futures itself; known when an answer with rows is there."""

    future: DataProtoFuture[Any]
    padding: PaddedChunk

    def apply(self, answer: Any) -> Any:
        """The answer without rows that padding caused."""
        if answered_rows(answer) is None:
            return answer
        whole = copy.copy(self.future)
        whole._cuts = whole._cuts[:-1]
        return trim_answer(answer, self.padding.trim(whole.row_count()))


_UNRESOLVED = (DataProtoFuture, PaddedPart)
Trim: TypeAlias = RowTrim | _LateTrim
Resolved: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Trim | None]


def has_unresolved(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is still to be finished at the worker: a future, or a padded part."""
    for value in args:
        if isinstance(value, _UNRESOLVED):
            return True
    return bool(kwargs) and any(isinstance(value, _UNRESOLVED) for value in kwargs.values())


def resolve_parts(args: tuple[Any, ...], kwargs: Mapping[str, Any], materialize: bool) -> Resolved:
    """The arguments as the method wants them, and how its answer is to be trimmed."""
    seen = _Seen()
    values = tuple([_resolve(value, materialize, seen) for value in args])
    named = {name: _resolve(value, materialize, seen) for name, value in kwargs.items()}
    return values, named, seen.trim


async def resolve_parts_async(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], materialize: bool
) -> Resolved:
    """`resolve_parts` that awaits futures instead of blocking the event loop."""
    seen = _Seen()
    values = tuple([await _resolve_async(value, materialize, seen) for value in args])
    named = {name: await _resolve_async(value, materialize, seen) for name, value in kwargs.items()}
    return values, named, seen.trim


def trim_answer(answer: Any, trim: Trim | None) -> Any:
    """The answer without the rows that padding caused."""
    return answer if trim is None else trim.apply(answer)


def _resolve(value: Any, materialize: bool, seen: _Seen) -> Any:
    if isinstance(value, DataProtoFuture) and materialize:
        with _told_of_call(value):
            return seen.resolved(value, *value._run(value._cut_batch()))
    return seen.unresolved(value)


async def _resolve_async(value: Any, materialize: bool, seen: _Seen) -> Any:
    if isinstance(value, DataProtoFuture) and materialize:
        with _told_of_call(value):
            return seen.resolved(value, *await value._run_async(value._cut_batch()))
    return seen.unresolved(value)


class _Seen:
    """What the arguments of one call tell: how its answer is trimmed, and the rows of its batches."""

    def __init__(self) -> None:
        self.trim: Trim | None = None
        self._rows: dict[str, dict[str, int]] = {}

    def resolved(self, future: DataProtoFuture[Any], batch: Any, num_rows: int) -> Any:
        """Takes the batch that a future stands for, and of how many rows its cut chose.

        Raises:
            RowCountError: another future of a padded or uneven call has other rows.
        """
        cut = _worker_cut(future)
        if cut is not None and (cut.pads or cut.uneven):
            # A worker may hand on what was cut for itself, in a call that was not cut alike.
            rows = self._rows.setdefault(cut.method, {})
            rows[cut.label] = num_rows
            if len(set(rows.values())) > 1:
                raise unequal_rows(cut.method, rows)
        if isinstance(cut, PaddedChunk):
            self.trim = self.trim or cut.trim(num_rows)
        return batch

    def unresolved(self, value: Any) -> Any:
        """Takes another argument: as it is, or what a padded part is of."""
        if isinstance(value, PaddedPart):
            self.trim = self.trim or value.trim
            return value.value
        cut = _worker_cut(value) if isinstance(value, DataProtoFuture) else None
        if isinstance(cut, PaddedChunk) and cut.num_rows is None:
            self.trim = self.trim or _LateTrim(value, cut)
        return value


def _worker_cut(future: DataProtoFuture[Any]) -> WorkerChunk | None:
    cut = future._cuts[-1] if future._cuts else None
    return cut if isinstance(cut, WorkerChunk) else None


@contextmanager
def _told_of_call(future: DataProtoFuture[Any]) -> Iterator[None]:
    """Tells an error as the caller of the method understands it: rows of an argument, and workers."""
    try:
        yield
    except UnevenRowsError as error:
        cut = _worker_cut(future)
        if cut is not None and not cut.pads and cut.num_pieces == error.num_parts:
            raise uneven_rows(cut.label, error.num_rows, error.num_parts) from None
        raise
