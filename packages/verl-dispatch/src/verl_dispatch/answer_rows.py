"""Rows of answers: which belong to which input rows, and how they come back in input order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_dispatch import batches
from verl_dispatch.errors import AnswerNotBatchError, AnswerRowsError, AnswersDifferError, CallOptionError
from verl_dispatch.layout import RowLayout, answers_per_row

__all__ = ["in_input_order", "joined_batches", "trimmed"]


def joined_batches(
    method: str, ranks: Sequence[int], layout: RowLayout | None, outputs: Sequence[Any]
) -> Any:
    """All answers as one batch, in the order of the input's rows, without padding.

    Raises:
        AnswerNotBatchError: an answer that is no batch.
        AnswersDifferError: answers that do not fit together.
        AnswerRowsError: padded or reordered rows that the answers cannot be matched with.
    """
    for rank, output in zip(ranks, outputs, strict=True):
        if not batches.is_batch(output):
            raise AnswerNotBatchError(method, rank, output)
    if layout is None or not layout.changes_answers:
        return _concatenated(method, ranks, outputs)
    kept = trimmed(method, ranks, layout, outputs)
    return in_input_order(_concatenated(method, ranks, kept), layout.order)


def _concatenated(method: str, ranks: Sequence[int], outputs: Sequence[Any]) -> Any:
    try:
        return batches.concat(outputs)
    except (ValueError, TypeError, KeyError) as error:
        raise AnswersDifferError(method, ranks, error) from error


def trimmed(method: str, ranks: Sequence[int], layout: RowLayout, outputs: Sequence[Any]) -> list[Any]:
    """All answers; those that are batches lose the rows that padding caused.

    Raises:
        AnswerRowsError: rows that are no multiple of the rows sent, or not the same multiple on every rank.
    """
    _check_one_multiple(method, ranks, layout, outputs)
    return [
        layout.trim(method, rank, index).apply(output)
        for index, (rank, output) in enumerate(zip(ranks, outputs, strict=True))
    ]


def _check_one_multiple(method: str, ranks: Sequence[int], layout: RowLayout, outputs: Sequence[Any]) -> None:
    first: int | None = None
    _check_none_is_silent(method, ranks, layout, outputs)
    for rank, rows, output in zip(ranks, layout.rows, outputs, strict=True):
        if not batches.has_rows(output):
            continue
        returned = batches.num_rows(output)
        if not rows and not returned:
            continue
        multiple = answers_per_row(method, rank, rows, returned)
        first = first or multiple
        if multiple != first:
            why = f"{multiple} for each row, but another rank returned {first} for each"
            raise AnswerRowsError(method, rank, rows, returned, why)


def _check_none_is_silent(
    method: str, ranks: Sequence[int], layout: RowLayout, outputs: Sequence[Any]
) -> None:
    """Reordered rows need an answer for each of them: from all ranks, or from none."""
    silent = [not batches.has_rows(output) for output in outputs]
    if layout.order is None or all(silent) or not any(silent):
        return
    index = silent.index(True)
    why = "other ranks returned rows, whose order cannot be restored without these"
    raise AnswerRowsError(method, ranks[index], layout.rows[index], 0, why)


def in_input_order(batch: Any, order: tuple[int, ...] | None) -> Any:
    """Rows that lie in `order`, k answers in a row for each, brought back to input order.

    Raises:
        CallOptionError: the rows are no multiple of those in `order`.
    """
    if not order or not batches.has_rows(batch):
        return batch
    num_rows = batches.num_rows(batch)
    block = num_rows // len(order)
    if not block or num_rows % len(order):
        problem = (
            f"the result has {num_rows} rows for {len(order)} rows sent, so that no order can be restored"
        )
        raise CallOptionError("balance", problem)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return batches.take(batch, [row * block + offset for row in inverse for offset in range(block)])
