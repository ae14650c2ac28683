"""The table of dispatch modes: what reaches each rank, what comes back in every verb, what is no argument.

Rows that do not divide, and rows over named meshes, come back in input order, nothing lost or doubled.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from verl_protocol import DataProto

from verl_dispatch.conformance.backend import Backend, Call, SharedGroups, as_kind, batch, later, ranks_of
from verl_dispatch.conformance.workers import BROKEN_MESHES, ModesWorker, ids_of
from verl_dispatch.errors import WorkerGroupError
from verl_dispatch.modes import Broadcast, Execute
from verl_dispatch.planning.mesh import Mesh


def table(n: int) -> dict[str, tuple[str, tuple[Any, ...], dict[str, Any], Any]]:
    """What each mode takes and gives on a group of `n`: a method, its arguments, and the expected result."""
    ranks, letters, ones, last = list(range(n)), tuple("abcdefgh"[:n]), [1] * n, n - 1
    by_rank = dict(zip(ranks, letters, strict=True))
    return {
        "rank zero": ("rank_zero", ("v",), {"y": ones}, (0, "v", ones)),
        "one to all": ("one_to_all", ("v",), {"y": 5}, [(r, "v", 5) for r in ranks]),
        "one to all, a list as long as it": ("one_to_all", (ones,), {}, [(r, ones, None) for r in ranks]),
        "one to all, async": ("one_to_all_async", (3,), {}, [(r, 3, None) for r in ranks]),
        "one to all, rank zero": ("one_to_all_rank_zero", ("v",), {"y": ones}, (0, "v", ones)),
        "all to all": ("all_to_all", (ranks,), {"y": letters}, [(r, r, letters[r]) for r in ranks]),
        "all to all, broadcast": ("all_to_all", (Broadcast(ones), ranks), {}, [(r, ones, r) for r in ranks]),
        "all to all, lists in a list": ("all_to_all", ([ones] * n, ranks), {}, [(r, ones, r) for r in ranks]),
        "all to all, rank zero": ("all_to_all_rank_zero", ([1, 2, 3],), {"y": 4}, (0, [1, 2, 3], 4)),
        "one to one": ("one_to_one", (by_rank,), {}, {r: (r, letters[r], None) for r in ranks}),
        "one to one, only the last": ("one_to_one", ({last: 1},), {"y": {last: 2}}, {last: (last, 1, 2)}),
        "one to one, a list": ("one_to_one", (ranks,), {}, [(r, r, None) for r in ranks]),
        "dp compute": ("dp_compute", (ranks, letters), {}, [(r, (r, letters[r]), "no", {}) for r in ranks]),
        "dp, by name": ("dp_compute", (), {"y": ranks, "z": ones}, [(r, (), r, {"z": 1}) for r in ranks]),
        "custom pair": ("custom", ("v",), {}, [(r, ["v", r], None) for r in reversed(ranks)]),
        "custom plan": ("custom_plan", ("v",), {}, [(last, "v", None)]),
        "custom, rank zero": ("custom_rank_zero", (3,), {}, {"rank zero": (0, [3, 3], None)}),
    }


class TestModes(SharedGroups):
    """What DESIGN calls the table."""

    @pytest.fixture(params=[1, 4])
    def group(self, request: pytest.FixtureRequest, groups: Any) -> Any:
        return groups.get(ModesWorker, request.param)

    @pytest.mark.parametrize("name", list(table(1)))
    def test_values(self, group: Any, call: Call, name: str) -> None:
        method, args, kwargs, expected = table(group.world_size)[name]
        assert call(group.bind(method), *args, **kwargs) == expected

    @pytest.mark.parametrize("name", list(table(1)))
    def test_values_are_streamed(self, group: Any, name: str) -> None:
        method, args, kwargs, expected = table(group.world_size)[name]
        answers = [expected] if isinstance(expected, tuple) else expected
        answers = list(answers.values()) if isinstance(answers, dict) else answers
        # Every answer begins with its rank.
        assert dict(group.bind(method).stream(*args, **kwargs)) == {answer[0]: answer for answer in answers}

    @pytest.mark.parametrize("method", ["rows", "rows_async", "over_each"])
    def test_rows_come_back_in_input_order(self, group: Any, call: Call, method: str, kind: str) -> None:
        n = group.world_size
        got = call(group.bind(method), as_kind(batch(2 * n), kind))
        assert ids_of(got) == list(range(2 * n))
        assert ranks_of(got) == [rank for rank in range(n) for _ in range(2)]

    @pytest.mark.parametrize("by_name", [False, True])
    def test_several_batches_are_split_alike(self, group: Any, by_name: bool) -> None:
        n = group.world_size
        one, other = batch(2 * n), batch(2 * n, first=100)
        got = group.rows(data=one, more=other) if by_name else group.rows(one, other)
        assert got.tensor("more").tolist() == list(range(100, 100 + 2 * n))
        assert got.column("s").tolist() == [f"row {i}" for i in range(2 * n)]

    def test_meta_info_goes_along_and_comes_back(self, group: Any) -> None:
        got = group.rows(batch(group.world_size, temperature=0.5))
        assert got.meta_info == {"temperature": 0.5}

    def test_answers_without_rows_are_joined(self, group: Any) -> None:
        n = group.world_size
        got = group.summary(batch(2 * n))
        assert len(got) == 0
        assert got.meta_info == {"metrics": {"rows": [2] * n}}

    def test_function_goes_to_all_and_batches_are_split(self, group: Any) -> None:
        n = group.world_size
        for method in (group.with_function, group.execute_with_func_generator):
            got = method(ModesWorker._marked, batch(n))
            assert ids_of(got) == ranks_of(got) == list(range(n))

    def test_function_on_rank_zero(self, group: Any) -> None:
        assert group.execute_func_rank_zero(dict, {1: 2}, b=[3]) == {1: 2, "b": [3]}

    def test_metrics_come_per_rank(self, group: Any) -> None:
        n = group.world_size
        assert group.metric(batch(2 * n)) == [{"rank": rank, "rows": 2} for rank in range(n)]

    def test_all_to_all_splits_batches_by_rows(self, group: Any, kind: str) -> None:
        n = group.world_size
        got = group.all_to_all_rows(as_kind(batch(2 * n), kind), flag=list(range(n)))
        assert got == [(rank, [2 * rank, 2 * rank + 1], rank) for rank in range(n)]

    def test_direct_methods_are_not_for_groups(self, group: Any) -> None:
        with pytest.raises(NotImplementedError, match="direct"):
            group.direct(1)

    def test_low_level_gives_the_same_to_every_worker(self, backend: Backend, group: Any) -> None:
        n = group.world_size
        expected = [(rank, ([7] * n,)) for rank in range(n)]
        assert group.execute_all_sync("unregistered", [7] * n) == expected
        assert backend.resolved(group.execute_all("unregistered", [7] * n)) == expected
        assert group.execute_rank_zero_sync("unregistered", 1) == (0, (1,))
        assert backend.value_of(group.execute_rank_zero("unregistered", 1)) == (0, (1,))

    def test_workers_know_their_place(self, group: Any) -> None:
        found = group.identity()
        assert [each["rank"] for each in found] == list(range(group.world_size))
        assert {each["world_size"] for each in found} == {group.world_size}
        assert len({each["master"] for each in found}) == 1
        assert None not in found[0]["master"]


# --- What is no good argument is told before anything is sent: which, what was given, what to do ------------

REFUSED: dict[type[Exception], dict[str, tuple[str, Call]]] = {
    TypeError: {
        "what is no batch, by its name": ("'more'", lambda group: group.rows(batch(4), more={"lr": 1e-6})),
        "too few arguments": ("one_to_all", lambda group: group.one_to_all()),
        "too many arguments": ("one_to_all", lambda group: group.one_to_all(1, 2, 3)),
        "an unknown option": ("timeout", lambda group: group.rows.options(timeout=3)),
        "no batch over a mesh": (r"over_pairs.*|data", lambda group: group.over_pairs()),
        "what is no batch, to be put": ("DataProto", lambda group: group.put({"i": torch.zeros(3)})),
        "an answer that is no batch": (r"rank 0 .*DP_COMPUTE_METRIC", lambda group: group.no_batch(batch(4))),
    },
    ValueError: {
        "a list of another length, by its name": ("'y'", lambda group: group.all_to_all([1, 2, 3, 4], y=[1])),
        "rows that do not divide": (r"10 rows .*4 workers.*pad.*uneven", lambda group: group.rows(batch(10))),
        "an empty part": (
            r"2 rows .*4 workers",
            lambda group: group.rows.options(uneven="balanced")(batch(2)),
        ),
        "other ranks for another argument": (r"(?s)0.*2", lambda group: group.one_to_one({0: 1}, {2: 1})),
        "a rank that is none": ("4", lambda group: group.one_to_one({4: 1})),
        "unequal rows of a padded call": (
            r"(?s)5 rows.*8 rows",
            lambda group: group.rows.options(auto_padding=True)(batch(5), batch(8)),
        ),
        "an option of another value": ("uneven", lambda group: group.rows.options(uneven="yes")),
        "a time limit of nothing": ("timeout_s", lambda group: group.rows.options(timeout_s=0)),
        "an execute mode that makes no sense": (
            "RANK_ZERO .*DP_COMPUTE",
            lambda group: group.rows.options(execute_mode=Execute.RANK_ZERO),
        ),
        "a custom mode's entries for other workers": ("5.*4|4.*5", lambda group: group.custom_wrong(1)),
    },
    AttributeError: {"an unknown method": ("one_to_al.*one_to_all", lambda group: group.one_to_al)},
}
"""Error -> what is refused with it -> what it says (a pattern), and the use of a group that asks for it."""


class TestArguments(SharedGroups):
    """Bad arguments, on a group of 4."""

    @pytest.mark.parametrize("given", [[], [1], [1, 2, 3], [1, 2, 3, 4, 5], (1, 2)])
    @pytest.mark.parametrize("method", ["all_to_all", "dp_compute", "one_to_one"])
    def test_a_list_of_another_length_is_refused(self, group: Any, method: str, given: Any) -> None:
        with pytest.raises(ValueError, match=rf"4 workers .*got {len(given)}"):
            group.bind(method)(given)

    @pytest.mark.parametrize("given", [5, "abcd", {"a": 1}, None, torch.arange(4)])
    @pytest.mark.parametrize("method", ["all_to_all", "dp_compute"])
    def test_what_has_no_entries_is_refused(self, group: Any, method: str, given: Any) -> None:
        with pytest.raises(TypeError, match=r"(?s)argument 0.*Broadcast"):
            group.bind(method)(given)

    @pytest.mark.parametrize("given", [[1, 2, 3, 4], {"i": torch.arange(4)}, torch.arange(4), "abcd", None])
    @pytest.mark.parametrize("method", ["rows", "metric", "over_each"])
    def test_what_is_no_batch_is_never_copied_to_all(self, group: Any, method: str, given: Any) -> None:
        with pytest.raises(TypeError, match=r"argument 0 .*cannot be split"):
            group.bind(method)(given)

    @pytest.mark.parametrize(
        ("error", "what"), [(error, what) for error in REFUSED for what in REFUSED[error]]
    )
    def test_is_refused(self, group: Any, error: type[Exception], what: str) -> None:
        told, use = REFUSED[error][what]
        with pytest.raises(error, match=told):
            use(group)


# --- Rows that do not divide: padding, uneven and balanced parts --------------------------------------------


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

    @pytest.mark.parametrize("options", [{"uneven": "balanced"}, {"auto_padding": True}])
    def test_futures_of_one_call_must_have_equal_rows(self, group: Any, options: dict[str, Any]) -> None:
        rows = group.rows.options(**options)
        eight, twelve = [later(group.rows)(batch(count)) for count in (8, 12)]
        for more in (batch(12), twelve):
            with pytest.raises(WorkerGroupError, match=r"must have equal rows, got .*8 rows") as caught:
                rows(eight, more)
            assert caught.value.failed_ranks == [0, 1, 2, 3]

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
