"""Collectors: put the answers of one call together. Pure values that travel with futures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import verl_protocol
from verl_protocol.errors import MetaConflictError, counted
from verl_protocol.futures.any_batch import as_proto, as_protos, has_columns, is_batch, like

from verl_dispatch.errors import AnswerError, CallOptionError, kind_of
from verl_dispatch.planning.batches import answered_rows
from verl_dispatch.planning.layout import RowLayout, answers_per_row, unmatched_rows


@dataclass(frozen=True, slots=True)
class Collector:
    """Puts the answers of one call together.

    Attributes:
        method: name of the method, for messages.
        ranks: the ranks that answer, in the order of the answers.
        layout: how the rows of the call lie over these ranks; None where answers have no rows to trim.
    """

    method: str = ""
    ranks: tuple[int, ...] = ()
    layout: RowLayout | None = None

    def collect(self, outputs: Sequence[Any]) -> Any:
        """The result of the call, from the workers' answers."""
        raise NotImplementedError

    def arrange(self, futures: Sequence[Any]) -> Any:
        """What a non-blocking call returns, from one future per answer; the workers take the padding off."""
        return self.collect(futures)

    def part(self, index: int, output: Any) -> Any:
        """One answer as `stream` shows it: its padding taken off."""
        if self.layout is None:
            return output
        return self.layout.trim(self.method, self.ranks[index], index).apply(output)

    def after_worker_trims(self) -> Self:
        """The collector for answers that the workers have trimmed already."""
        return self if self.layout is None else replace(self, layout=self.layout.without_padding())


@dataclass(frozen=True, slots=True)
class SingleCollector(Collector):
    """The only answer."""

    def collect(self, outputs: Sequence[Any]) -> Any:
        """The answer."""
        return outputs[0]


@dataclass(frozen=True, slots=True)
class DictCollector(Collector):
    """Answers by rank."""

    def collect(self, outputs: Sequence[Any]) -> Any:
        """Rank -> answer."""
        return dict(zip(self.ranks, outputs, strict=True))


@dataclass(frozen=True, slots=True)
class ListCollector(Collector):
    """Answers as a list, in order; padding comes off those that are batches."""

    def collect(self, outputs: Sequence[Any]) -> Any:
        """All answers."""
        if self.layout is None or not self.layout.changes_answers:
            return list(outputs)
        return trimmed(self.method, self.ranks, self.layout, outputs)


@dataclass(frozen=True, slots=True)
class BatchCollector(Collector):
    """Answers joined to one batch: padding taken off, input order restored."""

    def collect(self, outputs: Sequence[Any]) -> Any:
        """One batch in the order of the input's rows.

        Raises:
            AnswerError: an answer that is no batch, answers that do not fit together, rows of a rank that
                would be lost, or padded or reordered rows that the answers cannot be matched with.
        """
        try:
            # Once for all that follows: a TensorDict takes long to take apart and put together.
            answers, back = as_protos(outputs)
            return back(self._joined(answers))
        except AnswerError:
            raise
        except (ValueError, TypeError, KeyError) as error:
            raise self._do_not_fit(outputs, error) from error

    def _joined(self, answers: list[Any]) -> Any:
        layout = self.layout
        if layout is None:
            return verl_protocol.DataProto.concat(answers)
        silent = [not len(answer) and not has_columns(answer) for answer in answers]
        check_all_answer(self.method, self.ranks, layout, silent)
        if not layout.changes_answers:
            return verl_protocol.DataProto.concat(answers)
        kept = trimmed(self.method, self.ranks, layout, answers)
        return in_input_order(verl_protocol.DataProto.concat(kept), layout.order)

    def _do_not_fit(self, outputs: Sequence[Any], cause: Exception) -> AnswerError:
        for rank, output in zip(self.ranks, outputs, strict=True):
            if not is_batch(output):
                return AnswerError(
                    f"{self.method!r} on rank {rank} answered {kind_of(output)}, but its mode joins batches "
                    "(DataProto or TensorDict); return a batch, or register the method with "
                    "DP_COMPUTE_METRIC to get a list of per-rank values"
                )
        first = [f"part {part} is the answer of rank {rank}" for part, rank in enumerate(self.ranks[:8])]
        more = ["and so on"] if len(self.ranks) > 8 else []
        own = "; what each rank has of its own belongs in meta_info['metrics']"
        parts = ", ".join([*first, *more]) + (own if isinstance(cause, MetaConflictError) else "")
        return AnswerError(f"the answers of {self.method!r} cannot be joined: {cause}; {parts}")


LIST = ListCollector()
SINGLE = SingleCollector()


def as_list(method: str, ranks: tuple[int, ...], layout: RowLayout | None) -> Collector:
    """A list; padding comes off those answers that are batches."""
    return LIST if layout is None or not layout.changes_answers else ListCollector(method, ranks, layout)


def untrimmed(method: str, ranks: tuple[int, ...], layout: RowLayout | None) -> Collector:
    """A list of values that are the ranks' own and no rows of the input, such as metrics."""
    return LIST


# --- rows of answers: which belong to which input rows, and how they come back in input order -------------


def check_all_answer(method: str, ranks: Sequence[int], layout: RowLayout, silent: Sequence[bool]) -> None:
    """Refuses a rank that got rows and is silent (answers no rows and no columns), where others answer rows.

    Raises:
        AnswerError: its rows would be lost, or its place in the order.
    """
    if not any(silent) or all(silent):
        return
    for rank, sent, is_silent in zip(ranks, layout.rows, silent, strict=True):
        if sent and is_silent:
            raise unmatched_rows(method, rank, sent, 0, "other ranks returned rows, and these would be lost")


def trimmed(method: str, ranks: Sequence[int], layout: RowLayout, outputs: Sequence[Any]) -> list[Any]:
    """All answers; those that are batches lose the rows that padding caused.

    Raises:
        AnswerError: rows that are no multiple of the rows sent, or not the same multiple on every rank.
    """
    first: int | None = None
    for rank, sent, output in zip(ranks, layout.rows, outputs, strict=True):
        returned = answered_rows(output)
        if returned is None or (not sent and not returned):
            continue
        multiple = answers_per_row(method, rank, sent, returned)
        first = first or multiple
        if multiple != first:
            why = f"{multiple} for each row, but another rank returned {first} for each"
            raise unmatched_rows(method, rank, sent, returned, why)
    return [
        layout.trim(method, rank, index).apply(output)
        for index, (rank, output) in enumerate(zip(ranks, outputs, strict=True))
    ]


def in_input_order(batch: Any, order: tuple[int, ...] | None) -> Any:
    """Rows that lie in `order`, k answers in a row for each, brought back to input order.

    Raises:
        CallOptionError: the rows are no multiple of those in `order`.
    """
    num_rows = answered_rows(batch) if order else None
    if not order or num_rows is None:
        return batch
    block = num_rows // len(order)
    if not block or num_rows % len(order):
        sent = f"{counted(len(order), 'row')} sent"
        problem = f"the result has {counted(num_rows, 'row')} for {sent}, so that no order can be restored"
        raise CallOptionError("balance", problem)
    inverse = sorted(range(len(order)), key=order.__getitem__)
    rows = [row * block + offset for row in inverse for offset in range(block)]
    return like(batch, as_proto(batch).select_idxs(rows))
