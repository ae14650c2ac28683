"""Results that stay with the workers: what a non-blocking call of a batch mode returns, and how it is handed
on.

Each part is one rank's answer, its row count is a second value of the same call. The driver fetches neither;
the worker that gets a piece of the future learns the counts and fetches only the parts that its rows overlap.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import numpy as np
from ray import ObjectRef
from ray.exceptions import RayError
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.groups.call import Arrivals, Pauses
from verl_dispatch.planning.parts import WorkerChunk
from verl_protocol import DataProtoFuture
from verl_protocol.futures.parts import Chunk, Deadline, Steps, overlaps, span_of

from verl_ray.calls.failures import explained, has_failed, late
from verl_ray.calls.makers import UNKNOWN, Maker
from verl_ray.wire.refs import get_answers, hear, is_late, soon_here, transport_of
from verl_ray.wire.sealed import SealedFuture, is_one_whole_part, opened
from verl_ray.wire.store import with_objects

T = TypeVar("T")


class AnswerPart:
    """One rank's answer, or its row count, as a part of a `DataProtoFuture`.

    In the driver it knows the workers that make it, and is refused once they have been restarted. It is not
    there before `unread` are: the same call on ranks whose answers nobody reads, but which must not fail.
    `objects` are the large columns of an answer that stays remote. A copy that was sent elsewhere is bare
    references.
    """

    __slots__ = ("maker", "objects", "ref", "unread")

    def __init__(
        self,
        ref: Any,
        maker: Maker = UNKNOWN,
        unread: tuple[AnswerPart, ...] = (),
        objects: Sequence[Any] = (),
    ) -> None:
        self.ref: Any = ref
        self.maker: Maker = maker
        self.unread: tuple[AnswerPart, ...] = unread
        self.objects: Sequence[Any] = objects

    @property
    def fresh_ref(self) -> Any:
        """The reference.

        Raises:
            StaleFutureError: the workers were restarted since.
        """
        if self.maker.workers is not None:
            self.maker.workers.check_generation(self.maker.method, self.maker.generation)
        return self.ref

    def result(self, timeout: float | None = None) -> Any:
        """The value.

        Raises:
            StaleFutureError: the group was restarted since.
            WorkerGroupError: the worker failed.
            TimeoutError: it was not there in time.
        """
        return opened(fetch_answers([self], timeout)[0])

    def read(self, value: Any) -> Any:
        """What has come of it, with the columns that stay remote named by where they lie."""
        return with_objects(value, self.objects, self.maker) if self.objects else value

    def __await__(self) -> Generator[Any, None, Any]:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        return opened((await fetch_answers_async([self]))[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return AnswerPart, (self.fresh_ref, self.maker._replace(workers=None), (), self.objects)


class BatchFuture(SealedFuture):
    """A `DataProtoFuture` whose parts are fetched together, and whose failures are those of a call.

    Its methods raise WorkerGroupError where a worker failed, StaleFutureError where the group was restarted
    since, and CallTimeout where not all was there in time.
    """

    def _run(self, steps: Steps[T], timeout: float | None = None, fetch: Any = None) -> T:
        with self._failures_told():
            return super()._run(steps, timeout, fetch or fetch_answers)

    async def _run_async(self, steps: Steps[T], timeout: float | None = None, fetch: Any = None) -> T:
        with self._failures_told():
            return await super()._run_async(steps, timeout, fetch or fetch_answers_async)

    @contextmanager
    def _failures_told(self) -> Iterator[None]:
        """Ray prints failures that nobody has read; who is told of one is told of all of the same call."""
        try:
            yield
        except WorkerGroupError as failure:
            # Without a failure it is refused, maybe as there is no Ray any more that could be asked.
            for part in (*self.futures, *(self.row_counts or ())) if failure.errors else ():
                if isinstance(part, AnswerPart) and transport_of(part.ref) is None and has_failed(part.ref):
                    for ref in part.objects:
                        has_failed(ref)
            raise


def answer_parts(future: DataProtoFuture[Any]) -> Iterator[AnswerPart]:
    """The answers that it is made of, itself or by futures among its parts."""
    for part in future.futures:
        if isinstance(part, AnswerPart):
            yield part
        elif isinstance(part, DataProtoFuture):
            yield from answer_parts(part)


# --- The values of parts, however many ranks, calls and groups make them ----------------------------------


def fetch_answers(parts: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """The values of many parts at once, sealed where they came sealed.

    Raises:
        WorkerGroupError: a worker of a group known here failed.
        StaleFutureError: the workers were restarted since.
        TimeoutError: not all were there in time.
    """
    deadline = Deadline(timeout)
    heard, asked = _told_apart(parts)
    arriving = PartsArriving(heard)
    came = arriving.wait(deadline) | _ask(asked, deadline)
    return [_read(part, came) for part in parts]


async def fetch_answers_async(parts: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """`fetch_answers`, awaited; no thread waits for what can be heard of."""
    deadline = Deadline(timeout)
    heard, asked = _told_apart(parts)
    arriving = PartsArriving(heard)
    came = await arriving.wait_async(deadline)
    if asked:
        came |= await asyncio.to_thread(_ask, asked, deadline)
    return [_read(part, came) for part in parts]


def _read(part: Any, came: Mapping[Any, Any]) -> Any:
    value = came.get(part, part)
    return part.read(value) if isinstance(part, AnswerPart) else value


def _told_apart(parts: Sequence[Any]) -> tuple[list[AnswerPart], list[Any]]:
    """Parts that are heard of, and those that must be asked for; what has arrived is neither, be it no batch.

    What stays with its worker cannot be heard of, and what others have stored would be opened on the thread
    that hears.
    """
    distant = [part for part in parts if isinstance(part, (AnswerPart, ObjectRef))]
    heard = [part for part in distant if isinstance(part, AnswerPart) and transport_of(part.ref) is None]
    return heard, [part for part in distant if part not in heard] if len(heard) < len(distant) else []


class PartsArriving(Arrivals):
    """The wait for some parts, and for what nobody reads beside them."""

    def __init__(self, parts: Sequence[AnswerPart]) -> None:
        beside = [each for part in parts for each in part.unread]
        self._parts = list(dict.fromkeys([*parts, *beside]))
        super().__init__(self._parts)
        known = [part.maker.workers.grace_s for part in parts if part.maker.workers is not None]
        self.grace_s: float = max(known, default=0.0)
        self._asked = False

    def check(self, waiting: bool) -> None:
        """Refuse parts of workers that were restarted, or that are out of reach; ask for the others."""
        if not waiting:
            # Who waits while the workers are restarted hears of their end.
            for part in self._parts:
                _ = part.fresh_ref
            return
        self._check_connected()
        if not self._asked:
            self._asked = True
            for part in self._parts:
                hear(part.ref, partial(self.take, part))

    def _check_connected(self) -> None:
        for part in self._parts:
            if part.maker.workers is not None:
                part.maker.workers.check_connected(part.maker.method)

    def wait(self, deadline: Deadline) -> dict[Any, Any]:
        """What came, by part; see `fetch_answers`. It may be waited for again."""
        if not self._asked:
            self.check(waiting=False)
            self._check_connected()
            for part, value in soon_here({part: part.ref for part in self._parts}, deadline.left).items():
                self.take(part, value, None)
        return self._sleeping(self._values(deadline))

    async def wait_async(self, deadline: Deadline) -> dict[Any, Any]:
        """As `wait`, while the event loop goes on."""
        return await self._awaiting(self._values(deadline))

    def _values(self, deadline: Deadline) -> Pauses[dict[Any, Any]]:
        self.check(waiting=False)
        yield from self._until_decided(deadline)
        missing = [part.maker for part in self._missing()]
        if errors := self._errors():
            raise explained({part.maker: error for part, error in errors.items()}, missing)
        if missing:
            raise late(missing, deadline.limit or 0.0)
        return {part: value for part, (value, _) in self._came.items()}


def _ask(parts: Sequence[Any], deadline: Deadline) -> dict[Any, Any]:
    """The values of parts that cannot be heard of."""
    if not parts:
        return {}
    refs = [part.fresh_ref if isinstance(part, AnswerPart) else part for part in parts]
    try:
        return dict(zip(parts, get_answers(refs, deadline.left), strict=True))
    except RayError as error:
        makers = [part.maker for part in parts if isinstance(part, AnswerPart)] or [UNKNOWN]
        if is_late(error):
            raise late(makers, deadline.limit or 0.0) from None
        raise explained({makers[0]: error}) from None


# --- Which parts of a future a worker will want, said by the driver, which has fetched none of them -------


def is_direct(future: DataProtoFuture[Any]) -> bool:
    """Whether parts of it stay in the memory of the workers that made them."""
    return any(transport_of(part.ref) is not None for part in answer_parts(future))


def learn_row_counts(future: DataProtoFuture[Any]) -> None:
    """Wait for the row counts of the parts, once for all pieces of the future.

    Raises:
        WorkerGroupError: a worker that makes a part failed.
    """
    if future.tells_rows and future.row_counts is not None and not knows_row_counts(future):
        # All pieces share this list. Asked of the future itself, which tells of failures as its `get` does.
        future.row_counts[:] = future._run(_all_of(future.row_counts), None, fetch_answers)


def _all_of(parts: list[Any]) -> Steps[Sequence[Any]]:
    return (yield parts)


def knows_row_counts(future: DataProtoFuture[Any]) -> bool:
    """Whether all row counts are numbers by now."""
    counts = future.row_counts
    return counts is not None and all(isinstance(count, (int, np.integer)) for count in counts)


def whole_part(future: DataProtoFuture[Any]) -> int | None:
    """The index of the part that this piece consists of, if it is one whole part, of which it is known."""
    counts = future.row_counts
    if counts is None or not (future.tells_rows and knows_row_counts(future)):
        return None
    cut = future._cuts[-1] if future._cuts else None
    # The worker pads, and sees that all batches of an uneven call have equal rows.
    if cut is not None and (cut.pads or (isinstance(cut, WorkerChunk) and cut.uneven)):
        return None
    try:
        spans = future._spans(counts)
    except ValueError:
        # The worker will tell what is wrong.
        return None
    return spans[0].part if is_one_whole_part(spans, counts) and spans is not None else None


def needed_parts(future: DataProtoFuture[Any]) -> Collection[int]:
    """Indices of the parts that the rows of a piece lie in.

    While row counts are not known, all parts are taken to have equal rows; no part is named where that says
    nothing.
    """
    counts = future.row_counts
    if counts is None or not future.futures:
        return range(len(future.futures))
    if not knows_row_counts(future):
        if not all(isinstance(cut, Chunk) for cut in future._cuts):
            return ()
        counts = _equal_counts(future)
    if not any(counts):
        # What has no rows is cut as a whole.
        return range(len(future.futures))
    try:
        wanted = span_of(future._cuts, sum(counts))
    except ValueError:
        # The worker will tell what is wrong, or that the batch itself allows it.
        wanted = 0, sum(counts)
    return {span.part for span in overlaps(counts, *wanted)}


def _equal_counts(future: DataProtoFuture[Any]) -> list[int]:
    """The same number for all parts, which divides wherever the future is cut."""
    pieces = [cut.num_pieces for cut in future._cuts if isinstance(cut, Chunk)]
    return [math.prod(pieces)] * len(future.futures)
