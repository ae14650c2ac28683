"""Random programs of batch operations: after each step a batch is what a list of rows would be.

Columns lie here or in a store, and go from one to the other on the way; other batches made before, which
share storage with this one, must never change.
"""

from __future__ import annotations

import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from protocol_samples import remote
from verl_protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol.columns.checks import jagged_of

Row = dict[str, Any]

MOST_ROWS = 40


def batch_of(rows: list[Row]) -> DataProto:
    """The batch of these rows; there is at least one."""
    lengths = [torch.full((row["ids"] % 3,), row["ids"]) for row in rows]
    tensors = {
        "ids": torch.tensor([row["ids"] for row in rows], dtype=torch.int64),
        "wide": torch.tensor([[row["ids"]] * 2 for row in rows], dtype=torch.float32),
        "ragged": jagged_of(lengths, 1),
    }
    texts = np.array([row["texts"] for row in rows], dtype=object)
    return DataProto.from_dict(tensors, {"texts": texts}, {"step": 1})


def rows_of(data: DataProto) -> list[Row]:
    """The rows of a batch, after a look at whether the columns of each row belong together."""
    rows: list[Row] = []
    for row in data.to_rows():
        number = int(row["ids"])
        if "wide" in row:
            assert row["wide"].tolist() == [number, number]
        if "ragged" in row:
            assert row["ragged"].tolist() == [number] * (number % 3)
        rows.append({"ids": number, "texts": row["texts"]})
    return rows


class BatchPrograms(RuleBasedStateMachine):
    """One batch and its model, and what other batches held when they were left behind."""

    data: DataProto
    rows: list[Row]

    def __init__(self) -> None:
        super().__init__()
        self.left: list[tuple[DataProto, list[Row]]] = []

    @initialize(count=st.integers(0, 9), pieces=st.integers(0, 3))
    def begin(self, count: int, pieces: int) -> None:
        rows = [{"ids": row, "texts": f"row {row}"} for row in range(count + 1)]
        self.rows, self.data = rows[:count], batch_of(rows)[:count]
        if pieces and count:
            self.data = remote(self.data, pieces)

    def go_on(self, data: DataProto, rows: list[Row]) -> None:
        """Take another batch; the one so far must stay as it is."""
        self.left = [*self.left[-2:], (self.data, self.rows)]
        self.data, self.rows = data, rows

    @rule(index=st.slices(12))
    def take_a_slice(self, index: slice) -> None:
        self.go_on(self.data[index], self.rows[index])

    @rule(places=st.lists(st.integers(0, 50), max_size=9))
    def take_rows(self, places: list[int]) -> None:
        found = [place % len(self.rows) for place in places] if self.rows else []
        self.go_on(self.data.select_idxs(found), [self.rows[place] for place in found])

    @rule(chunks=st.integers(1, 5))
    def chunk_and_join(self, chunks: int) -> None:
        pieces = self.data.chunk(chunks, uneven=True)
        self.go_on(DataProto.concat(pieces[1:] + pieces[:1]), self._rotated(len(pieces[0])))

    def _rotated(self, count: int) -> list[Row]:
        return self.rows[count:] + self.rows[:count]

    @precondition(lambda self: len(self.rows) * 3 <= MOST_ROWS)
    @rule(times=st.integers(0, 3), interleave=st.booleans())
    def repeat(self, times: int, interleave: bool) -> None:
        rows = [row for row in self.rows for _ in range(times)] if interleave else self.rows * times
        self.go_on(self.data.repeat(times, interleave), rows)

    @rule()
    def reverse_in_place(self) -> None:
        self.data, self.rows = self.data[:], self.rows[::-1]
        self.data.reorder(torch.arange(len(self.rows) - 1, -1, -1))

    @precondition(lambda self: self.rows)
    @rule(divisor=st.integers(1, 4))
    def pad_and_take_off(self, divisor: int) -> None:
        padded, count = pad_dataproto_to_divisor(self.data, divisor)
        assert len(padded) % divisor == 0
        self.go_on(unpad_dataproto(padded, count), self.rows)

    @precondition(lambda self: "wide" in self.data)
    @rule()
    def drop_a_column_and_put_it_back(self) -> None:
        rest = self.data.select(["ids", "ragged"], ["texts"]) if "ragged" in self.data else self.data[:]
        wide = self.data.select(["wide"], [])
        rest = rest.select([key for key in ("ids", "ragged") if key in rest], ["texts"])
        self.go_on(rest.union(wide), self.rows)

    @precondition(lambda self: "ragged" in self.data)
    @rule()
    def pop_the_jagged_column(self) -> None:
        self.data = self.data[:]
        self.data.pop(["ragged"])

    @rule()
    def there_and_back(self) -> None:
        self.data.rename("texts", "words").rename("words", "texts")

    @rule(how=st.sampled_from(["local", "compact", "fetch", "pickle", "file", "tensordict", "store"]))
    def carry_over(self, how: str) -> None:
        data = self.data
        match how:
            case "fetch":
                data.fetch()
            case "pickle":
                data = pickle.loads(pickle.dumps(data))
            case "file":
                with tempfile.TemporaryDirectory() as folder:
                    data.save_to_disk(Path(folder) / "batch")
                    data = DataProto.load_from_disk(Path(folder) / "batch")
            case "tensordict":
                data = DataProto.from_tensordict(data.to_tensordict())
            case "store":
                data = remote(data, 2)
            case _:
                data = getattr(data, how)()
        self.go_on(data, self.rows)

    @precondition(lambda self: self.rows and "wide" in self.data)
    @rule()
    def write_into_what_was_read(self) -> None:
        mine = self.data.local()[list(range(len(self.rows)))]
        mine.batch["wide"].zero_()
        assert not mine.tensor("wide").any()

    @invariant()
    def is_the_list_of_its_rows(self) -> None:
        if hasattr(self, "data"):
            assert len(self.data) == len(self.rows)
            assert rows_of(self.data) == self.rows
            for data, rows in self.left:
                assert rows_of(data) == rows


TestBatchPrograms = BatchPrograms.TestCase
TestBatchPrograms.settings = settings(max_examples=30, stateful_step_count=12, deadline=None)
