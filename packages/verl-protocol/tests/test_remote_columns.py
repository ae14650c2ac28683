"""Remote columns: row operations move nothing, and reading gives what the same operations give on rows here."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import equal
from verl_protocol.columns import ops
from verl_protocol.columns.reading import InProcessStore, read, read_all
from verl_protocol.columns.remote import Piece, RemoteColumn, concat_remote, form_of


class CountingStore(InProcessStore):
    """Counts the fetches, and what they ask for."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def fetch(self, refs: Sequence[Any], wanted: str) -> list[Mapping[str, Any]]:
        self.rounds.append(len(refs))
        return super().fetch(refs, wanted)


def stored(column: Any, sizes: Sequence[int], store: InProcessStore | None = None) -> RemoteColumn:
    """The column in pieces of these sizes, in a store."""
    held = InProcessStore() if store is None else store
    pieces = [
        Piece(held, held.put({"x": part}), "x", size, 8 * size)
        for part, size in zip(ops.split(column, sizes), sizes, strict=True)
    ]
    return RemoteColumn(form_of(column), pieces)


COLUMNS = {
    "dense": torch.arange(14).reshape(7, 2),
    "jagged": torch.nested.nested_tensor(
        [torch.arange(length) for length in (3, 0, 5, 1, 2, 2, 7)], layout=torch.jagged
    ),
    "numbers": np.arange(7.0),
    "objects": np.array([{"row": row} for row in range(7)], dtype=object),
}


def changed_both_ways(here: Any, there: Any, choice: random.Random) -> tuple[Any, Any]:
    """The same operation on a column that is here and on one that is not."""
    count = ops.num_rows(here)
    operation = choice.choice(["index", "range", "concat", "mixed", "repeat", "trim"])
    if operation == "index":
        index = torch.tensor([choice.randrange(count) for _ in range(6)] if count else [], dtype=torch.int64)
        return ops.take(here, index), there.take(index)
    if operation == "range":
        ends = choice.choice([None, 1, -3]), choice.choice([None, 4, -1]), choice.choice([1, 1, 2, -1])
        rows = range(*slice(*ends).indices(count))
        return ops.take(here, rows), there.take(rows)
    if operation == "repeat":
        times, interleave = choice.randint(0, 3), choice.random() < 0.5
        return ops.repeat(here, times, interleave), there.repeat(times, interleave)
    if operation == "trim":
        return here, there.trimmed()
    cut = choice.randint(0, count)
    halves = [range(cut), range(cut, count)]
    parts = [there.take(half) for half in halves]
    if operation == "mixed":
        parts[0] = ops.take(here, halves[0])
    return ops.concat([ops.take(here, half) for half in halves]), concat_remote(parts)


@pytest.mark.parametrize("kind", COLUMNS)
@pytest.mark.parametrize("seed", range(25))
def test_any_row_operations_give_the_rows_that_they_give_on_a_column_here(kind: str, seed: int) -> None:
    choice = random.Random(seed)
    here: Any = COLUMNS[kind]
    there: Any = stored(here, [2, 0, 4, 1])
    for _ in range(choice.randint(1, 6)):
        here, there = changed_both_ways(here, there, choice)
        assert len(there) == ops.num_rows(here)
    assert equal(read(there), here)


def test_pieces_of_a_column_put_together_are_the_column() -> None:
    column = stored(torch.arange(8), [4, 4])
    joined = concat_remote([column.take(range(3)), column.take(range(3, 8))])
    assert (joined.pieces, joined.rows) == (column.pieces, range(8))


def test_only_pieces_that_hold_rows_of_the_column_are_fetched() -> None:
    store = CountingStore()
    column = stored(torch.arange(8), [4, 4], store)
    assert read(column.take(range(5, 7))).tolist() == [5, 6]
    assert store.rounds == [1]


def test_columns_are_read_in_one_round_and_once() -> None:
    store = CountingStore()
    part = {"a": torch.arange(4), "b": torch.ones(4)}
    ref = store.put(part)
    columns = {key: RemoteColumn(form_of(part[key]), [Piece(store, ref, key, 4, 32)]) for key in part}
    read_all(columns)
    read_all(columns)
    assert store.rounds == [1]


def test_what_is_read_is_private_and_counts_as_remote_until_it_is_written_to() -> None:
    held = torch.arange(4)
    column = stored(held, [4])
    seen = read(column)
    assert column.settled() is column
    seen[0] = 9
    assert held[0] == 0
    assert column.settled() is seen


def test_arrays_are_read_only_as_no_one_counts_writes_into_them() -> None:
    with pytest.raises(ValueError, match="read-only"):
        read(stored(np.arange(3), [3]))[0] = 1


def test_jagged_columns_side_by_side_still_share_their_offsets() -> None:
    store = InProcessStore()
    ids: Any = COLUMNS["jagged"]
    part = {"ids": ids, "twice": ids * 2}
    ref = store.put(part)
    columns = {key: RemoteColumn(form_of(part[key]), [Piece(store, ref, key, 7, 160)]) for key in part}
    index = torch.tensor([6, 0, 0, 3])
    here = read_all({key: column.take(index) for key, column in columns.items()})
    assert equal(here["ids"] + here["twice"], ops.take(ids, index) * 3)


def test_its_form_is_known_without_reading() -> None:
    column = stored(COLUMNS["jagged"], [3, 4]).take(range(2))
    assert (column.shape, column.dtype, column.ndim, column.is_nested) == ((2, None), torch.int64, 2, True)
    assert stored(COLUMNS["dense"], [7]).take(range(3)).nbytes == 3 * 2 * 8
