"""Collectors: put the answers of one call together. Pure values that travel with futures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from verl_protocol.errors import MetaConflictError

from verl_dispatch.errors import AnswerError, CallOptionError, kind_of
from verl_dispatch.planning import batches
from verl_dispatch.planning.layout import RowLayout, answers_per_row, unmatched_rows

__all__ = [
    "LIST",
    "SINGLE",
    "BatchCollector",
    "CollectKind",
    "Collector",
    "DictCollector",
    "ListCollector",
    "SingleCollector",
    "TrimmedListCollector",
    "in_input_order",
    "joined_batches",
    "trimmed",
]


# --- Rows of answers: which belong to which input rows, and how they come back in input order -------------


def joined_batches(
    method: str, ranks: Sequence[int], layout: RowLayout | None, outputs: Sequence[Any]
) -> Any:
    """All answers as one batch, in the order of the input's rows, without padding.

    Raises:
        AnswerError: an answer that is no batch, answers that do not fit together, or padded or reordered
            rows that the answers cannot be matched with.
    """
    for rank, output in zip(ranks, outputs, strict=True):
        if not batches.is_batch(output):
            raise AnswerError(
                f"{method!r} on rank {rank} answered {kind_of(output)}, but its mode joins batches "
                "(DataProto or TensorDict); return a batch, or register the method with "
                "DP_COMPUTE_METRIC to get a list of per-rank values"
            )
    if layout is None or not layout.changes_answers:
        return _concatenated(method, ranks, outputs)
    kept = trimmed(method, ranks, layout, outputs)
    return in_input_order(_concatenated(method, ranks, kept), layout.order)


def _concatenated(method: str, ranks: Sequence[int], outputs: Sequence[Any]) -> Any:
    try:
        return batches.concat(outputs)
    except (ValueError, TypeError, KeyError) as error:
        raise _do_not_fit(method, ranks, error) from error


def _do_not_fit(method: str, ranks: Sequence[int], cause: Exception) -> AnswerError:
    first = ", ".join(f"part {part} is the answer of rank {rank}" for part, rank in enumerate(ranks[:8]))
    more = ", and so on" if len(ranks) > 8 else ""
    own = "; what each rank has of its own belongs in meta_info['metrics']"
    ways = own if isinstance(cause, MetaConflictError) else ""
    return AnswerError(f"the answers of {method!r} cannot be joined: {cause}; {first}{more}{ways}")


def trimmed(method: str, ranks: Sequence[int], layout: RowLayout, outputs: Sequence[Any]) -> list[Any]:
    """All answers; those that are batches lose the rows that padding caused.

    Raises:
        AnswerError: rows that are no multiple of the rows sent, or not the same multiple on every rank.
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
            raise unmatched_rows(method, rank, rows, returned, why)


def _check_none_is_silent(
    method: str, ranks: Sequence[int], layout: RowLayout, outputs: Sequence[Any]
) -> None:
    """Reordered rows need an answer for each of them: from all ranks, or from none."""
    silent = [not batches.has_rows(output) for output in outputs]
    if layout.order is None or all(silent) or not any(silent):
        return
    index = silent.index(True)
    why = "other ranks returned rows, whose order cannot be restored without these"
    raise unmatched_rows(method, ranks[index], layout.rows[index], 0, why)


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


# --------------------------------------------------------------------------------------------------------


C = TypeVar("C")
CollectKind: TypeAlias = Literal["list", "single", "dict", "batch", "custom"]


class Collector(Protocol):
    """Puts the answers of one call together. Answers come in the order of the plan's `fetched_ranks`."""

    @property
    def kind(self) -> CollectKind:
        """What a non-blocking call returns: "batch" a DataProtoFuture, all others `arrange(futures)`."""
        ...

    def collect(self, outputs: Sequence[Any]) -> Any:
        """The result of the call, from the workers' answers."""
        ...

    def arrange(self, futures: Sequence[Any]) -> Any:
        """What a non-blocking call returns, from one future per answer."""
        ...

    def part(self, index: int, output: Any) -> Any:
        """One answer as `stream` shows it: its padding taken off."""
        ...

    def after_worker_trims(self) -> Collector:
        """The collector for answers that the workers have trimmed already."""
        ...


class _AsItCame:
    __slots__ = ()

    def part(self, index: int, output: Any) -> Any:
        """The answer as it came."""
        return output

    def after_worker_trims(self) -> Self:
        """The same: it never trims."""
        return self


@dataclass(frozen=True, slots=True)
class ListCollector(_AsItCame):
    """Answers as a list, in order."""

    kind: ClassVar[CollectKind] = "list"

    def collect(self, outputs: Sequence[Any]) -> Any:
        """All answers."""
        return list(outputs)

    def arrange(self, futures: Sequence[Any]) -> Any:
        """All futures."""
        return list(futures)


@dataclass(frozen=True, slots=True)
class SingleCollector(_AsItCame):
    """The only answer."""

    kind: ClassVar[CollectKind] = "single"

    def collect(self, outputs: Sequence[Any]) -> Any:
        """The answer."""
        return outputs[0]

    def arrange(self, futures: Sequence[Any]) -> Any:
        """The future."""
        return futures[0]


@dataclass(frozen=True, slots=True)
class DictCollector(_AsItCame):
    """Answers by rank."""

    ranks: tuple[int, ...]
    kind: ClassVar[CollectKind] = "dict"

    def collect(self, outputs: Sequence[Any]) -> Any:
        """Rank -> answer."""
        return dict(zip(self.ranks, outputs, strict=True))

    def arrange(self, futures: Sequence[Any]) -> Any:
        """Rank -> future."""
        return dict(zip(self.ranks, futures, strict=True))


@dataclass(frozen=True, slots=True)
class TrimmedListCollector:
    """Answers as a list; padding comes off those that are batches."""

    method: str
    ranks: tuple[int, ...]
    layout: RowLayout
    kind: ClassVar[CollectKind] = "list"

    def collect(self, outputs: Sequence[Any]) -> Any:
        """All answers, without padding rows."""
        return trimmed(self.method, self.ranks, self.layout, outputs)

    def arrange(self, futures: Sequence[Any]) -> Any:
        """All futures; a non-blocking call has the padding taken off by the workers."""
        return list(futures)

    def after_worker_trims(self) -> Collector:
        """A plain list."""
        return LIST

    def part(self, index: int, output: Any) -> Any:
        """One answer, without padding rows."""
        return _trimmed_part(self.method, self.ranks, self.layout, index, output)


@dataclass(frozen=True, slots=True)
class BatchCollector:
    """Answers joined to one batch: padding taken off, input order restored."""

    method: str
    ranks: tuple[int, ...]
    layout: RowLayout | None = None
    kind: ClassVar[CollectKind] = "batch"

    def collect(self, outputs: Sequence[Any]) -> Any:
        """One batch in the order of the input's rows."""
        return joined_batches(self.method, self.ranks, self.layout, outputs)

    def arrange(self, futures: Sequence[Any]) -> Any:
        """Not used: a group makes a DataProtoFuture."""
        return list(futures)

    def part(self, index: int, output: Any) -> Any:
        """One answer, without padding rows."""
        return (
            output
            if self.layout is None
            else _trimmed_part(self.method, self.ranks, self.layout, index, output)
        )

    def after_worker_trims(self) -> Collector:
        """The same, without padding to take off."""
        return self if self.layout is None else replace(self, layout=self.layout.without_padding())


def _trimmed_part(method: str, ranks: tuple[int, ...], layout: RowLayout, index: int, output: Any) -> Any:
    return layout.trim(method, ranks[index], index).apply(output)


LIST = ListCollector()
SINGLE = SingleCollector()
