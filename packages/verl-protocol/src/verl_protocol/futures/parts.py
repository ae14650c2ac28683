"""One part of a future batch, whatever kind of future it is: waited for, or awaited."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import time
from bisect import bisect_left
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np

from verl_protocol.arguments import seconds
from verl_protocol.columns.partition import boundaries, even_sizes, uneven_chunks
from verl_protocol.errors import InvalidTypeError
from verl_protocol.futures.any_batch import AsyncFetch, Fetch, Pending, is_batch

T = TypeVar("T")


@runtime_checkable
class SupportsResult(Protocol):
    """A future that can be waited for, as those of `concurrent.futures`."""

    def result(self, timeout: float | None = None) -> Any:
        """The value, after at most `timeout` seconds."""


@runtime_checkable
class SupportsFuture(Protocol):
    """A reference that gives such a future, as Ray's ObjectRef does."""

    def future(self) -> SupportsResult:
        """A future of the value."""
        ...


Part: TypeAlias = SupportsResult | SupportsFuture | Any
"""A future, a reference that gives one, a batch that is there already, or a future of a batch."""


def _no_part(part: object) -> InvalidTypeError:
    """The error about a part that can be waited for in no known way."""
    return InvalidTypeError(
        "a part of a DataProtoFuture must have result(timeout), or future() returning such, or be a batch; "
        f"got {type(part).__name__}"
    )


class Deadline:
    """How much of a time limit is left, shared by everything that is waited for.

    Raises:
        InvalidArgumentError: the limit is no number of seconds.
    """

    def __init__(self, timeout: float | None) -> None:
        self.limit: float | None = seconds("timeout", timeout)
        self._end = None if self.limit is None else time.monotonic() + self.limit

    @property
    def left(self) -> float | None:
        """Seconds left, at least 0; None without a limit."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def told(self, error: TimeoutError, what: object) -> TimeoutError:
        """The error as whoever set the limit understands it: all of the limit, and what was waited for."""
        if self.limit is None or self.left:
            return error
        # A backend's own error says more: which call, and which ranks.
        within = getattr(error, "within", None)
        late: TimeoutError = (
            TimeoutError(f"{what!r} was not there within {self.limit:g} s; wait again, or for longer")
            if within is None
            else within(self.limit)
        )
        return late


Steps: TypeAlias = Generator[list[Part], list[Any], T]
"""Asks for the values of parts, any number of times, and returns what it made of them."""


def values_of(parts: Sequence[Part], deadline: Deadline, fetch: Fetch | None = None) -> list[Any]:
    """The values of all parts, in order.

    Raises:
        TimeoutError: one was not there in time.
        InvalidTypeError: there is no way to wait for one.
    """
    distant = [part for part in parts if not is_near(part)] if fetch is not None else []
    fetched = iter(fetch(distant, deadline.left)) if fetch is not None and distant else iter(())
    return [
        next(fetched) if distant and not is_near(part) else wait_for(part, deadline, fetch) for part in parts
    ]


async def values_async(
    parts: Sequence[Part], deadline: Deadline, fetch: AsyncFetch | None = None
) -> list[Any]:
    """`values_of` that awaits all parts together; the first failure ends it."""
    distant = [part for part in parts if not is_near(part)] if fetch is not None else []
    fetched = iter(await fetch(distant, deadline.left) if fetch is not None and distant else ())
    alone = [not distant or is_near(part) for part in parts]
    awaited = [asyncio.ensure_future(wait_async(part, deadline, fetch)) for part in compress(parts, alone)]
    try:
        found = iter(await asyncio.gather(*awaited))
    finally:
        for each in awaited:
            each.cancel()
    return [next(found) if each else next(fetched) for each in alone]


def is_near(part: Part) -> bool:
    """Whether no backend is needed to get at this part: it is there, or it is a future of this package."""
    return isinstance(part, (int, np.integer, Pending)) or is_batch(part)


def wait_for(part: Part, deadline: Deadline, fetch: Fetch | None = None) -> Any:
    """The value of one part; see `values_of`."""
    if isinstance(part, Pending):
        return part.get(deadline.left, fetch)
    if is_near(part):
        return part
    if isinstance(part, SupportsResult):
        return part.result(deadline.left)
    if isinstance(part, SupportsFuture):
        return part.future().result(deadline.left)
    raise _no_part(part)


async def wait_async(part: Part, deadline: Deadline, fetch: AsyncFetch | None = None) -> Any:
    """The value of a part, without blocking the event loop; giving up does not cancel the part itself.

    Raises:
        TimeoutError: it was not there in time.
        InvalidTypeError: there is no way to wait for it.
    """
    if isinstance(part, Pending):
        return await part.aget(deadline.left, fetch)
    if is_near(part):
        return part
    if isinstance(part, SupportsFuture) and not isinstance(part, SupportsResult):
        part = part.future()
    if isinstance(part, concurrent.futures.Future):
        await until_done(part, deadline)
        return part.result(0)
    try:
        async with asyncio.timeout(deadline.left):
            if inspect.isawaitable(part):
                return await asyncio.shield(part)
            if isinstance(part, SupportsResult):
                # There is no other way to wait for what can only be asked.
                return await asyncio.to_thread(part.result)
    except TimeoutError:
        if deadline.left != 0 or not isinstance(part, SupportsResult):
            raise
        # What it says itself of being late says more.
        return part.result(0)
    raise _no_part(part)


async def until_done(future: concurrent.futures.Future[Any], deadline: Deadline) -> None:
    """Returns once the future is done or the time is over; no thread waits, and the future is left alone."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        # Who waited may be gone, and the loop with it.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(done.set)

    future.add_done_callback(wake)
    with suppress(TimeoutError):
        async with asyncio.timeout(deadline.left):
            await done.wait()


@dataclass(frozen=True)
class RowsOf(Pending):
    """How many rows a future has."""

    future: Any

    def get(self, timeout: float | None = None, fetch: Fetch | None = None) -> int:
        """The number of rows."""
        return int(self.future.row_count(timeout, fetch))

    async def aget(self, timeout: float | None = None, fetch: AsyncFetch | None = None) -> int:
        """The number of rows, awaited."""
        return int(await self.future.arow_count(timeout, fetch))


# --- Which rows of which parts a share of a batch consists of, before any part has been fetched -----------


class Cut:
    """The choice of some rows of a batch.

    Attributes:
        pads: whether the piece has more rows than are chosen.
    """

    pads: ClassVar[bool] = False

    def span(self, num_rows: int) -> tuple[int, int]:
        """Where the chosen rows begin and end among `num_rows` rows."""
        raise NotImplementedError

    def size(self, num_rows: int) -> int:
        """How many rows the piece of a batch of `num_rows` rows has."""
        start, stop = self.span(num_rows)
        return stop - start

    def made(self, rows: Any, num_rows: int) -> Any:
        """The piece, of the chosen rows of a batch of `num_rows` rows."""
        return rows


@dataclass(frozen=True, slots=True)
class Chunk(Cut):
    """The choice of one of several consecutive pieces."""

    num_pieces: int
    piece: int
    uneven: bool

    def __str__(self) -> str:
        return f"piece {self.piece} of {self.num_pieces}"

    def span(self, num_rows: int) -> tuple[int, int]:
        """Where the piece begins and ends among `num_rows` rows.

        Raises:
            UnevenRowsError: the rows do not divide by the number of pieces.
        """
        if num_rows % self.num_pieces and not self.uneven:
            raise uneven_chunks(num_rows, self.num_pieces)
        ends = boundaries(even_sizes(num_rows, self.num_pieces))
        return ends[self.piece], ends[self.piece + 1]


@dataclass(frozen=True, slots=True)
class Rows(Cut):
    """The choice of rows `start` to `stop`."""

    start: int
    stop: int

    def __str__(self) -> str:
        return f"rows {self.start} to {self.stop}"

    def span(self, num_rows: int) -> tuple[int, int]:
        """These rows."""
        return self.start, self.stop


def span_of(cuts: Sequence[Cut], num_rows: int) -> tuple[int, int]:
    """The rows that are left of `num_rows` after one cut upon another.

    >>> span_of([Chunk(2, 1, False), Chunk(2, 0, False)], 8)
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
    if not found:
        part = bisect_left(ends, start, 1) - 1
        found = [PartSpan(part, start - ends[part], start - ends[part])]
    return found


def _holds(start: int, stop: int, place: int, end: int) -> bool:
    return start <= place < stop or (start < stop == end == place)
