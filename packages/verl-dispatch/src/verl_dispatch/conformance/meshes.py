"""Named meshes: who gets which rows, who answers, and tables that cannot be."""

from __future__ import annotations

from typing import Any

import pytest

from verl_dispatch.conformance.backend import GroupCache
from verl_dispatch.conformance.batches import KINDS, as_kind, batch, ids_of, ranks_of
from verl_dispatch.conformance.workers import BROKEN_MESHES, ModesWorker
from verl_dispatch.planning.mesh import Mesh


class TestMeshes:
    """Meshes that the workers of a group of 4 have registered."""

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 4)

    @pytest.mark.parametrize("kind", KINDS)
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
            group.over_unknown(batch(4))

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
