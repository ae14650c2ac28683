"""Rows that do not divide, and rows over named meshes: in input order, nothing lost or doubled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verl_protocol import DataProto

from verl_dispatch.conformance.backend import Call, SharedGroups, as_kind, batch, ranks_of
from verl_dispatch.conformance.workers import BROKEN_MESHES, ids_of
from verl_dispatch.planning.mesh import Mesh

WEIGHTS = (9, 1, 8, 2, 7, 3, 6, 4)


def weighted_batch() -> DataProto:
    """Eight rows whose `x` are the weights."""
    data = batch(8)
    data.tensor("x").copy_(torch.tensor(WEIGHTS)[:, None].expand(8, 2))
    return data


class TestRows(SharedGroups):
    """Row counts, on a group of 4."""

    @pytest.mark.parametrize("method", ["rows", "rows_async", "over_each", "over_pairs"])
    @pytest.mark.parametrize("num_rows", [1, 3, 5, 10])
    def test_padding_is_taken_off_in_every_verb(
        self, group: Any, call: Call, num_rows: int, method: str
    ) -> None:
        data = batch(num_rows, auto_padding=True)
        got = call(group.bind(method), data)
        assert ids_of(got) == list(range(num_rows))
        assert got.column("s").tolist() == [f"row {i}" for i in range(num_rows)]
        assert ids_of(data) == list(range(num_rows))

    def test_padding_may_be_asked_for_in_the_call(self, group: Any, call: Call, kind: str) -> None:
        got = call(group.rows.options(auto_padding=True), as_kind(batch(6), kind))
        assert ids_of(got) == list(range(6))

    @pytest.mark.parametrize("size", [2, 3, 6])
    def test_one_tensor_for_all_rows_goes_whole_to_every_rank(
        self, group: Any, call: Call, size: int
    ) -> None:
        import tensordict

        unbatched: Any = tensordict.UnbatchedTensor
        data, table = as_kind(batch(6), "TensorDict"), torch.arange(size)
        data["table"] = unbatched(table)
        got, made = call(group.rows.options(auto_padding=True), data), call(group.one_to_all, data)
        assert ids_of(got) == list(range(6))
        for arrived in (got, data, *(each for _, each, _ in made)):
            assert isinstance(arrived.get("table"), unbatched)
            assert arrived["table"].tolist() == table.tolist()

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

    def test_several_answers_a_row_lose_the_padding_too(self, group: Any, call: Call) -> None:
        got = call(group.twice, batch(5, auto_padding=True))
        assert ids_of(got) == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]

    def test_padding_never_shows_in_meta_info(self, group: Any) -> None:
        got = group.rows(batch(5, auto_padding=True, step=3))
        assert got.meta_info == {"step": 3}

    def test_uneven_parts_differ_by_at_most_one(self, group: Any, call: Call) -> None:
        got = call(group.rows.options(uneven="balanced"), batch(10))
        assert ids_of(got) == list(range(10))
        assert ranks_of(got) == [0, 0, 0, 1, 1, 1, 2, 2, 3, 3]

    @pytest.mark.parametrize("equal_size", [False, True])
    def test_balanced_rows_come_back_in_input_order(self, group: Any, call: Call, equal_size: bool) -> None:
        got = call(group.rows.options(balance="x", equal_size=equal_size), weighted_batch())
        assert ids_of(got) == list(range(8))
        sums = torch.zeros(4).index_add(0, got.tensor("rank"), got.tensor("x")[:, 0])
        assert sums.max() - sums.min() <= 2
        if equal_size:
            assert sorted(ranks_of(got)) == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_balance_restores_blocks_of_answers(self, group: Any) -> None:
        got = group.twice.options(balance="x")(weighted_batch())
        assert ids_of(got) == [row for row in range(8) for _ in range(2)]

    def test_answers_of_other_lengths_stay_where_nothing_was_padded(self, group: Any) -> None:
        assert ids_of(group.one_row_less(batch(8))) == [0, 2, 4, 6]

    def test_uneven_parts_are_never_empty(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"2 rows .*4 workers"):
            group.rows.options(uneven="balanced")(batch(2))

    def test_answers_of_other_lengths_cannot_be_unpadded(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"rank \d.* sent 3 rows.*returned 2"):
            group.one_row_less(batch(10, auto_padding=True))

    @pytest.mark.parametrize("method", ["rows", "over_pairs"])
    def test_an_empty_batch_is_a_batch(self, group: Any, method: str) -> None:
        got = group.bind(method)(batch(0))
        assert len(got) == 0
        assert got.tensor("x").shape == (0, 2)


# --- Named meshes: who gets which rows, who answers, and tables that cannot be ------------------------------


class TestMeshes(SharedGroups):
    """Meshes that the workers of a group of 4 have registered."""

    @pytest.mark.parametrize("by_name", [False, True])
    def test_replicas_get_the_same_rows_and_one_of_them_answers(
        self, group: Any, kind: str, by_name: bool
    ) -> None:
        data = as_kind(batch(6), kind)
        got = group.over_pairs(data=data) if by_name else group.over_pairs(data)
        assert ids_of(got) == list(range(6))
        assert ranks_of(got) == [0, 0, 0, 1, 1, 1]
        assert group.get_kept() == [[0, 1, 2], [3, 4, 5], [0, 1, 2], [3, 4, 5]]

    def test_stream_gives_answering_ranks_only(self, group: Any) -> None:
        answers = dict(group.over_pairs.stream(batch(6)))
        assert {rank: ids_of(answer) for rank, answer in answers.items()} == {0: [0, 1, 2], 1: [3, 4, 5]}

    def test_plan_says_who_answers(self, group: Any) -> None:
        plan = group.over_pairs.plan(batch(6))
        assert plan.called_ranks == (0, 1, 2, 3)
        assert plan.fetched_ranks == (0, 1)
        assert [call.rows for call in plan.calls] == [3, 3, 3, 3]

    @pytest.mark.parametrize("name", list(BROKEN_MESHES))
    def test_a_table_that_cannot_be_is_shown(self, group: Any, name: str) -> None:
        with pytest.raises(ValueError, match=rf"(?s)mesh '{name}'.*rank 0.*rank 3"):
            group.bind(f"over_{name}")(batch(12))

    def test_an_unknown_mesh_lists_the_registered_ones(self, group: Any) -> None:
        with pytest.raises(KeyError, match=r"'nope'.*registered meshes: .*each.*pairs"):
            group.over_nope(batch(4))

    def test_a_mesh_splits_at_least_one_batch(self, group: Any) -> None:
        with pytest.raises(TypeError, match=r"over_pairs.*|data"):
            group.over_pairs()

    def test_workers_answer_about_their_meshes(self, group: Any) -> None:
        assert group._query_dispatch_info("pairs") == [0, 1, 0, 1]
        assert group._query_collect_info("pairs") == [True, True, False, False]
        assert group.query_collect_info("pairs") == [True, True, False, False]
        assert group.mesh("pairs") == Mesh("pairs", (0, 1, 0, 1), (True, True, False, False))

    def test_the_table_may_be_replaced_and_asked_for_again(self, group: Any) -> None:
        group.over_pairs(batch(4))
        group.add_mesh(Mesh("pairs", (1, 0, 1, 0), (True, True, False, False)))
        try:
            assert ranks_of(group.over_pairs(batch(4))) == [1, 1, 0, 0]
        finally:
            group.forget_meshes("pairs")
        assert ranks_of(group.over_pairs(batch(4))) == [0, 0, 1, 1]
