"""`DataProtoFuture`: a batch that others are still making, in parts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from verl_protocol import errors
from verl_protocol.arguments import flag, whole_number
from verl_protocol.futures.any_batch import (
    AsyncFetch,
    BatchData,
    Fetch,
    Pending,
    concat_parts,
    is_batch,
    narrow_part,
    num_rows_of,
    proto_class,
)
from verl_protocol.futures.parts import (
    Chunk,
    Cut,
    Deadline,
    Part,
    PartSpan,
    Rows,
    RowsOf,
    Steps,
    overlaps,
    span_of,
    values_async,
    values_of,
)

if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault

    B_co = TypeVarWithDefault("B_co", covariant=True, default=Any)
else:
    B_co = TypeVar("B_co", covariant=True)
T = TypeVar("T")


_WAY_TO_BATCH = "it is a future: .get() waits for its batch, and .row_count() for the number of its rows"

_MOST_CUTS = 3
"""A repr shows so many of the cuts that were made, the last ones."""


def concat_batches(values: Sequence[Any]) -> Any:
    """The rows of all parts, one part after the other: how a future is collected unless it says otherwise."""
    return BatchData(list(values)).concat()


class DataProtoFuture(Pending, Generic[B_co]):
    """A batch (DataProto or TensorDict) whose parts are futures; handing it on fetches nothing.

    Args:
        collect_fn: makes the batch of the list of the parts' values.
        futures: the parts: anything with `result(timeout)`, or with `future()` returning such.
        dispatch_fn: what becomes of the collected batch; None leaves it as it is.
        row_counts: how many rows each part contributes, each an int or a future of one; rows of a part beyond
            its count are padding. With it, a chunk fetches only the parts that its rows overlap.
        row_aligned: whether `collect_fn` puts the parts' rows one after the other; None: if it is `concat`.

    Raises:
        InvalidValueError: not one row count per part.

    >>> import torch
    >>> from verl_protocol import DataProto
    >>> from concurrent.futures import Future
    >>> part: Future[DataProto] = Future()
    >>> batch = DataProtoFuture.concat([part])
    >>> half = batch.chunk(2)[1]
    >>> part.set_result(DataProto.from_dict(tensors={"a": torch.arange(4)}))
    >>> half.get().batch["a"]
    tensor([2, 3])
    """

    def __init__(
        self,
        collect_fn: Callable[[list[Any]], Any],
        futures: Sequence[Part],
        dispatch_fn: Callable[[Any], Any] | None = None,
        *,
        row_counts: Sequence[Any] | None = None,
        row_aligned: bool | None = None,
    ) -> None:
        if row_counts is not None and len(row_counts) != len(futures):
            found = f"{errors.counted(len(futures), 'part')}, {errors.counted(len(row_counts), 'count')}"
            raise errors.InvalidValueError(f"row_counts needs one entry per part: {found}")
        self.collect_fn = collect_fn
        self.futures: list[Part] = list(futures)
        self.dispatch_fn = dispatch_fn
        self.row_counts: list[Any] | None = None if row_counts is None else list(row_counts)
        self.row_aligned: bool = _is_concat(collect_fn) if row_aligned is None else row_aligned
        self._cuts: tuple[Cut, ...] = ()

    def __repr__(self) -> str:
        parts = errors.counted(len(self.futures), "part")
        cuts = "".join(f", {cut}" for cut in self._cuts[-_MOST_CUTS:])
        # What it is to whoever has it; how a backend made it is no matter of theirs.
        return f"DataProtoFuture({parts}{', ...' if len(self._cuts) > _MOST_CUTS else ''}{cuts})"

    if not TYPE_CHECKING:  # a type checker knows better than these

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"a DataProtoFuture has no {name!r}; {_WAY_TO_BATCH}")

        def __getitem__(self, item: object) -> Any:  # which Python asks for rows to iterate over, too
            raise errors.InvalidTypeError(f"a DataProtoFuture has no rows yet; {_WAY_TO_BATCH}")

        def __len__(self) -> int:
            raise errors.InvalidTypeError(f"a DataProtoFuture does not say its length; {_WAY_TO_BATCH}")

        def __bool__(self) -> bool:
            return True  # not asked of `__len__`

    @staticmethod
    def concat(data: Sequence[Part]) -> DataProtoFuture[Any]:
        """The future of all rows of these parts, which may be such futures themselves.

        Raises:
            NothingToConcatError: no parts.
        """
        if not data:
            raise errors.NothingToConcatError
        counts = None
        if all(is_batch(part) or (isinstance(part, DataProtoFuture) and part.tells_rows) for part in data):
            counts = [num_rows_of(part) if is_batch(part) else RowsOf(part) for part in data]
        return DataProtoFuture(concat_batches, data, row_counts=counts)

    def chunk(self, chunks: int, uneven: bool = False) -> list[DataProtoFuture[B_co]]:
        """`chunks` futures of consecutive rows, of this batch or of the chunk of it that this is.

        Whether the rows divide by `chunks` shows when a chunk is fetched: `get` then raises
        UnevenRowsError, unless `uneven` or auto padding allows sizes that differ by one.

        Raises:
            InvalidValueError: `chunks` is less than 1.
        """
        count = whole_number("chunks", chunks, 1)
        return [self._cut(Chunk(count, piece, flag("uneven", uneven))) for piece in range(count)]

    def _cut(self, cut: Cut) -> DataProtoFuture[B_co]:
        piece: DataProtoFuture[B_co] = object.__new__(type(self))
        piece.__dict__.update(self.__dict__)
        if self._cuts and self._cuts[-1].pads:
            # Which rows a piece of padded rows needs shows when these are there.
            piece.__dict__.update(DataProtoFuture(concat_batches, [self]).__dict__)
        piece._cuts = (*piece._cuts, cut)
        return piece

    def get(self, timeout: float | None = None, fetch: Fetch | None = None) -> B_co:
        """The batch, after waiting for the parts that it needs.

        Args:
            timeout: seconds to wait for all parts together; None waits as long as it takes.
            fetch: gives the values of a list of parts at once; None waits for one after the other.

        Raises:
            TimeoutError: a part was not there in time.
            UnevenRowsError: the rows do not divide by the number of chunks.
        """
        return self._run(self._batch(), timeout, fetch)

    async def aget(self, timeout: float | None = None, fetch: AsyncFetch | None = None) -> B_co:
        """As `get`, without blocking the event loop; the parts are awaited together, no thread is held.

        Raises:
            TimeoutError: a part was not there in time; the parts go on all the same.
        """
        return await self._run_async(self._batch(), timeout, fetch)

    def __await__(self) -> Generator[Any, None, B_co]:
        return self.aget().__await__()

    def result(self, timeout: float | None = None) -> B_co:
        """As `get`: such a future can be a part of another one."""
        return self.get(timeout)

    def row_count(self, timeout: float | None = None, fetch: Fetch | None = None) -> int:
        """How many rows this has; without row counts, all parts are fetched to know.

        Raises:
            TimeoutError: it was not known in time.
        """
        return self._run(self._num_rows(), timeout, fetch)

    async def arow_count(self, timeout: float | None = None, fetch: AsyncFetch | None = None) -> int:
        """As `row_count`, without blocking the event loop.

        Raises:
            TimeoutError: it was not known in time.
        """
        return await self._run_async(self._num_rows(), timeout, fetch)

    def _batch(self) -> Steps[B_co]:
        return (yield from self._cut_batch())[0]

    def _cut_batch(self) -> Steps[tuple[B_co, int]]:
        """The batch, and of how many rows the last cut chose."""
        counts = yield self._known_counts()
        spans = self._spans(counts)
        values = yield self._wanted(spans)
        batch, num_rows = self._made_of(spans, counts, values)
        return self._cuts[-1].made(batch, num_rows) if self._cuts else batch, num_rows

    def _num_rows(self) -> Steps[int]:
        counts = yield self._known_counts()
        if self._span(counts) is None:
            return num_rows_of((yield from self._batch()))
        before = self._rows_before(counts)
        return self._cuts[-1].size(before) if self._cuts else before

    def _rows_before(self, counts: Sequence[int]) -> int:
        """Of how many rows the last cut chooses."""
        start, stop = span_of(self._cuts[:-1], sum(counts))
        return stop - start

    # What the steps make of the parts that they ask for, after waiting for those.

    def _run(self, steps: Steps[T], timeout: float | None = None, fetch: Fetch | None = None) -> T:
        deadline = Deadline(timeout)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(values_of(wanted, deadline, fetch))
        except StopIteration as end:
            result: T = end.value
            return result
        except TimeoutError as error:
            raise deadline.told(error, self) from None

    async def _run_async(
        self, steps: Steps[T], timeout: float | None = None, fetch: AsyncFetch | None = None
    ) -> T:
        deadline = Deadline(timeout)
        try:
            wanted = next(steps)
            while True:
                wanted = steps.send(await values_async(wanted, deadline, fetch))
        except StopIteration as end:
            result: T = end.value
            return result
        except TimeoutError as error:
            raise deadline.told(error, self) from None

    @property
    def tells_rows(self) -> bool:
        """Whether the parts that certain rows lie in are known without fetching any."""
        return self.row_aligned and self.dispatch_fn is None and self.row_counts is not None

    def _known_counts(self) -> list[Any]:
        return self.row_counts if self.tells_rows and self.row_counts is not None else []

    def _span(self, counts: Sequence[int]) -> tuple[int, int] | None:
        """The rows of all parts that this consists of; None where only the whole batch can tell."""
        if not counts:
            return None
        try:
            return span_of(self._cuts, sum(counts))
        except errors.UnevenRowsError:
            # The batch itself may allow it: one with auto padding does.
            return None

    def _spans(self, counts: Sequence[int]) -> list[PartSpan] | None:
        """The pieces of parts that this consists of; None where the whole batch is needed."""
        span = self._span(counts) if self._cuts else None
        return overlaps(counts, *span) if span is not None and any(counts) else None

    def _wanted(self, spans: list[PartSpan] | None) -> list[Part]:
        if spans is None:
            return self.futures
        wanted = [(self.futures[span.part], Rows(span.start, span.stop)) for span in spans]
        return [part._cut(rows) if isinstance(part, DataProtoFuture) else part for part, rows in wanted]

    def _made_of(
        self, spans: list[PartSpan] | None, counts: Sequence[int], values: Sequence[Any]
    ) -> tuple[B_co, int]:
        """The rows that the last cut chose, and of how many."""
        if spans is None:
            return self._of_whole(values, counts)
        pieces = [self._piece(span, value) for span, value in zip(spans, values, strict=True)]
        batch: B_co = pieces[0] if len(pieces) == 1 else concat_parts(pieces)
        return batch, self._rows_before(counts)

    def _piece(self, span: PartSpan, value: Any) -> Any:
        if isinstance(self.futures[span.part], DataProtoFuture):
            return value
        return _rows_of_part(value, span)

    def _of_whole(self, values: Sequence[Any], counts: Sequence[int]) -> tuple[B_co, int]:
        if counts and _is_concat(self.collect_fn):
            spans = [PartSpan(part, 0, count) for part, count in enumerate(counts)]
            values = [
                value if num_rows_of(value) == span.stop else _rows_of_part(value, span)
                for value, span in zip(values, spans, strict=True)
            ]
        whole = self.collect_fn(list(values))
        if self.dispatch_fn is not None:
            whole = self.dispatch_fn(whole)
        num_rows = 0
        for cut in self._cuts:
            num_rows = num_rows_of(whole)
            whole = _rows_of_cut(whole, cut, num_rows)
        return whole, num_rows


def _is_concat(collect_fn: object) -> bool:
    return collect_fn is concat_batches or collect_fn is getattr(proto_class(), "concat", concat_batches)


def _rows_of_part(value: Any, span: PartSpan) -> Any:
    if (found := num_rows_of(value)) < span.stop:
        announced = errors.counted(span.stop, "row")
        raise errors.RowCountError(f"part {span.part} was announced with {announced}, but has {found}")
    return narrow_part(value, span.start, span.stop)


def _rows_of_cut(batch: Any, cut: Cut, num_rows: int) -> Any:
    if not isinstance(cut, Chunk) or cut.pads or (cut.uneven and num_rows):
        return narrow_part(batch, *cut.span(num_rows))
    # Of a batch without rows all pieces look alike, but only the first has the metrics.
    return BatchData(batch).chunk(cut.num_pieces, cut.uneven)[cut.piece]
