"""The table of dispatch modes: what reaches each rank, what comes back in every verb, what is no argument."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

from verl_dispatch.conformance.backend import (
    Backend,
    Call,
    GroupCache,
    SharedGroups,
    as_kind,
    batch,
    ranks_of,
)
from verl_dispatch.conformance.workers import ModesWorker, ids_of
from verl_dispatch.modes import Broadcast, Execute


class Row(NamedTuple):
    """One line of the table, for values: a method, its arguments, and the expected result."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    expected: Any


def table(n: int) -> dict[str, Row]:
    """What each mode takes and gives on a group of `n`."""
    ranks, letters, ones = range(n), "abcdefgh"[:n], [1] * n
    last = n - 1
    return {
        "rank zero": Row("rank_zero", ("v",), {"y": ones}, (0, "v", ones)),
        "one to all": Row("one_to_all", ("v",), {"y": 5}, [(r, "v", 5) for r in ranks]),
        "one to all, a list as long as the world": Row(
            "one_to_all", (ones,), {}, [(r, ones, None) for r in ranks]
        ),
        "one to all, async": Row("one_to_all_async", (3,), {}, [(r, 3, None) for r in ranks]),
        "one to all, rank zero": Row("one_to_all_rank_zero", ("v",), {"y": ones}, (0, "v", ones)),
        "all to all": Row(
            "all_to_all", (list(ranks),), {"y": tuple(letters)}, [(r, r, letters[r]) for r in ranks]
        ),
        "all to all, broadcast": Row(
            "all_to_all", (Broadcast([1, 2]), list(ranks)), {}, [(r, [1, 2], r) for r in ranks]
        ),
        "all to all, entries that are lists": Row(
            "all_to_all", ([[r] * n for r in ranks],), {}, [(r, [r] * n, None) for r in ranks]
        ),
        "all to all, rank zero": Row("all_to_all_rank_zero", ([1, 2, 3],), {"y": 4}, (0, [1, 2, 3], 4)),
        "one to one, all by rank": Row(
            "one_to_one", ({r: r * 10 for r in ranks},), {}, {r: (r, r * 10, None) for r in ranks}
        ),
        "one to one, only the last": Row(
            "one_to_one", ({last: "v"},), {"y": {last: "w"}}, {last: (last, "v", "w")}
        ),
        "one to one, a list": Row("one_to_one", (list(ranks),), {}, [(r, r, None) for r in ranks]),
        "dp compute": Row(
            "dp_compute",
            (list(ranks), tuple(letters)),
            {},
            [(r, (r, letters[r]), "left out", {}) for r in ranks],
        ),
        "dp compute, by name": Row(
            "dp_compute",
            (),
            {"y": list(ranks), "z": [r * r for r in ranks]},
            [(r, (), r, {"z": r * r}) for r in ranks],
        ),
        "custom pair": Row("custom", ("v",), {}, [(r, ["v", r], None) for r in reversed(ranks)]),
        "custom plan": Row("custom_plan", ("v",), {}, [(last, "v", None)]),
        "custom, rank zero": Row("custom_rank_zero", (3,), {}, {"rank zero": (0, [3, 3], None)}),
    }


class TestModes(SharedGroups):
    """What DESIGN calls the table."""

    @pytest.fixture(params=[1, 4])
    def group(self, request: pytest.FixtureRequest, groups: GroupCache) -> Any:
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
        assert group.execute_func_rank_zero(add, 2, b=[3]) == (2, [3])

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


def add(a: int, b: list[int]) -> Any:
    """What rank 0 is sent."""
    return a, b


# --- What is no good argument is told before anything is sent: which, what was given, what to do ------------

REFUSED: dict[type[Exception], dict[str, tuple[str, Call]]] = {
    TypeError: {
        "what is no batch, by its name": ("'more'", lambda group: group.rows(batch(4), more={"lr": 1e-6})),
        "too few arguments": ("one_to_all", lambda group: group.one_to_all()),
        "too many arguments": ("one_to_all", lambda group: group.one_to_all(1, 2, 3)),
        "an unknown option": ("timeout", lambda group: group.rows.options(timeout=3)),
        "an answer that is no batch": (r"rank 0 .*DP_COMPUTE_METRIC", lambda group: group.no_batch(batch(4))),
    },
    ValueError: {
        "a list of another length, by its name": ("'y'", lambda group: group.all_to_all([1, 2, 3, 4], y=[1])),
        "rows that do not divide": (r"10 rows .*4 workers.*pad.*uneven", lambda group: group.rows(batch(10))),
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
    AttributeError: {
        "an unknown method": ("one_to_al.*one_to_all", lambda group: group.one_to_al),
    },
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
