"""Rows that do not divide: padded, uneven, balanced; always in input order, nothing lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verl_dispatch.conformance.backend import Backend, GroupCache
from verl_dispatch.conformance.batches import as_kind, batch, ids_of, ranks_of
from verl_dispatch.conformance.modes import run
from verl_dispatch.conformance.workers import ModesWorker

VERBS = ("call", "not blocking", "submit", "await")


class TestRows:
    """Row counts, on a group of 4."""

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 4)

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("method", ["rows", "rows_async", "over_each", "over_pairs"])
    @pytest.mark.parametrize("num_rows", [1, 3, 5, 10])
    def test_padding_is_taken_off_in_every_verb(
        self, backend: Backend, group: Any, num_rows: int, method: str, verb: str
    ) -> None:
        data = batch(num_rows, auto_padding=True)
        got = run(backend, verb, group.bind(method), (data,), {})
        assert ids_of(got) == list(range(num_rows))
        assert got.column("s").tolist() == [f"row {i}" for i in range(num_rows)]
        assert ids_of(data) == list(range(num_rows))

    @pytest.mark.parametrize("kind", ["DataProto", "TensorDict", "DataProtoFuture"])
    @pytest.mark.parametrize("verb", VERBS)
    def test_padding_may_be_asked_for_in_the_call(
        self, backend: Backend, group: Any, verb: str, kind: str
    ) -> None:
        method = group.rows.options(auto_padding=True)
        assert ids_of(run(backend, verb, method, (as_kind(batch(6), kind),), {})) == list(range(6))

    def test_the_same_batch_may_be_passed_twice_and_again(self, group: Any) -> None:
        data = batch(5, auto_padding=True)
        for _ in range(2):
            got = group.rows(data, data)
            assert got.tensor("more").tolist() == ids_of(got) == list(range(5))
        assert len(data) == 5

    def test_one_flag_pads_all_batches_of_a_call(self, group: Any) -> None:
        got = group.rows(batch(5), batch(5, first=50, auto_padding=True))
        assert got.tensor("more").tolist() == list(range(50, 55))

    def test_metrics_are_never_trimmed(self, group: Any) -> None:
        found = group.metric(batch(5, auto_padding=True))
        assert [each["rank"] for each in found] == [0, 1, 2, 3]
        assert [each["rows"] for each in found] == [2, 2, 2, 2]

    @pytest.mark.parametrize("verb", VERBS)
    def test_several_answers_a_row_lose_the_padding_too(
        self, backend: Backend, group: Any, verb: str
    ) -> None:
        got = run(backend, verb, group.twice, (batch(5, auto_padding=True),), {})
        assert ids_of(got) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]

    def test_padding_never_shows_in_meta_info(self, group: Any) -> None:
        got = group.rows(batch(5, auto_padding=True, step=3))
        assert got.meta_info == {"step": 3}

    @pytest.mark.parametrize("verb", VERBS)
    def test_uneven_parts_differ_by_at_most_one(self, backend: Backend, group: Any, verb: str) -> None:
        got = run(backend, verb, group.rows.options(uneven="balanced"), (batch(10),), {})
        assert ids_of(got) == list(range(10))
        assert ranks_of(got) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]

    def test_uneven_parts_are_never_empty(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"2 rows .*4 workers"):
            group.rows.options(uneven="balanced")(batch(2))

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("equal_size", [False, True])
    def test_balanced_rows_come_back_in_input_order(
        self, backend: Backend, group: Any, equal_size: bool, verb: str
    ) -> None:
        data = batch(8)
        weights = [9, 1, 8, 2, 7, 3, 6, 4]
        data.tensor("x").copy_(torch.tensor(weights)[:, None].expand(8, 2))
        method = group.rows.options(balance="x", equal_size=equal_size)
        got = run(backend, verb, method, (data,), {})
        assert ids_of(got) == list(range(8))
        sums = [0] * 4
        for rank, weight in zip(ranks_of(got), weights, strict=True):
            sums[rank] += weight
        assert max(sums) - min(sums) <= 2
        if equal_size:
            assert sorted(ranks_of(got)) == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_balance_restores_blocks_of_answers(self, group: Any) -> None:
        data = batch(8)
        data.tensor("x").copy_(torch.tensor([9, 1, 8, 2, 7, 3, 6, 4])[:, None].expand(8, 2))
        got = group.twice.options(balance="x")(data)
        assert ids_of(got) == [row for row in range(8) for _ in range(2)]

    def test_answers_of_other_lengths_stay_where_nothing_was_padded(self, group: Any) -> None:
        assert ids_of(group.one_row_less(batch(8))) == [0, 2, 4, 6]

    def test_answers_of_other_lengths_cannot_be_unpadded(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"rank \d.* sent 3 rows.*returned 2"):
            group.one_row_less(batch(10, auto_padding=True))

    @pytest.mark.parametrize("method", ["rows", "over_pairs"])
    def test_an_empty_batch_is_a_batch(self, group: Any, method: str) -> None:
        got = group.bind(method)(batch(0))
        assert len(got) == 0
        assert got.tensor("x").shape == (0, 2)
