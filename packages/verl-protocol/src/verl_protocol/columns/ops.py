"""Row operations on one column: the single core under `DataProto` and `tensordict_ops`.

A column is a dense tensor, a jagged tensor, a numpy array, or a remote column of such; its rows lie along
dimension 0. None of these functions changes its arguments. `split` and `take` by a range that counts up give
views of the storage; everything else copies each byte once, and of a remote column nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, TypeVar

import numpy as np
import torch

from verl_protocol.columns import dense, jagged, objects
from verl_protocol.columns.index import RowIndex
from verl_protocol.columns.remote import RemoteColumn, concat_remote
from verl_protocol.kinds import is_jagged

C = TypeVar("C")


def num_rows(column: Any) -> int:
    """The number of rows of a column.

    Raises:
        ColumnError: a nested tensor of the strided layout.
    """
    if isinstance(column, torch.Tensor) and column.is_nested:
        if not is_jagged(column):
            raise jagged.not_jagged("a column")
        return jagged.num_jagged_rows(column)
    return int(column.shape[0])


def split(column: Any, sizes: Sequence[int]) -> list[Any]:
    """Consecutive pieces of these sizes as views; the sizes add up to the number of rows."""
    if isinstance(column, torch.Tensor):
        if column.is_nested:
            return jagged.split_jagged(column, spans_of(sizes))
        return list(column.split_with_sizes(list(sizes)))
    return [take(column, range(start, stop)) for start, stop in spans_of(sizes)]


def spans_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    """`(start, stop)` of consecutive pieces of these sizes.

    >>> spans_of([2, 0, 1])
    [(0, 2), (2, 2), (2, 3)]
    """
    return list(pairwise(accumulate(sizes, initial=0)))


def take(column: Any, index: RowIndex) -> Any:
    """The rows named by a normalised index: views for ranges that count up, copies otherwise."""
    if isinstance(column, RemoteColumn):
        taken = column.take(index)
        if column.fetched is not None and isinstance(index, range):
            # A view of what has been read costs nothing, and shows what is written there as any view does.
            taken.keep(take(column.fetched, index))
        return taken
    rows = index
    if isinstance(index, range):
        if index.step == 1 or len(index) < 2:
            start = index.start if len(index) else 0
            if isinstance(column, np.ndarray):
                return column[start : start + len(index)]
            if isinstance(column, torch.Tensor):
                if column.is_nested:
                    return jagged.split_jagged(column, [(start, start + len(index))])[0]
                return column.narrow(0, start, len(index))
            return objects.map_rows(column, len(index), lambda part: take(part, rows))
        if index.step > 0 and not is_jagged(column):
            return column[index.start : index.stop : index.step]
        index = torch.tensor(index)
    if isinstance(column, torch.Tensor):
        return jagged.take_jagged(column, index) if column.is_nested else dense.gather(column, 0, index)
    if isinstance(column, np.ndarray):
        return column[index.numpy()]
    return objects.map_rows(column, len(rows), lambda part: take(part, rows))


def concat(columns: Sequence[Any]) -> Any:
    """The rows of all columns, which are of one kind and row shape, one after the other."""
    first = columns[0]
    if RemoteColumn in map(type, columns):
        return concat_remote(columns)
    if isinstance(first, torch.Tensor):
        return jagged.concat_jagged(columns) if first.is_nested else dense.concat_dense(columns)
    if isinstance(first, np.ndarray):
        # Rows decide about the dtype: an empty list made an array says float64.
        return np.concatenate([column for column in columns if len(column)] or columns[:1])
    return objects.concat_rows(columns, concat)


def take_all(columns: Mapping[str, C], index: RowIndex) -> dict[str, C]:
    """`take` on every column; columns that share their offsets still do."""
    return keep_shared(sharing(columns), {key: take(column, index) for key, column in columns.items()})


def split_all(columns: Mapping[str, C], sizes: Sequence[int]) -> list[dict[str, C]]:
    """`split` on every column: one dict per piece; columns that share their offsets still do."""
    if not columns:
        return [{} for _ in sizes]
    followers, keys = sharing(columns), list(columns)
    cut = zip(*[split(column, sizes) for column in columns.values()], strict=True)
    pieces = [dict(zip(keys, piece, strict=True)) for piece in cut]
    return [keep_shared(followers, piece) for piece in pieces] if followers else pieces


def concat_all(parts: Sequence[Mapping[str, C]]) -> dict[str, C]:
    """`concat` on every column of parts that have the same keys; shared offsets stay shared."""
    joined = {}
    for key in parts[0]:
        joined[key] = concat([part[key] for part in parts])
    followers = sharing(parts[0])
    if followers and all(sharing(part) == followers for part in parts):
        keep_shared(followers, joined)
    return joined


def sharing(columns: Mapping[str, Any]) -> dict[str, str]:
    """The jagged columns whose offsets an earlier column has too, with that column's key.

    torch adds two jagged tensors only when they have the same offsets object.
    """
    leaders: dict[int, str] = {}
    found: dict[str, str] = {}
    for key, column in columns.items():
        if isinstance(column, torch.Tensor) and column.is_nested and is_jagged(column):
            leader = leaders.setdefault(id(jagged.jagged_parts(column).offsets), key)
            if leader != key:
                found[key] = leader
    return found


def keep_shared(followers: Mapping[str, str], columns: dict[str, C]) -> dict[str, C]:
    """Give each follower the offsets of its leader, in `columns` itself; `sharing` tells who follows whom."""
    leaders = followers.values()
    for key, leader in (*zip(leaders, leaders, strict=True), *followers.items()):
        # The leader is rebuilt too: a copy made by torch may still go by the name of its source's offsets.
        column: Any = columns[key]
        model: Any = columns[leader]
        columns[key] = jagged.with_offsets_of(column, model)  # type: ignore[assignment]
    return columns
