"""Which parts of a future a worker will want, said by the driver, which has fetched none of them."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from verl_dispatch.future_parts import FuturePart
from verl_dispatch.plan import CallPlan
from verl_dispatch.plan_facts import arguments_of
from verl_protocol import DataProtoFuture
from verl_protocol.future_part import Deadline, values_of
from verl_protocol.future_rows import Cut, overlaps, span_of

from verl_ray.direct_refs import transport_of
from verl_ray.futures import AnswerPart, fetch_answers
from verl_ray.sealed import is_one_whole_part

__all__ = ["futures_of", "is_direct", "knows_row_counts", "learn_row_counts", "needed_parts", "whole_part"]


def futures_of(plan: CallPlan) -> list[DataProtoFuture[Any]]:
    """The futures among the arguments; one of the pieces that a future was cut into stands for all."""
    found: dict[int, DataProtoFuture[Any]] = {}
    for call in plan.calls:
        for value in arguments_of(call):
            future = value.future if isinstance(value, FuturePart) else value
            if isinstance(future, DataProtoFuture):
                # All pieces share the lists of parts and of row counts.
                found.setdefault(id(future.futures), future)
    return list(found.values())


def is_direct(future: DataProtoFuture[Any]) -> bool:
    """Whether parts of it stay in the memory of the workers that made them."""
    return any(map(_is_direct_part, future.futures))


def _is_direct_part(part: Any) -> bool:
    if isinstance(part, DataProtoFuture):
        return is_direct(part)
    return isinstance(part, AnswerPart) and transport_of(part.ref) is not None


def learn_row_counts(future: DataProtoFuture[Any]) -> None:
    """Wait for the row counts of the parts, once for all pieces of the future.

    Raises:
        WorkerGroupError: a worker that makes a part failed.
    """
    if future.tells_rows and future.row_counts is not None and not knows_row_counts(future):
        # All pieces share this list.
        future.row_counts[:] = values_of(future.row_counts, Deadline(None), fetch_answers)


def knows_row_counts(future: DataProtoFuture[Any]) -> bool:
    """Whether all row counts are numbers by now."""
    counts = future.row_counts
    return counts is not None and all(isinstance(count, (int, np.integer)) for count in counts)


def whole_part(future: DataProtoFuture[Any]) -> int | None:
    """The index of the part that this piece consists of, if it is one whole part, of which it is known."""
    counts = future.row_counts
    if counts is None or not (future.tells_rows and knows_row_counts(future)):
        return None
    try:
        spans = future._spans(counts)
    except ValueError:
        # The worker will tell what is wrong.
        return None
    return spans[0].part if is_one_whole_part(spans, counts) and spans is not None else None


def needed_parts(future: DataProtoFuture[Any], padded: FuturePart | None = None) -> Collection[int]:
    """Indices of the parts that the rows of a piece lie in.

    While row counts are not known, all parts are taken to have equal rows; no part is named where that says
    nothing.

    Args:
        future: the piece; the whole batch where `padded` says which piece of it is meant.
        padded: the padded part that the worker gets of the batch.
    """
    counts = future.row_counts
    if counts is None or not future.futures:
        return range(len(future.futures))
    if not knows_row_counts(future):
        if not all(isinstance(cut, Cut) for cut in future._cuts):
            return ()
        counts = _equal_counts(future, padded)
    if not any(counts):
        # What has no rows is cut as a whole.
        return range(len(future.futures))
    return {span.part for span in overlaps(counts, *_span(future, padded, counts))}


def _equal_counts(future: DataProtoFuture[Any], padded: FuturePart | None) -> list[int]:
    """The same number for all parts, which divides wherever the future is cut."""
    pieces = [cut.num_pieces for cut in future._cuts if isinstance(cut, Cut)]
    return [math.prod(pieces) * (1 if padded is None else padded.num_parts)] * len(future.futures)


def _span(future: DataProtoFuture[Any], padded: FuturePart | None, counts: Sequence[int]) -> tuple[int, int]:
    try:
        start, stop = span_of(future._cuts, sum(counts))
        if padded is None:
            return start, stop
        first, last = padded.rows_of(stop - start).span(stop - start)
    except ValueError:
        # The worker will tell what is wrong, or that the batch itself allows it.
        return 0, sum(counts)
    return start + first, start + last
