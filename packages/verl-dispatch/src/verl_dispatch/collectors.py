"""Collectors: put the answers of one call together. Pure values that travel with futures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias, TypeVar

from verl_dispatch.answer_rows import joined_batches, trimmed
from verl_dispatch.layout import RowLayout

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
]

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
