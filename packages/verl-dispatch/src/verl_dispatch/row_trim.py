"""Which rows of an answer belong to rows that were sent, and which to padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from verl_dispatch import batches
from verl_dispatch.errors import AnswerRowsError

__all__ = ["RowTrim", "answers_per_row"]


def answers_per_row(method: str, rank: int, sent: int, returned: int) -> int:
    """How many rows an answer has for each row sent.

    Raises:
        AnswerRowsError: no whole number of at least one.
    """
    if sent == returned:
        return 1
    if sent == 0 or returned == 0 or returned % sent:
        raise AnswerRowsError(method, rank, sent, returned, "its rows cannot be matched with the rows sent")
    return returned // sent


@dataclass(frozen=True, slots=True)
class RowTrim:
    """Takes padding off one rank's answer: it was sent `rows` rows, the last `pad` of them padding."""

    method: str
    rank: int
    rows: int
    pad: int

    def kept(self, returned: int) -> int:
        """How many of the returned rows stay.

        Raises:
            AnswerRowsError: the rows returned are no multiple of the rows sent.
        """
        return (self.rows - self.pad) * answers_per_row(self.method, self.rank, self.rows, returned)

    def apply(self, answer: Any) -> Any:
        """The answer without padding rows; an answer that is no batch, or has no rows, stays as it is."""
        if not batches.has_rows(answer):
            return answer
        returned = batches.num_rows(answer)
        kept = self.kept(returned)
        return answer if kept == returned else batches.without_last(answer, returned - kept)
