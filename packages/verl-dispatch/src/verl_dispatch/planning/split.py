"""How the arguments of a call are cut into one piece per part. No argument is ever changed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from verl_protocol.errors import InvalidValueError

from verl_dispatch.errors import CallOptionError, EntryCountError, UnsplittableArgumentError
from verl_dispatch.modes import Broadcast
from verl_dispatch.planning import batches
from verl_dispatch.planning.layout import (
    RowLayout,
    balanced_layout,
    even_layout,
    padded_layout,
    unequal_rows,
    uneven_layout,
)
from verl_dispatch.planning.options import DEFAULT_OPTIONS, UNNAMED, CallOptions, Labels
from verl_dispatch.planning.parts import split_future

__all__ = [
    "Label",
    "SplitArguments",
    "SplitList",
    "common_layout",
    "split_batches",
    "split_entries",
    "wants_padding",
]


Label: TypeAlias = Callable[[], str]
_Found: TypeAlias = Sequence[tuple[Label, Any]]


def wants_padding(found: _Found, options: CallOptions) -> bool:
    """Whether the batches of a call are padded: as the options say, else if one of them asks for it."""
    if options.auto_padding is not None or options.uneven is not None:
        return bool(options.auto_padding)
    return any(batches.wants_padding(batch) for _, batch in found)


def common_layout(found: _Found, num_parts: int, method: str, options: CallOptions) -> RowLayout | None:
    """The layout for all batches; None where each has its own, or where only a worker will know the rows.

    Raises:
        RowCountError: batches of different rows.
        UnevenRowsError: rows that cannot be laid out as asked.
        CallOptionError: balancing by a column that no batch has or that holds no weights, or of rows that
            are not here yet.
    """
    padded = wants_padding(found, options)
    if not (padded or options.uneven or options.balance):
        return None
    known = [
        (label, batch) for label, batch in found if not batches.is_future(batch) and batches.has_rows(batch)
    ]
    if options.balance:
        _refuse_futures(found, options.balance)
    if not known:
        return None
    label, num_rows = known[0][0](), _equal_rows(known, method)
    if options.balance:
        weights = _weights(known, options.balance)
        try:
            return balanced_layout(
                label, weights, num_rows, num_parts, equal_size=options.equal_size, padded=padded
            )
        except InvalidValueError as error:
            raise CallOptionError(f"balance={options.balance!r}", str(error)) from None
    return padded_layout(num_rows, num_parts) if padded else uneven_layout(label, num_rows, num_parts)


def _equal_rows(known: _Found, method: str) -> int:
    rows = {label(): batches.num_rows(batch) for label, batch in known}
    if len(set(rows.values())) > 1:
        raise unequal_rows(method, rows)
    return next(iter(rows.values()))


def _weights(known: _Found, key: str) -> Any:
    for _, batch in known:
        try:
            weights = batches.row_weights(batch, key)
        except (TypeError, ValueError) as error:
            raise CallOptionError(f"balance={key!r}", f"the column holds no numbers ({error})") from None
        if weights is not None:
            return weights
    raise CallOptionError(f"balance={key!r}", "none of the call's batches has this column")


def _refuse_futures(found: _Found, key: str) -> None:
    for label, batch in found:
        if batches.is_future(batch):
            raise CallOptionError(
                f"balance={key!r}", f"{label()} is a future whose rows are not here yet; pass its .get()"
            )


_BATCHES = "a DataProto, a TensorDict or a DataProtoFuture"
_ENTRIES = "a list or tuple with one entry per worker"
_Cut: TypeAlias = Callable[[Label, Any], list[Any]]


class SplitList(list[Any]):
    """The parts of one argument, which remember how its rows were laid out."""

    def __init__(self, parts: Sequence[Any], layout: RowLayout | None) -> None:
        super().__init__(parts)
        self.layout = layout


@dataclass(frozen=True, slots=True)
class SplitArguments:
    """Arguments cut into parts: every entry of `args` and `kwargs` is a list with one item per part.

    `layout` says how the rows of the batches were laid out; None where no batch of known rows was split.
    """

    args: tuple[list[Any], ...]
    kwargs: dict[str, list[Any]]
    layout: RowLayout | None = None
    num_batches: int = 0

    def part(self, index: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of one part."""
        return tuple([entry[index] for entry in self.args]), {
            name: entry[index] for name, entry in self.kwargs.items()
        }


def split_entries(
    num_workers: int, args: Sequence[Any], kwargs: Mapping[str, Any], labels: Labels = UNNAMED
) -> SplitArguments:
    """Lists and tuples with one entry per worker; `Broadcast(x)` goes to all.

    Raises:
        EntryCountError: a list of another length.
        UnsplittableArgumentError: neither a list nor a tuple.
    """

    def cut(label: Label, value: Any) -> list[Any]:
        if isinstance(value, Broadcast):
            return [value.value] * num_workers
        if isinstance(value, (list, tuple)):
            return _entries(label, value, num_workers)
        hint = " (ALL_TO_ALL and DP_COMPUTE_PROTO split batches)" if batches.is_splittable(value) else ""
        raise UnsplittableArgumentError(label(), value, num_workers, _ENTRIES + hint)

    return SplitArguments(*_cut_each(args, kwargs, labels, cut))


def split_batches(
    num_parts: int,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    labels: Labels = UNNAMED,
    options: CallOptions = DEFAULT_OPTIONS,
    *,
    takes_entries: bool = False,
) -> SplitArguments:
    """Batches by rows; `Broadcast(x)` goes to all; with `takes_entries` also lists with one entry per part.

    Padding repeats the last row, in the parts only.

    Raises:
        UnsplittableArgumentError: an argument that is nothing of these.
        UnevenRowsError: rows that do not divide, and neither padding nor uneven parts asked for.
        RowCountError: batches of different rows in a padded, uneven or balanced call.
    """
    found = _batches_among(args, kwargs, labels)
    layout = common_layout(found, num_parts, labels.method, options)
    cutter = _BatchCutter(num_parts, labels.method, options, wants_padding(found, options), layout, layout)

    def cut(label: Label, value: Any) -> list[Any]:
        if isinstance(value, Broadcast):
            return [value.value] * num_parts
        if batches.is_splittable(value):
            return cutter.cut(label, value)
        if takes_entries and isinstance(value, (list, tuple)):
            return _entries(label, value, num_parts)
        expected = f"{_BATCHES}, or {_ENTRIES}" if takes_entries else _BATCHES
        raise UnsplittableArgumentError(label(), value, num_parts, expected)

    positional, named = _cut_each(args, kwargs, labels, cut)
    return SplitArguments(positional, named, cutter.first_layout, len(found))


def _entries(label: Label, value: Sequence[Any], num_workers: int) -> list[Any]:
    if len(value) != num_workers:
        raise EntryCountError(label(), num_workers, len(value))
    return list(value)


def _cut_each(
    args: Sequence[Any], kwargs: Mapping[str, Any], labels: Labels, cut: _Cut
) -> tuple[tuple[list[Any], ...], dict[str, list[Any]]]:
    positional = tuple([cut(partial(labels.positional, index), value) for index, value in enumerate(args)])
    return positional, {name: cut(partial(labels.keyword, name), value) for name, value in kwargs.items()}


def _batches_among(args: Sequence[Any], kwargs: Mapping[str, Any], labels: Labels) -> list[tuple[Label, Any]]:
    positional = [(partial(labels.positional, index), value) for index, value in enumerate(args)]
    named = [(partial(labels.keyword, name), value) for name, value in kwargs.items()]
    return [(label, value) for label, value in [*positional, *named] if batches.is_splittable(value)]


@dataclass(slots=True)
class _BatchCutter:
    """Cuts the batches of one call, by the layout they have in common or else each by its own."""

    num_parts: int
    method: str
    options: CallOptions
    padded: bool
    common: RowLayout | None
    first_layout: RowLayout | None

    def cut(self, label: Label, batch: Any) -> list[Any]:
        if batches.is_future(batch):
            return split_future(
                batch, self.num_parts, self.options, self.padded, self.common, self.method, label
            )
        layout = self._layout_of(label, batch)
        self.first_layout = self.first_layout or layout
        return SplitList(layout.cut(batch), layout)

    def _layout_of(self, label: Label, batch: Any) -> RowLayout:
        if self.common is not None and batches.has_rows(batch):
            return self.common
        return even_layout(label(), batches.num_rows(batch), self.num_parts)
