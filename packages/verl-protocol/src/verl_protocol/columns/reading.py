"""Reading remote columns: what they name is fetched in one round and put together once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch

from verl_protocol.columns import ops
from verl_protocol.columns.remote import Piece, RemoteColumn, Store, zero_rows


class Stored:
    """A reference of `InProcessStore`: alive as long as somebody has it, and so are the columns."""

    __slots__ = ("columns",)
    columns: Mapping[str, Any]

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = columns


class InProcessStore:
    """A store in this process."""

    def put(self, columns: Mapping[str, Any]) -> Stored:
        """A reference to columns that nobody will write to."""
        return Stored(columns)

    def fetch(self, pieces: Sequence[Piece], columns: str) -> list[Mapping[str, Any]]:
        """What the reference of each piece stands for."""
        return [piece.ref.columns for piece in pieces]


WATCH: ContextVar[Callable[[Mapping[str, Any]], bool] | None] = ContextVar(
    "verl_protocol_watch", default=None
)
"""Gets columns by key, and says whether they may be read as views of the memory of their store."""


def read(column: Any, key: str = "a column", beside: Iterable[Any] = ()) -> Any:
    """The rows of a column, here; see `read_all`."""
    if not isinstance(column, RemoteColumn):
        return column
    return read_all({key: column}, beside)[key] if column.fetched is None else column.fetched


def read_all(columns: Mapping[str, Any], beside: Iterable[Any] = ()) -> dict[str, Any]:
    """The rows of all columns, here, with one fetch from each store; no column is read twice.

    What is given is private: writes reach neither the store nor another reader, unless `WATCH` is set.

    Args:
        columns: what is read.
        beside: other columns of the batch: those that lie in what is fetched need no fetch of their own.

    Raises:
        ColumnsLost: rows that are no longer there.
    """
    unread = {
        key: column.trimmed()
        for key, column in columns.items()
        if isinstance(column, RemoteColumn) and column.fetched is None
    }
    if unread:
        fetched: dict[Any, Mapping[str, Any]] = {}
        for key in unread:
            fetched.update(columns[key].at_hand)
        _fetch(unread, fetched)
        for column in beside:
            if isinstance(column, RemoteColumn) and all(
                piece.store is not None and piece.ref in fetched for piece in column.pieces
            ):
                column.at_hand = {piece.ref: fetched[piece.ref] for piece in column.pieces}
        for group in _alike(unread):
            for key, column in _assembled(group, fetched).items():
                columns[key].keep(column)
    return {
        key: column.fetched if isinstance(column, RemoteColumn) else column for key, column in columns.items()
    }


def _alike(columns: Mapping[str, RemoteColumn]) -> Iterable[dict[str, RemoteColumn]]:
    """Columns that lie side by side: put together at once, those that share offsets still do."""
    groups: dict[Any, dict[str, RemoteColumn]] = {}
    for key, column in columns.items():
        # Pieces that are here are each the rows themselves.
        pieces = [piece.store and (id(piece.store), piece.ref) for piece in column.pieces]
        rows = column.rows if isinstance(column.rows, range) else column.rows.tobytes()
        groups.setdefault((tuple(pieces), rows), {})[key] = column
    return groups.values()


def _fetch(columns: Mapping[str, RemoteColumn], found: dict[Any, Mapping[str, Any]]) -> None:
    """Add to `found`, by reference, what pieces of these columns lie in and is not there yet."""
    wanted: dict[int, tuple[Store, dict[Any, Piece], dict[str, None]]] = {}
    for key, column in columns.items():
        for piece in column.pieces:
            if piece.store is not None and piece.ref not in found:
                _, pieces, keys = wanted.setdefault(id(piece.store), (piece.store, {}, {}))
                pieces[piece.ref] = piece
                keys[key] = None
    for store, pieces, keys in wanted.values():
        values = store.fetch(list(pieces.values()), ", ".join(keys))
        found.update(zip(pieces, values, strict=True))


def _assembled(
    columns: Mapping[str, RemoteColumn], fetched: Mapping[Any, Mapping[str, Any]]
) -> dict[str, Any]:
    """The rows of columns that lie side by side, in memory that nobody else has."""
    model = next(iter(columns.values()))
    if not len(model.rows):
        return {key: zero_rows(column.form, 0) for key, column in columns.items()}
    parts: list[dict[str, Any]] = [{} for _ in model.pieces]
    for key, column in columns.items():
        for part, piece in zip(parts, column.pieces, strict=True):
            part[key] = piece.ref if piece.store is None else fetched[piece.ref][piece.key]
    whole = parts[0] if len(parts) == 1 else ops.concat_all(parts)
    rows = model.rows if isinstance(model.rows, range) else torch.from_numpy(model.rows)
    made, watch = ops.take_all(whole, rows), WATCH.get()
    if len(parts) == 1 and isinstance(model.rows, range) and (watch is None or not watch(made)):
        made = ops.concat_all([made])
    for key, column in made.items():
        device = columns[key].form.device
        if isinstance(column, np.ndarray):
            column.flags.writeable = False
        elif device is not None and column.device != device:
            made[key] = column.to(device)
    return made


class ColumnsOnDemand(dict[str, Any]):
    """A dict of columns that reads a remote one when it is asked for; keys and length read nothing."""

    def __getitem__(self, key: str) -> Any:
        return read(super().__getitem__(key), key, super().values())

    # A dict whose iteration is its own is copied through `keys` and `[]`, and not past this class.
    def __iter__(self) -> Iterator[str]:
        return super().__iter__()

    def get(self, key: str, default: Any = None) -> Any:
        """The column, here."""
        return read(super().get(key, default), key)

    def items(self) -> Any:
        """Keys and columns, all read in one round."""
        return read_all(held_in(self)).items()

    def values(self) -> Any:
        """The columns, all read in one round."""
        return read_all(held_in(self)).values()

    def popitem(self) -> tuple[str, Any]:
        """Take the last column out, here."""
        key, column = super().popitem()
        return key, read(column, key)


def held_in(columns: dict[str, Any]) -> dict[str, Any]:
    """The columns as they are held, in a dict of their own: remote ones unread, unless written to."""
    # Not `columns.items()` or a copy of it, which read them where they are ColumnsOnDemand.
    held = dict(dict.items(columns))
    for key, column in held.items():
        if isinstance(column, RemoteColumn) and column.fetched is not None:
            held[key] = column.settled()
    return held
