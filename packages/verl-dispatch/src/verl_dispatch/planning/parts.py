"""Parts that the worker finishes: cut by the driver, resolved before the method runs, trimmed after it.

Most parts arrive ready. These do not: parts of futures, for which the driver does not wait, so that only the
rows needed are fetched and only where they are needed; and padded parts of calls whose answers the driver
never sees.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from verl_protocol import DataProtoFuture
from verl_protocol.futures.parts import Cut, Rows, Steps

from verl_dispatch.errors import UnevenRowsError
from verl_dispatch.planning import batches
from verl_dispatch.planning.layout import RowLayout, RowTrim, padded_layout, unequal_rows, uneven_rows
from verl_dispatch.planning.options import CallOptions

# --- in the driver ----------------------------------------------------------------------------------------


def split_future(
    future: DataProtoFuture[Any],
    num_parts: int,
    options: CallOptions,
    padded: bool,
    num_rows: int | None,
    method: str,
    label: str,
) -> list[Any]:
    """One part per worker; the driver neither waits for the future nor fetches any of it."""
    if not padded:
        uneven = options.uneven is not None
        return [future._cut(WorkerCut(num_parts, index, uneven, label)) for index in range(num_parts)]
    return [FuturePart(future, index, num_parts, method, num_rows) for index in range(num_parts)]


@dataclass(frozen=True, slots=True)
class WorkerCut(Cut):
    """The choice of the rows of one worker, for the argument named `label`."""

    label: str

    def span(self, num_rows: int) -> tuple[int, int]:
        """Where the worker's rows begin and end among `num_rows` rows.

        Raises:
            UnevenRowsError: uneven parts, but fewer rows than workers: no worker shall be left without rows.
            UnevenRowsError: the rows do not divide among the workers.
        """
        if self.uneven and 0 < num_rows < self.num_pieces:
            raise uneven_rows(self.label, num_rows, self.num_pieces)
        return Cut.span(self, num_rows)


@dataclass(frozen=True, slots=True)
class PaddedPart:
    """A part of a batch with padding rows at its end, whose answer is trimmed at the worker."""

    value: Any
    trim: RowTrim


@dataclass(frozen=True, slots=True)
class FuturePart:
    """One padded part of a batch whose rows only the worker learns.

    Attributes:
        future: the whole batch.
        index: which of `num_parts` parts this is.
        num_parts: how many parts there are.
        method: the method that gets it.
        num_rows: rows that the batch must have because another one of the call has them; None if nothing is
            known: then the worker also takes the padding off its answer.
    """

    future: DataProtoFuture[Any]
    index: int
    num_parts: int
    method: str = ""
    num_rows: int | None = None

    def resolve(self) -> tuple[Any, RowTrim | None]:
        """This part, of which only its own rows are fetched where that is possible, and its answer's trim."""
        return self.future._run(self._resolved())

    async def resolve_async(self) -> tuple[Any, RowTrim | None]:
        """As `resolve`, without blocking the event loop."""
        return await self.future._run_async(self._resolved())

    def _resolved(self) -> Steps[tuple[Any, RowTrim | None]]:
        if self.future.row_counts is None or not self.future.row_aligned:
            whole = yield from self.future._batch()
            layout = self.layout(batches.num_rows_of(whole))
            return layout.cut_one(whole, self.index), self.trim(layout)
        layout = self.layout((yield from self.future._num_rows()))
        rows, pad = layout.parts[self.index], layout.pad[self.index]
        fetched = yield from self.future._cut(self.rows_of(layout.num_rows))._batch()
        own = [(range(len(rows) - pad), pad)]
        return batches.padded_parts(fetched, own, first=self.index)[0], self.trim(layout)

    def rows_of(self, num_rows: int) -> Rows:
        """The rows of the batch that this part is made of; one that is all padding repeats the last row."""
        layout = self.layout(num_rows)
        rows, pad = layout.parts[self.index], layout.pad[self.index]
        start = min(rows[0], num_rows - 1) if rows else 0
        return Rows(start, start + max(1, len(rows) - pad))

    def layout(self, num_rows: int) -> RowLayout:
        """How the rows of the batch lie over all parts.

        Raises:
            RowCountError: it has other rows than the call's other batches.
        """
        if self.num_rows is not None and num_rows != self.num_rows:
            raise unequal_rows(self.method, {"another batch": self.num_rows, "a future": num_rows})
        return padded_layout(num_rows, self.num_parts)

    def trim(self, layout: RowLayout) -> RowTrim | None:
        """How the worker trims its answer; None where the driver does."""
        return layout.trim(self.method, self.index, self.index) if self.num_rows is None else None


# --- at the worker ----------------------------------------------------------------------------------------


class LazyPart:
    """A part for a method that resolves its futures itself: fetched when asked for, once."""

    def __init__(self, part: FuturePart) -> None:
        self._part = part
        self._found: tuple[Any, RowTrim | None] | None = None

    def future(self) -> DataProtoFuture[Any]:
        """The part as a batch future."""
        return DataProtoFuture(_only, [_Pending(self)])

    def resolved(self) -> tuple[Any, RowTrim | None]:
        """The part and its answer's trim."""
        if self._found is None:
            self._found = self._part.resolve()
        return self._found

    async def resolved_async(self) -> tuple[Any, RowTrim | None]:
        """As `resolved`, without blocking the event loop."""
        if self._found is None:
            self._found = await self._part.resolve_async()
        return self._found

    def apply(self, answer: Any) -> Any:
        """The answer without rows that padding caused; an answer without rows needs no fetching."""
        if self._part.num_rows is not None or batches.answered_rows(answer) is None:
            return answer
        trim = self.resolved()[1]
        return answer if trim is None else trim.apply(answer)


@dataclass(frozen=True, slots=True)
class _Pending:
    part: LazyPart

    def result(self, timeout: float | None = None) -> Any:
        return self.part.resolved()[0]

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        return (await self.part.resolved_async())[0]


def _only(values: Sequence[Any]) -> Any:
    return values[0]


_UNRESOLVED = (DataProtoFuture, PaddedPart, FuturePart)
Trim: TypeAlias = RowTrim | LazyPart
Resolved: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Trim | None]


def has_unresolved(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an argument is still to be finished at the worker: a future, or a padded part."""
    for value in args:
        if isinstance(value, _UNRESOLVED):
            return True
    return bool(kwargs) and any(isinstance(value, _UNRESOLVED) for value in kwargs.values())


def resolve_parts(args: tuple[Any, ...], kwargs: Mapping[str, Any], materialize: bool) -> Resolved:
    """The arguments as the method wants them, and how its answer is to be trimmed."""
    trims: list[Trim] = []
    values = tuple([_resolve(value, materialize, trims) for value in args])
    named = {name: _resolve(value, materialize, trims) for name, value in kwargs.items()}
    return values, named, trims[0] if trims else None


async def resolve_parts_async(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], materialize: bool
) -> Resolved:
    """`resolve_parts` that awaits futures instead of blocking the event loop."""
    trims: list[Trim] = []
    values = tuple([await _resolve_async(value, materialize, trims) for value in args])
    named = {name: await _resolve_async(value, materialize, trims) for name, value in kwargs.items()}
    return values, named, trims[0] if trims else None


def trim_answer(answer: Any, trim: Trim | None) -> Any:
    """The answer without the rows that padding caused."""
    return answer if trim is None else trim.apply(answer)


def _resolve(value: Any, materialize: bool, trims: list[Trim]) -> Any:
    if isinstance(value, FuturePart):
        return _resolve_part(value, materialize, trims)
    if isinstance(value, PaddedPart):
        trims.append(value.trim)
        return value.value
    if not materialize or not isinstance(value, DataProtoFuture):
        return value
    try:
        return value.get()
    except UnevenRowsError as error:
        raise told_of_call(value, error) from None


async def _resolve_async(value: Any, materialize: bool, trims: list[Trim]) -> Any:
    if isinstance(value, FuturePart) and materialize:
        return _noted(await value.resolve_async(), trims)
    if isinstance(value, DataProtoFuture) and materialize:
        try:
            return await value
        except UnevenRowsError as error:
            raise told_of_call(value, error) from None
    return _resolve(value, materialize, trims)


def _resolve_part(part: FuturePart, materialize: bool, trims: list[Trim]) -> Any:
    if not materialize:
        lazy = LazyPart(part)
        trims.append(lazy)
        return lazy.future()
    return _noted(part.resolve(), trims)


def _noted(resolved: tuple[Any, RowTrim | None], trims: list[Trim]) -> Any:
    value, trim = resolved
    if trim is not None:
        trims.append(trim)
    return value


def told_of_call(future: DataProtoFuture[Any], error: UnevenRowsError) -> ValueError:
    """The error as the caller of the method understands it: rows of an argument, and workers."""
    cut = future._cuts[-1] if future._cuts else None
    if isinstance(cut, WorkerCut) and cut.num_pieces == error.num_parts:
        return uneven_rows(cut.label, error.num_rows, error.num_parts)
    return error
