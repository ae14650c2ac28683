"""How the arguments of a call are cut into one piece per part. No argument is ever changed."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from verl_protocol import DataProtoFuture
from verl_protocol.errors import InvalidValueError
from verl_protocol.futures.any_batch import num_rows_of

from verl_dispatch.errors import CallOptionError, EntryCountError, UnsplittableArgumentError
from verl_dispatch.modes import Broadcast
from verl_dispatch.planning.batches import answered_rows, is_splittable, row_weights, wants_padding
from verl_dispatch.planning.layout import (
    RowLayout,
    balanced_layout,
    padded_layout,
    unequal_rows,
    uneven_layout,
    uneven_rows,
)
from verl_dispatch.planning.options import DEFAULT_OPTIONS, UNNAMED, CallOptions, Labels
from verl_dispatch.planning.parts import PaddedChunk, WorkerChunk

Lists: TypeAlias = tuple[tuple[list[Any], ...], dict[str, list[Any]]]
"""Arguments cut into parts: for each of them a list with one item per part."""

_ENTRIES = "a list or tuple with one entry per worker"
_BATCHES = "a DataProto, a TensorDict or a DataProtoFuture"


class SplitList(list[Any]):
    """The parts of one batch, which remember how its rows were laid out."""

    def __init__(self, parts: Sequence[Any], layout: RowLayout) -> None:
        super().__init__(parts)
        self.layout = layout


def layout_among(lists: Sequence[Any]) -> RowLayout | None:
    """How the rows of the call lie over its parts; None where no batch of known rows was split."""
    layouts = [each.layout for each in lists if isinstance(each, SplitList)]
    # A batch without rows in a padded call has a layout of its own, in which nothing is to be undone.
    return next(iter([each for each in layouts if each.changes_answers] or layouts), None)


def split_entries(
    num_workers: int, args: Sequence[Any], kwargs: Mapping[str, Any], labels: Labels = UNNAMED
) -> Lists:
    """Lists and tuples with one entry per worker; `Broadcast(x)` goes to all.

    Raises:
        EntryCountError: a list of another length.
        UnsplittableArgumentError: neither a list nor a tuple.
    """
    arguments = Arguments(args, kwargs, labels)
    lists = [_cut_value(arguments, index, num_workers, _ENTRIES) for index in range(len(arguments.values))]
    return arguments.cut_into(lists)


def split_batches(
    num_parts: int,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    labels: Labels = UNNAMED,
    options: CallOptions = DEFAULT_OPTIONS,
    *,
    takes_entries: bool = False,
) -> Lists:
    """Batches by rows; `Broadcast(x)` goes to all; with `takes_entries` also lists with one entry per part.

    Padding repeats the last row, in the parts only.

    Raises:
        UnsplittableArgumentError: an argument that is nothing of these.
        UnevenRowsError: rows that do not divide, and neither padding nor uneven parts asked for.
        RowCountError: batches of different rows in a padded, uneven or balanced call.
        CallOptionError: rows that cannot be balanced as asked.
    """
    arguments = Arguments(args, kwargs, labels)
    rows = {
        index: None if isinstance(value, DataProtoFuture) else num_rows_of(value)
        for index, value in enumerate(arguments.values)
        if is_splittable(value)
    }
    padded = _is_padded(arguments, rows, num_parts, options)
    common = _common_layout(arguments, rows, num_parts, padded, options)
    takes = (_BATCHES, _ENTRIES) if takes_entries else (_BATCHES,)
    lists = []
    for index, value in enumerate(arguments.values):
        if index not in rows:
            lists.append(_cut_value(arguments, index, num_parts, *takes))
        elif (num_rows := rows[index]) is None:
            # One part per worker; the driver neither waits for the future nor fetches any of it.
            kind, num_rows = PaddedChunk if padded else WorkerChunk, common.num_rows if common else None
            facts = options.uneven is not None, arguments.label(index), labels.method, num_rows
            lists.append([value._cut(kind(num_parts, piece, *facts)) for piece in range(num_parts)])
        else:
            layout = common
            if layout is None or answered_rows(value) is None:
                if num_rows % num_parts:
                    raise uneven_rows(arguments.label(index), num_rows, num_parts)
                layout = padded_layout(num_rows, num_parts)
            lists.append(SplitList(layout.cut(value), layout))
    return arguments.cut_into(lists)


class Arguments:
    """The arguments of one call in a row; what is wrong with one of them is said with its name."""

    def __init__(self, args: Sequence[Any], kwargs: Mapping[str, Any], labels: Labels) -> None:
        self.values = [*args, *kwargs.values()]
        self.labels = labels
        self._args, self._kwargs = args, kwargs

    def label(self, index: int) -> str:
        """The name of one of them."""
        return self.labels.all(self._args, self._kwargs)[index]

    def cut_into(self, lists: list[list[Any]]) -> Lists:
        """What became of each of them, by position and by name."""
        count = len(self._args)
        return tuple(lists[:count]), dict(zip(self._kwargs, lists[count:], strict=True))


Rows: TypeAlias = dict[int, int | None]
"""The rows of those arguments that are batches; None where only a worker will know them."""


def _is_padded(arguments: Arguments, rows: Rows, num_parts: int, options: CallOptions) -> bool:
    """Whether the batches of a call are padded: as the options say, else if one of them asks for it."""
    if options.auto_padding is not None or options.uneven is not None:
        return bool(options.auto_padding)
    match [*set(rows.values())]:
        case [int(num_rows)] if num_rows % num_parts == 0:
            return False  # whatever they ask for, there is nothing to pad
    return any(wants_padding(arguments.values[index]) for index in rows)


def _common_layout(
    arguments: Arguments, rows: Rows, num_parts: int, padded: bool, options: CallOptions
) -> RowLayout | None:
    """The layout for all batches; None where each has its own, or where only a worker will know the rows."""
    if not (padded or options.uneven or options.balance):
        return None
    known: dict[str, int] = {}
    for index, num_rows in rows.items():
        if num_rows is not None:
            if answered_rows(arguments.values[index]) is not None:
                known[arguments.label(index)] = num_rows
        elif options.balance:
            problem = f"{arguments.label(index)} is a future whose rows are not here yet; pass its .get()"
            raise CallOptionError(f"balance={options.balance!r}", problem)
    if not known:
        return None
    if len(set(known.values())) > 1:
        raise unequal_rows(arguments.labels.method, known)
    label, num_rows = next(iter(known.items()))
    if options.balance:
        weights = _weights([arguments.values[index] for index in rows], options.balance)
        try:
            return balanced_layout(
                label, weights, num_rows, num_parts, equal_size=options.equal_size, padded=padded
            )
        except InvalidValueError as error:
            raise CallOptionError(f"balance={options.balance!r}", str(error)) from None
    return padded_layout(num_rows, num_parts) if padded else uneven_layout(label, num_rows, num_parts)


def _weights(known: Sequence[Any], key: str) -> Any:
    for batch in known:
        try:
            weights = row_weights(batch, key)
        except (TypeError, ValueError) as error:
            raise CallOptionError(f"balance={key!r}", f"the column holds no numbers ({error})") from None
        if weights is not None:
            return weights
    raise CallOptionError(f"balance={key!r}", "none of the call's batches has this column")


def _cut_value(arguments: Arguments, index: int, num_parts: int, *takes: str) -> list[Any]:
    """One of them that is for all, or a list with one entry per part where the mode takes these."""
    value = arguments.values[index]
    if isinstance(value, Broadcast):
        return [value.value] * num_parts
    if _ENTRIES in takes and isinstance(value, (list, tuple)):
        if len(value) != num_parts:
            raise EntryCountError(arguments.label(index), num_parts, len(value))
        return list(value)
    expected, way, item = ", or ".join(takes), "", sys.modules.get("verl_protocol.batch.item")
    if is_splittable(value):
        expected += " (ALL_TO_ALL and DP_COMPUTE_PROTO split batches)"
    elif _BATCHES in takes and isinstance(value, getattr(item, "DataProtoItem", ())):
        way = "it is one row of a batch; take it as batch[i : i + 1], which is a batch of that row"
    elif _BATCHES in takes and (isinstance(value, Mapping) or hasattr(value, "shape")):
        way = "if it holds rows, make it a batch with DataProto.from_dict(tensors=..., non_tensors=...)"
    raise UnsplittableArgumentError(arguments.label(index), value, num_parts, expected, way)
