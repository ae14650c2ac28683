"""Mini-batches: every row once per epoch, own randomness, errors with the ways out."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto
from verl_protocol.columns.checks import jagged_of


def batch(num_rows: int = 6) -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(num_rows), "j": jagged_of([torch.ones(row) for row in range(num_rows)], 1)},
        {"n": np.arange(num_rows), "l": [[row, row] for row in range(num_rows)]},
        {"k": 1},
    )


def rows(iterator: Any) -> list[list[int]]:
    return [part.batch["a"].tolist() for part in iterator]


def test_rows_come_in_order_once_per_epoch() -> None:
    assert rows(batch().make_iterator(2, 2)) == [[0, 1], [2, 3], [4, 5]] * 2
    assert rows(batch().make_iterator(np.int64(6), 1)) == [[0, 1, 2, 3, 4, 5]]
    assert rows(batch().make_iterator(2, 0)) == []


def test_mini_batches_in_order_are_views() -> None:
    data = batch()
    next(data.make_iterator(2, 1)).batch["a"][0] = 77
    assert data.batch["a"][0] == 77


def test_shuffling_is_repeatable_and_differs_between_epochs() -> None:
    def shuffled(seed: int) -> list[list[int]]:
        return rows(batch().make_iterator(2, 2, seed=seed, dataloader_kwargs={"shuffle": True}))

    assert shuffled(1) == shuffled(1)
    assert shuffled(1) != shuffled(2)
    first, second = shuffled(1)[:3], shuffled(1)[3:]
    assert first != second
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(6))


def test_columns_stay_together_under_shuffling() -> None:
    for part in batch().make_iterator(3, 1, seed=0, dataloader_kwargs={"shuffle": True}):
        found = part.batch["a"].tolist()
        assert part.batch["j"].offsets().diff().tolist() == found
        assert part.non_tensor_batch["n"].tolist() == found
        assert part.non_tensor_batch["n"].dtype == np.int64
        assert part.non_tensor_batch["l"].tolist() == [[row, row] for row in found]


@pytest.mark.parametrize("options", [None, {"shuffle": False}, {"shuffle": True}])
def test_the_global_random_state_is_left_alone(options: dict[str, Any] | None) -> None:
    state = torch.random.get_rng_state()
    assert len(list(batch().make_iterator(2, 1, seed=3, dataloader_kwargs=options))) == 3
    assert len(list(batch().make_iterator(2, 1))) == 3
    assert torch.equal(state, torch.random.get_rng_state())


def test_without_a_seed_the_order_follows_manual_seed() -> None:
    def shuffled() -> list[list[int]]:
        torch.manual_seed(5)
        return rows(batch().make_iterator(2, 1, dataloader_kwargs={"shuffle": True}))

    assert shuffled() == shuffled()
    generator = torch.Generator().manual_seed(3)
    options = {"shuffle": True, "generator": generator}
    assert rows(batch().make_iterator(2, 1, dataloader_kwargs=options)) == rows(
        batch().make_iterator(2, 1, seed=3, dataloader_kwargs={"shuffle": True})
    )


def test_a_shorter_last_mini_batch_needs_a_decision() -> None:
    with pytest.raises(
        ValueError, match=r"5 rows cannot be cut into mini-batches of 2.*drop_last=False.*leave 1 row out"
    ):
        batch(5).make_iterator(2, 1)
    assert rows(batch(5).make_iterator(2, 1, drop_last=False)) == [[0, 1], [2, 3], [4]]
    assert rows(batch(5).make_iterator(2, 1, drop_last=True)) == [[0, 1], [2, 3]]
    assert rows(batch(5).make_iterator(2, 1, dataloader_kwargs={"drop_last": True})) == [[0, 1], [2, 3]]
    options = {"shuffle": True}
    assert [len(part) for part in batch(5).make_iterator(2, 1, 0, options, drop_last=False)] == [2, 2, 1]


def test_options_that_cannot_be_honoured_are_errors() -> None:
    with pytest.raises(
        TypeError,
        match=r"sampler=\[1\] cannot be honoured.*there are \['shuffle', 'drop_last', 'generator'\]",
    ):
        batch().make_iterator(2, 1, dataloader_kwargs={"sampler": [1]})
    for option in ({"num_workers": 2}, {"pin_memory": True}):
        with pytest.raises(TypeError, match=r"cannot be honoured.*without a DataLoader; leave it out"):
            batch().make_iterator(2, 1, dataloader_kwargs=option)
    with pytest.raises(ValueError, match="epochs must be a whole number of at least 0"):
        batch().make_iterator(2, -1)
    assert rows(batch().make_iterator(6, 1, dataloader_kwargs={"num_workers": 0})) == [[0, 1, 2, 3, 4, 5]]


def test_a_batch_without_rows_has_no_mini_batches() -> None:
    empty = batch()[:0]
    assert list(empty.make_iterator(2, 3)) == []
    assert list(empty.make_iterator(2, 3, dataloader_kwargs={"shuffle": True})) == []
