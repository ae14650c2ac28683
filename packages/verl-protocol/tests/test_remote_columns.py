"""Remote columns: row operations move nothing, and reading gives what these operations give on rows here."""

from __future__ import annotations

import contextvars
import copy
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from protocol_samples import full_batch, remote, round_trip
from verl_protocol import DataProto, equal
from verl_protocol.batch.apart import set_apart
from verl_protocol.batch.state import Columns
from verl_protocol.columns import ops
from verl_protocol.columns.reading import InProcessStore, read, read_all
from verl_protocol.columns.remote import Piece, RemoteColumn, concat_remote, form_of
from verl_protocol.wire import ReadOnlyWriteError
from verl_protocol.wire.guard import sharing_reads

FULL = full_batch(6)
"""A batch with a column of each kind."""


class CountingStore(InProcessStore):
    """Counts the fetches, and what they ask for."""

    def __init__(self) -> None:
        self.rounds: list[int] = []

    def fetch(self, pieces: Sequence[Piece], columns: str) -> list[Mapping[str, Any]]:
        self.rounds.append(len(pieces))
        return super().fetch(pieces, columns)


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
    operation = choice.choice(["index", "range", "concat", "mixed", "trim"])
    if operation == "index":
        index = torch.tensor([choice.randrange(count) for _ in range(6)] if count else [], dtype=torch.int64)
        return ops.take(here, index), there.take(index)
    if operation == "range":
        ends = choice.choice([None, 1, -3]), choice.choice([None, 4, -1]), choice.choice([1, 1, 2, -1])
        rows = range(*slice(*ends).indices(count))
        return ops.take(here, rows), there.take(rows)
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


WRITES: dict[str, Callable[[DataProto], Any]] = {
    "column": lambda data: data.tensor("dense").add_(1),
    "slice": lambda data: data[1:3].tensor("dense").add_(1),
    "chunk": lambda data: data.chunk(7)[1].tensor("dense").add_(1),
    "joined": lambda data: DataProto.concat([data]).tensor("dense").add_(1),
    "taken out": lambda data: data.pop(["dense"]).tensor("dense").add_(1),
    "jagged": lambda data: data.tensor("jagged").mul_(2),
    "row of a jagged one": lambda data: data.tensor("jagged")[2].add_(1),
    "values of a jagged one": lambda data: data[2:4].tensor("jagged").values().add_(1),
}


def remote_pair(store: InProcessStore) -> DataProto:
    """A batch of a dense and a jagged column of seven rows."""
    rows = [torch.arange(length) for length in (3, 0, 5, 1, 2, 2, 7)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    columns: dict[str, Any] = {"dense": torch.arange(14).reshape(7, 2), "jagged": jagged}
    ref = store.put(columns)
    held: dict[str, Any] = {
        key: RemoteColumn(form_of(column), [Piece(store, ref, key, 7, 112)])
        for key, column in columns.items()
    }
    return DataProto()._with(held, 7, {})


@pytest.mark.parametrize("write", WRITES)
def test_a_write_into_a_view_of_the_store_is_noticed_whatever_became_of_the_batch(write: str) -> None:
    data = remote_pair(InProcessStore())
    key = "jagged" if "jagged" in write else "dense"
    with pytest.raises(ReadOnlyWriteError, match=key), sharing_reads(True):
        WRITES[write](data)


def test_a_deep_copy_of_views_of_the_store_is_private() -> None:
    data = remote_pair(InProcessStore())
    with sharing_reads(True):
        copied = copy.deepcopy(data[1:6])
        for tensor in copied.tensors().values():
            tensor.zero_()
    assert int(copied.tensor("dense").sum()) == 0
    assert int(data.tensor("dense").sum()) == 91


def test_reading_views_without_a_write_is_no_error_and_ends_with_its_block() -> None:
    data = remote_pair(InProcessStore())
    with sharing_reads(True):
        assert int(data[1:3].tensor("dense").sum()) == 14
        later = contextvars.copy_context()
    # A task that goes on after the call has the context of the call.
    later.run(lambda: data[1:3].tensor("dense").zero_())
    assert int(data[1:3].tensor("dense").sum()) == 14


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


def test_columns_that_are_in_part_here_are_read_together() -> None:
    there, here = remote_pair(InProcessStore()), remote_pair(InProcessStore()).local()
    shared = here.tensor("jagged")
    columns: dict[str, Any] = {
        **here.tensors(),
        "also": ops.keep_shared({"also": "jagged"}, {"jagged": shared, "also": shared.clone()})["also"],
    }
    held = {**there._held(), "also": there._held()["jagged"]}
    joined = DataProto.concat([there._with(held, 7, {}), here._with(columns, 7, {})])
    assert joined.remote_keys == ["dense", "jagged", "also"]
    assert equal(joined.tensors()["dense"], torch.cat([here.tensor("dense")] * 2))
    assert ops.sharing(joined.tensors()) == {"also": "jagged"}


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


# Batches with remote columns


def lying_in(store: InProcessStore, data: DataProto) -> DataProto:
    """The batch, its tensor columns in one object of a store."""
    from verl_protocol.batch.apart import bound

    rest, objects = set_apart(data, large_bytes=0)
    return bound(rest, store, [store.put(columns) for columns in objects])


def test_reading_one_column_fetches_that_one_alone() -> None:
    store = CountingStore()
    data = DataProto.concat([lying_in(store, part.select(["a"])) for part in FULL.chunk(2)])
    other = DataProto.concat([lying_in(store, part.select(["j"])) for part in FULL.chunk(2)])
    data.union(other)
    assert data.batch["a"].tolist() == FULL.batch["a"].tolist()
    assert data.tensor("a").tolist() == FULL.batch["a"].tolist()
    assert store.rounds == [2]


@pytest.mark.parametrize(
    "asked",
    [
        lambda data: len(data.batch),
        lambda data: list(data.batch.keys()),
        lambda data: data.batch.set("new", torch.zeros(6)),
        lambda data: repr(data),
        lambda data: data.get_data_info(),
        lambda data: "a" in data,
        lambda data: data.nbytes(),
        lambda data: data.chunk(2)[0].union(data[:2].repeat(3)[:3].select(["a"], []).rename("a", "b")),
        lambda data: data.pop(["a"]),
        lambda data: data.union(data.select()),
        lambda data: data.padding(2),
        lambda data: data.check_consistency(),
    ],
)
def test_what_needs_no_rows_fetches_none(asked: Any) -> None:
    store = CountingStore()
    asked(lying_in(store, FULL))
    assert store.rounds == []


def test_several_columns_come_in_one_round() -> None:
    store = CountingStore()
    data = DataProto.concat([lying_in(store, part) for part in FULL.chunk(2)])
    assert data.fetch("a", "j") is data
    assert data.remote_keys == ["a", "j"]
    assert data.equals(FULL)
    assert store.rounds == [2]


def test_a_batch_tells_which_columns_are_remote(capsys: pytest.CaptureFixture[str]) -> None:
    data = remote(FULL)
    data.select(["a"], []).print_size()
    assert f"remote: {FULL.select(['a'], []).nbytes() / 2**30} GB" in capsys.readouterr().out
    assert "a: int64[6, 2] remote in 2 pieces" in repr(data)
    assert "j: float32[6, 3, *] remote in 2 pieces" in repr(data)
    assert data.nbytes() < FULL.nbytes()


def test_local_gives_a_batch_of_columns_that_are_all_here() -> None:
    here = remote(FULL).local()
    assert (here.remote_keys, here.equals(FULL)) == ([], True)


def test_a_column_that_was_written_to_is_here_from_then_on() -> None:
    data = remote(FULL)
    data.batch["a"][0] = 99
    assert data.remote_keys == ["j"]
    assert data[[0]].batch["a"].tolist() == [[99, 99]]
    assert data.concat([data, data]).batch["a"][6].tolist() == [99, 99]


def test_a_column_put_in_the_place_of_a_remote_one_is_what_the_batch_has() -> None:
    data = remote(FULL)
    data.batch["a"] = torch.zeros(6)
    assert data.remote_keys == ["j"]
    assert data.slice(0, 2).tensor("a").tolist() == [0, 0]


def test_a_slice_of_what_was_read_is_a_view_of_it() -> None:
    data = remote(FULL)
    whole, part = data.tensor("a"), data.slice(2, 4)
    whole[2] = 7
    assert part.tensor("a")[0].tolist() == [7, 7]


@pytest.mark.parametrize("through", [round_trip, lambda data: data.to_tensordict(), DataProto.to_rows])
def test_what_leaves_the_process_takes_the_rows_along(through: Any) -> None:
    here, there = through(FULL), through(remote(FULL))
    if isinstance(here, DataProto):
        assert there.remote_keys == []
    assert equal(here, there)


def test_a_saved_batch_holds_the_rows(tmp_path: Any) -> None:
    remote(FULL).save_to_disk(tmp_path / "batch")
    assert DataProto.load_from_disk(tmp_path / "batch").equals(FULL)


def test_only_columns_of_which_few_rows_are_left_are_copied_out_by_compact() -> None:
    data = remote(full_batch(32), num_pieces=1)
    assert data[:3].compact().remote_keys == []
    assert data[:4].compact().remote_keys == ["a", "j"]
    assert data[:3].compact().equals(full_batch(32)[:3])


def test_compact_lets_go_of_pieces_of_which_no_row_is_left_and_keeps_what_was_read() -> None:
    data = remote(full_batch(32), num_pieces=4)[[0, 2, 1, 3]]
    read = data.tensor("a")
    compacted = data.compact()
    assert "a: int64[4, 2] remote in 4 pieces" in repr(data)
    assert "a: int64[4, 2] remote in 1 piece\n" in repr(compacted)
    assert compacted.tensor("a") is read
    assert compacted.equals(full_batch(32)[[0, 2, 1, 3]])


def test_fetch_names_a_column_that_is_not_there() -> None:
    with pytest.raises(KeyError, match="nope"):
        remote(FULL).fetch("nope")


def test_heavy_columns_lie_alone_and_the_others_together() -> None:
    data = DataProto.from_dict(
        {
            name: torch.zeros(10, width)
            for name, width in {"a": 200_000, "b": 30_000, "c": 30_001, "d": 1}.items()
        }
    )
    rest, objects = set_apart(data)
    assert [list(columns) for columns in objects] == [["a"], ["b", "c"]]
    assert rest.remote_keys == ["a", "b", "c"]


def test_columns_that_do_not_fit_are_named_before_any_is_fetched() -> None:
    store = CountingStore()
    data = lying_in(store, FULL)
    with pytest.raises(ValueError, match="'a'"):
        DataProto.concat(
            [
                data,
                DataProto.from_dict(
                    {"a": torch.zeros(2), "j": FULL[:2].tensor("j")}, FULL[:2].non_tensor_batch
                ),
            ]
        )
    assert store.rounds == []


def test_columns_of_one_object_are_fetched_once_though_read_one_by_one() -> None:
    store = CountingStore()
    part = {"x": torch.arange(4), "y": torch.arange(4) * 2}
    ref = store.put(part)
    columns: dict[str, Any] = {
        key: RemoteColumn(form_of(part[key]), [Piece(store, ref, key, 4, 32)]) for key in part
    }
    whole: Any = Columns(columns, 4)
    half = DataProto(batch=whole)[2:]
    half.tensor("x").zero_()
    assert half.tensor("y").tolist() == [4, 6]
    assert (store.rounds, part["x"].tolist()) == ([1], [0, 1, 2, 3])
