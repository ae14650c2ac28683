"""A remote column: its rows lie in a store, and a row map says which of them it has, in which order.

Row operations compose row maps and move nothing. Only `read` fetches rows, all columns of a batch in one
round, and a column once: what it has fetched stays with it. Where such a column is made and which store it
reads from is not known here; a store is whatever gives the values of references.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import attrgetter
from typing import Any, NamedTuple, NoReturn, Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.columns.dense import as_plain
from verl_protocol.columns.index import RowIndex
from verl_protocol.columns.jagged import build_jagged, ragged_dim
from verl_protocol.errors import counted
from verl_protocol.kinds import is_jagged


class Store(Protocol):
    """Where pieces of columns lie; a reference keeps what it stands for."""

    def put(self, columns: Mapping[str, Any]) -> Any:
        """A reference to these columns."""

    def fetch(self, pieces: Sequence[Piece], columns: str) -> list[Mapping[str, Any]]:
        """What the reference of each piece stands for: columns by key, which nobody writes to.

        References are hashable, and equal where they stand for the same.

        Args:
            pieces: pieces in this store, one of each reference.
            columns: names of the columns that are read, for the error.

        Raises:
            ColumnsLost: what a reference stands for is no longer there.
        """
        ...


class ColumnForm(NamedTuple):
    """What all pieces of a column have in common.

    Attributes:
        kind: dense or jagged tensors, or arrays.
        dtype: of torch for tensors, of numpy for arrays.
        row_shape: the shape of one row; None where the rows of a jagged column differ.
        device: where a tensor lies once it is fetched.
    """

    kind: str
    dtype: Any
    row_shape: tuple[int | None, ...]
    device: torch.device | None = None


def form_of(column: Any) -> ColumnForm:
    """The form of a tensor, an array or a remote column."""
    if isinstance(column, RemoteColumn):
        return column.form
    if isinstance(column, np.ndarray):
        return ColumnForm("array", column.dtype, column.shape[1:])
    if not is_jagged(column):
        return ColumnForm("dense", column.dtype, tuple(column.shape[1:]), column.device)
    ragged = ragged_dim(column)
    sizes = tuple(None if dim == ragged else size for dim, size in enumerate(column.shape))
    return ColumnForm("jagged", column.dtype, sizes[1:], column.device)


def zero_rows(form: ColumnForm, num_rows: int) -> Any:
    """A column of this form whose rows are zeros: None for objects, and without entries where jagged."""
    shape = (num_rows, *(size or 0 for size in form.row_shape))
    if form.kind == "array":
        return np.full(shape, None) if form.dtype == object else np.zeros(shape, form.dtype)
    if form.kind == "jagged":
        values = torch.empty(shape[1:], dtype=form.dtype, device=form.device)
        offsets = torch.zeros(num_rows + 1, dtype=torch.int64, device=form.device)
        return build_jagged(values, offsets, form.row_shape.index(None) + 1)
    made = torch.empty(shape, dtype=form.dtype, device=form.device)
    as_plain(made).zero_()
    return made


Origin: TypeAlias = "tuple[Any, ...]"
"""Who made a piece, for the error that tells of its loss: group, method, rank and generation."""


class Piece(NamedTuple):
    """Some rows of a column under one reference.

    Attributes:
        store: what `ref` belongs to; None where `ref` is the rows themselves.
        key: the name of the column among those that the reference stands for.
        num_rows: rows under the reference, whether the column has them all or not.
        nbytes: bytes of these rows.
        origin: the worker that made it; None for what a driver has stored itself.
    """

    store: Store | None
    ref: Any
    key: str
    num_rows: int
    nbytes: int
    origin: Origin | None = None

    @property
    def name(self) -> tuple[Any, ...]:
        """What tells its rows from those of all other pieces."""
        return (0, id(self.ref), "") if self.store is None else (id(self.store), self.ref, self.key)


RowMap: TypeAlias = "range | NDArray[np.int64]"
"""Rows of all pieces, counted through.

Kept by numpy: on a busy machine torch's threads wait for each other longer than all of this takes.
"""


class RemoteColumn:
    """Rows of pieces, in the order of a row map; never changed once made, but for what it has fetched.

    Attributes:
        form: kind, dtype and shape of the rows.
        pieces: where they lie.
        rows: which of their rows this column has.
        starts: where each piece begins among the rows of all, and where the last one ends.
        fetched: the rows, if they have been read; None otherwise.
        at_hand: by reference, what has been fetched of its pieces for a column beside it that was read.
    """

    __slots__ = ("_version", "at_hand", "fetched", "form", "pieces", "rows", "starts")

    def __init__(
        self,
        form: ColumnForm,
        pieces: Iterable[Piece],
        rows: RowMap | None = None,
        starts: Sequence[int] | None = None,
    ) -> None:
        self.form: ColumnForm = form
        self.pieces: tuple[Piece, ...] = tuple(pieces)
        self.starts: Sequence[int] = _starts_of(self.pieces) if starts is None else starts
        self.rows: RowMap = range(self.starts[-1]) if rows is None else rows
        self.at_hand: Mapping[Any, Mapping[str, Any]] = {}
        self.fetched: Any = None
        self._version = -1

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def dtype(self) -> Any:
        """The dtype of the rows, as the column that is fetched has it."""
        return self.form.dtype

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Rows, then the shape of one; None where rows differ."""
        return (len(self), *self.form.row_shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return 1 + len(self.form.row_shape)

    @property
    def is_nested(self) -> bool:
        """Whether it is jagged."""
        return self.form.kind == "jagged"

    @property
    def nbytes(self) -> int:
        """Bytes that reading it gives; where rows differ in size, their share of what lies in the pieces."""
        form = self.form
        if form.kind != "jagged" and form.dtype != object:
            return len(self) * math.prod(size or 0 for size in form.row_shape) * int(form.dtype.itemsize)
        held = self.starts[-1]
        return 0 if not held else sum(piece.nbytes for piece in self.pieces) * len(self) // held

    def keep(self, column: Any) -> None:
        """Keep the rows that were read."""
        self.fetched, self._version, self.at_hand = column, _version_of(column), {}

    def settled(self) -> Any:
        """This column; or its rows as they are now, once somebody has written to what was read."""
        changed = self.fetched is not None and _version_of(self.fetched) != self._version
        return self.fetched if changed else self

    # Row operations

    def take(self, index: RowIndex) -> RemoteColumn:
        """The rows of a normalised index."""
        rows: RowMap = self.rows
        if not isinstance(index, range):
            picked = index.numpy()
            rows = rows.start + picked * rows.step if isinstance(rows, range) else rows[picked]
        elif index.step == 1:
            rows = rows[index.start : index.stop]
        elif isinstance(rows, range):
            start, stop = (rows.start + end * rows.step for end in (index.start, index.stop))
            rows = range(start, stop, rows.step * index.step)
        else:
            rows = rows[np.asarray(index, np.int64)]
        return RemoteColumn(self.form, self.pieces, rows, self.starts)

    def trimmed(self) -> RemoteColumn:
        """The same rows with only those pieces that they lie in, which is all that a reader has to know."""
        rows, starts, kept = self.rows, self.starts, self.pieces
        if isinstance(rows, range) and rows.step == 1:
            # Rows that follow one another lie in pieces that do.
            first = bisect_right(starts, rows.start) - 1 if rows else 0
            kept = kept[first : bisect_left(starts, rows.stop)] if rows else ()
            rows = range(rows.start - starts[first], rows.stop - starts[first])
        else:
            used = np.unique(_owner_of_each(rows, starts)).tolist()
            kept = tuple([kept[place] for place in used])
            shifts = {at: start - starts[at] for at, start in zip(used, _starts_of(kept), strict=False)}
            rows = _shifted(rows, starts, shifts)
        if len(kept) == len(self.pieces):
            return self
        fewer = RemoteColumn(self.form, kept, rows)
        fewer.fetched, fewer._version = self.fetched, self._version
        return fewer

    def to(self, device: torch.device) -> RemoteColumn:
        """The same rows, to be read onto a device."""
        moved = RemoteColumn(self.form._replace(device=device), self.pieces, self.rows, self.starts)
        if self.fetched is not None:
            moved.keep(self.fetched.to(device))
        return moved

    def names_same(self, other: object) -> bool:
        """Whether both are the same rows of the same pieces, in the same order."""
        if not isinstance(other, RemoteColumn):
            return False
        names, others = ([piece.name for piece in column.pieces] for column in (self, other))
        mine, theirs = self.rows, other.rows
        ranges = isinstance(mine, range) and isinstance(theirs, range)
        same = mine is theirs or (mine == theirs if ranges else np.array_equal(mine, theirs))
        return names == others and bool(same)

    def __deepcopy__(self, memo: dict[int, Any]) -> RemoteColumn:
        return RemoteColumn(self.form, self.pieces, self.rows, self.starts)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a remote column is pickled by the batch that it belongs to")

    def __repr__(self) -> str:
        places = counted(len(self.pieces), "piece")
        return f"RemoteColumn({self.form.kind} {self.dtype}{list(self.shape)} in {places})"


def concat_remote(columns: Sequence[Any]) -> RemoteColumn:
    """The rows of all columns, one after the other; columns that are here become pieces of their own."""
    # Trimmed, as each part of a batch that was cut into many still names all pieces.
    parts = [column.trimmed() if isinstance(column, RemoteColumn) else _here(column) for column in columns]
    begins: dict[Any, int] = {}
    pieces: list[Piece] = []
    starts, maps = [0], []
    for part in parts:
        shifts = {}
        for place, piece in enumerate(part.pieces):
            name = piece.name
            if name not in begins:
                begins[name] = starts[-1]
                pieces.append(piece)
                starts.append(starts[-1] + piece.num_rows)
            shifts[place] = begins[name] - part.starts[place]
        maps.append(_shifted(part.rows, part.starts, shifts))
    return RemoteColumn(parts[0].form, pieces, _joined(maps), starts)


def _shifted(rows: RowMap, starts: Sequence[int], shifts: Mapping[int, int]) -> RowMap:
    """The rows, each moved as its piece is; a range stays one where all pieces that it lies in move alike."""
    if isinstance(rows, range) and len(alike := set(shifts.values())) < 2:
        shift = alike.pop() if alike else 0
        return range(rows.start + shift, rows.stop + shift, rows.step)
    by_place = np.array([shifts.get(place, 0) for place in range(len(starts) - 1)], np.int64)
    return np.asarray(rows, np.int64) + by_place[_owner_of_each(rows, starts)]


def _joined(maps: Sequence[RowMap]) -> RowMap:
    """One map after the other; ranges that go on where the last one ended stay one."""
    filled = [rows for rows in maps if len(rows)] or [range(0)]
    whole = filled[0]
    for rows in filled[1:]:
        if not isinstance(whole, range) or not isinstance(rows, range) or whole.stop != rows.start:
            break
        if (whole.step, rows.step) != (1, 1):
            break
        whole = range(whole.start, rows.stop)
    else:
        return whole
    return np.concatenate([np.asarray(rows, np.int64) for rows in filled])


def _starts_of(pieces: Sequence[Piece]) -> list[int]:
    """Where each piece begins among the rows of all, and where the last one ends."""
    return list(accumulate(map(attrgetter("num_rows"), pieces), initial=0))


def _owner_of_each(rows: RowMap, starts: Sequence[int]) -> NDArray[np.int64]:
    return np.searchsorted(np.asarray(starts[1:]), np.asarray(rows, np.int64), side="right")


def _here(column: Any) -> RemoteColumn:
    nbytes = int(getattr(column, "nbytes", 0))
    return RemoteColumn(form_of(column), [Piece(None, column, "", int(column.shape[0]), nbytes)])


def _version_of(column: Any) -> int:
    """How often torch has seen a write into the column; arrays are handed out read-only instead."""
    if isinstance(column, torch.Tensor):
        return int((column.values() if column.is_nested else column)._version)
    return 0
