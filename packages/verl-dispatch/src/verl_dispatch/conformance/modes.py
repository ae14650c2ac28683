"""The table of dispatch modes: what reaches each rank, what comes back in every verb, what is no argument."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import pytest
import torch

from verl_dispatch.conformance.backend import (
    KINDS,
    Backend,
    GroupCache,
    SharedGroups,
    as_kind,
    batch,
    ranks_of,
)
from verl_dispatch.conformance.workers import ModesWorker, ids_of
from verl_dispatch.modes import Broadcast, Execute

VERBS = ("call", "not blocking", "submit", "await", "stream")


def run(backend: Backend, verb: str, method: Any, args: Any, kwargs: Any) -> Any:
    """The result of a call, however it is made; of a stream the answers by rank."""
    if verb == "call":
        return method.call(*args, **kwargs)
    if verb == "not blocking":
        return backend.resolved(method.options(blocking=False)(*args, **kwargs))
    if verb == "submit":
        return method.submit(*args, **kwargs).result(timeout=60)
    if verb == "stream":
        return dict(method.stream(*args, **kwargs))

    async def wait() -> Any:
        return await method.submit(*args, **kwargs)

    return asyncio.run(wait())


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
        "custom pair": Row("custom", ("v",), {}, [["v", r] for r in reversed(ranks)]),
        "custom plan": Row("custom_plan", ("v",), {}, [(last, "v")]),
        "custom, rank zero": Row("custom_rank_zero", (3,), {}, {"rank zero": (0, [3, 3])}),
    }


CUSTOM = ("custom pair", "custom plan", "custom, rank zero")


class TestModes:
    """What DESIGN calls the table."""

    @pytest.fixture(params=[1, 4])
    def group(self, request: pytest.FixtureRequest, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, request.param)

    @pytest.mark.parametrize("verb", VERBS)
    @pytest.mark.parametrize("name", [name for name in table(1) if name not in CUSTOM])
    def test_values(self, backend: Backend, group: Any, name: str, verb: str) -> None:
        method, args, kwargs, expected = table(group.world_size)[name]
        got = run(backend, verb, group.bind(method), args, kwargs)
        assert got == (expected_stream(expected) if verb == "stream" else expected)

    @pytest.mark.parametrize("name", CUSTOM)
    @pytest.mark.parametrize("verb", ["call", "submit", "await"])
    def test_custom_modes(self, backend: Backend, group: Any, name: str, verb: str) -> None:
        method, args, kwargs, expected = table(group.world_size)[name]
        assert run(backend, verb, group.bind(method), args, kwargs) == expected

    def test_custom_mode_gets_futures_when_not_blocking(self, backend: Backend, group: Any) -> None:
        references = group.custom.options(blocking=False)("v")
        assert backend.resolved(references) == [["v", rank] for rank in reversed(range(group.world_size))]

    @pytest.mark.parametrize("kind", KINDS)
    @pytest.mark.parametrize("verb", ["call", "not blocking", "submit", "await"])
    @pytest.mark.parametrize("method", ["rows", "rows_async", "over_each"])
    def test_rows_come_back_in_input_order(
        self, backend: Backend, group: Any, method: str, verb: str, kind: str
    ) -> None:
        n = group.world_size
        got = run(backend, verb, group.bind(method), (as_kind(batch(2 * n), kind),), {})
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
        got = group.with_function(mark_with_function, batch(2 * n))
        assert ids_of(got) == list(range(2 * n))
        assert group.execute_with_func_generator(mark_with_function, batch(n)).tensor(
            "rank"
        ).tolist() == list(range(n))

    def test_function_on_rank_zero(self, group: Any) -> None:
        assert group.execute_func_rank_zero(add, 2, b=[3]) == (2, [3])

    def test_metrics_come_per_rank(self, group: Any) -> None:
        n = group.world_size
        assert group.metric(batch(2 * n)) == [{"rank": rank, "rows": 2} for rank in range(n)]

    @pytest.mark.parametrize("kind", KINDS)
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


def expected_stream(expected: Any) -> dict[int, Any]:
    """What a stream gives where a call gives `expected`: every answer begins with its rank."""
    answers = [expected] if isinstance(expected, tuple) else expected
    answers = list(answers.values()) if isinstance(answers, dict) else answers
    return {answer[0]: answer for answer in answers}


def mark_with_function(worker: ModesWorker, data: Any) -> Any:
    """What the function modes send."""
    return worker._marked(data)


def add(a: int, b: list[int]) -> Any:
    """What rank 0 is sent."""
    return a, b


# --- What is no good argument is told before anything is sent: which, what was given, what to do ------------


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

    def test_the_argument_is_named(self, group: Any) -> None:
        with pytest.raises(TypeError, match="'more'"):
            group.rows(batch(4), more={"lr": 1e-6})
        with pytest.raises(ValueError, match="'y'"):
            group.all_to_all([1, 2, 3, 4], y=[1])

    def test_rows_that_do_not_divide_are_refused_with_the_ways_out(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"10 rows .*4 workers.*pad.*uneven"):
            group.rows(batch(10))

    def test_ranks_of_all_arguments_must_agree(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"(?s)0.*2"):
            group.one_to_one({0: 1}, {2: 1})
        with pytest.raises(ValueError, match="4"):
            group.one_to_one({4: 1})

    def test_batches_of_a_padded_call_must_have_equal_rows(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"(?s)5 rows.*8 rows"):
            group.rows.options(auto_padding=True)(batch(5), batch(8))

    @pytest.mark.parametrize("args", [(), (1, 2, 3)])
    def test_the_workers_signature_holds(self, group: Any, args: Any) -> None:
        with pytest.raises(TypeError, match="one_to_all"):
            group.one_to_all(*args)

    def test_unknown_names_list_the_known_ones(self, group: Any) -> None:
        with pytest.raises(AttributeError, match=r"one_to_al.*one_to_all"):
            _ = group.one_to_al

    @pytest.mark.parametrize("options", [{"timeout": 3}, {"uneven": "yes"}, {"timeout_s": 0}])
    def test_options_are_checked(self, group: Any, options: dict[str, Any]) -> None:
        with pytest.raises((ValueError, TypeError), match=next(iter(options))):
            group.rows.options(**options)

    def test_execute_modes_that_make_no_sense_are_refused(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"RANK_ZERO .*DP_COMPUTE"):
            group.rows.options(execute_mode=Execute.RANK_ZERO)

    def test_custom_modes_must_give_one_entry_per_worker(self, group: Any) -> None:
        with pytest.raises(ValueError, match=r"(?s)5.*4|4.*5"):
            group.custom_wrong(1)

    def test_answers_that_are_no_batch_point_to_the_mode_for_values(self, group: Any) -> None:
        with pytest.raises(TypeError, match=r"rank 0 .*DP_COMPUTE_METRIC"):
            group.no_batch(batch(4))
