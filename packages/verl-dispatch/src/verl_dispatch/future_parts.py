"""Futures among the arguments: cut without waiting for them, finished at the worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_protocol import DataProtoFuture

from verl_dispatch import batches
from verl_dispatch.errors import UnequalRowsError
from verl_dispatch.layout import RowLayout, padded_layout
from verl_dispatch.options import CallOptions
from verl_dispatch.row_trim import RowTrim

__all__ = ["FuturePart", "split_future"]


@dataclass(frozen=True, slots=True)
class FuturePart:
    """One padded part of a batch whose rows only the worker learns.

    Attributes:
        future: the whole batch.
        index: which of `num_parts` parts this is.
        num_parts: how many parts there are.
        num_rows: rows that the batch must have because another one of the call has them; None if nothing is
            known.
    """

    future: DataProtoFuture
    index: int
    num_parts: int
    num_rows: int | None = None
    method: str = ""

    def cut(self, batch: Any) -> tuple[Any, RowTrim | None]:
        """This part of the batch, and how to trim the answer where the driver cannot know."""
        rows = batches.num_rows(batch)
        if self.num_rows is not None and rows != self.num_rows:
            raise UnequalRowsError(self.method, {"another batch": self.num_rows, "a future": rows})
        layout = padded_layout(rows, self.num_parts)
        part = batches.split(batch, layout.sources())[self.index]
        known = self.num_rows is not None
        trim = (
            None
            if known
            else RowTrim(self.method, self.index, layout.rows[self.index], layout.pad[self.index])
        )
        return part, trim


def split_future(
    future: DataProtoFuture, num_parts: int, options: CallOptions, padded: bool, layout: RowLayout | None
) -> list[Any]:
    """One part per worker; the driver neither waits for the future nor fetches any of it."""
    if not padded:
        return list(future.chunk(num_parts, uneven=options.uneven is not None))
    num_rows = None if layout is None else layout.num_rows
    return [FuturePart(future, index, num_parts, num_rows) for index in range(num_parts)]
