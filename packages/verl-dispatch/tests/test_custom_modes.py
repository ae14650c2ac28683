"""Modes and execute strategies of the user's own: registered, updated, given as a dict."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from verl_dispatch import (
    DISPATCH_MODE_FN_REGISTRY,
    CallPlan,
    Dispatch,
    Execute,
    LocalWorkerGroup,
    RankCall,
    Worker,
    collect_all_to_all,
    collect_dp_compute_data_proto,
    dispatch_dp_compute_data_proto,
    dispatch_nd_compute_dataproto,
    dispatch_one_to_all,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register,
    register_dispatch_mode,
    register_execute_mode,
    update_dispatch_mode,
)
from verl_dispatch.errors import CallOptionError, InvalidModeError
from verl_protocol import DataProto, DataProtoFuture


def batch(num_rows: int, **options: Any) -> DataProto:
    return DataProto.from_dict(
        tensors={"i": torch.arange(num_rows), "w": torch.arange(num_rows, 0, -1)}, **options
    )


def rows_of(data: Any) -> list[int]:
    return [int(row) for row in data.tensor("i")]


def rank_times(group: Any, value: int) -> Any:
    return ([rank * value for rank in range(group.world_size)],), {}


def total(group: Any, outputs: Any) -> Any:
    return sum(outputs)


@pytest.fixture
def mode() -> Iterator[Dispatch]:
    made = register_dispatch_mode("rank_times", rank_times, total)
    yield made
    Dispatch.remove("rank_times")
    del DISPATCH_MODE_FN_REGISTRY[made]


def echo(mode: Any, *, blocking: bool = True, execute_mode: Execute = Execute.ALL) -> type:
    """A worker class with one method of this mode."""

    class Echo(Worker):
        @register(dispatch_mode=mode, blocking=blocking, execute_mode=execute_mode)
        def f(self, *args: Any, **kwargs: Any) -> Any:
            return (*args, *kwargs.values())[0]

    return Echo


# --- registering ------------------------------------------------------------------------------------------


def test_a_registered_mode_is_a_member_with_functions(mode: Dispatch) -> None:
    assert mode is Dispatch["RANK_TIMES"]
    assert get_predefined_dispatch_fn(mode) == {"dispatch_fn": rank_times, "collect_fn": total}
    assert LocalWorkerGroup(echo(mode), 4).f(10) == 60


def test_an_updated_mode_reaches_groups_already_bound(mode: Dispatch) -> None:
    group = LocalWorkerGroup(echo(mode), 4)
    assert group.f(10) == 60
    update_dispatch_mode(mode, rank_times, lambda group, outputs: max(outputs))
    assert group.f(10) == 30
    DISPATCH_MODE_FN_REGISTRY[mode] = {
        "dispatch_fn": rank_times,
        "collect_fn": lambda group, outputs: outputs,
    }
    assert group.f(10) == [0, 10, 20, 30]


def test_a_predefined_mode_can_be_updated_and_restored() -> None:
    before = dict(DISPATCH_MODE_FN_REGISTRY)
    group = LocalWorkerGroup(echo(Dispatch.ONE_TO_ALL), 2)
    try:
        update_dispatch_mode(Dispatch.ONE_TO_ALL, rank_times, total)
        assert group.f(10) == 10
    finally:
        DISPATCH_MODE_FN_REGISTRY.clear()
        DISPATCH_MODE_FN_REGISTRY.update(before)
    assert group.f(10) == [10, 10]


@pytest.mark.parametrize(
    ("mode", "given", "expected"),
    [
        (Dispatch.RANK_ZERO, 7, 7),
        (Dispatch.ONE_TO_ALL, 7, [7, 7]),
        (Dispatch.ALL_TO_ALL, [7, 8], [7, 8]),
        (Dispatch.ONE_TO_ONE, {1: 7}, [7]),
        (Dispatch.DP_COMPUTE, [7, 8], [7, 8]),
    ],
)
def test_a_mode_may_be_built_on_the_functions_of_one_that_is_here(
    mode: Dispatch, given: Any, expected: Any
) -> None:
    pair = get_predefined_dispatch_fn(mode)
    own = {**pair, "collect_fn": lambda group, outputs: pair["collect_fn"](group, outputs)}
    assert LocalWorkerGroup(echo(own), 2).f(given) == expected


def test_the_registry_is_a_plain_dict_of_exact_pairs() -> None:
    assert type(DISPATCH_MODE_FN_REGISTRY) is dict
    assert set(Dispatch) <= set(DISPATCH_MODE_FN_REGISTRY)
    assert all(set(pair) == {"dispatch_fn", "collect_fn"} for pair in DISPATCH_MODE_FN_REGISTRY.values())


@pytest.mark.parametrize(("dispatch_fn", "collect_fn"), [(None, total), (rank_times, 3)])
def test_functions_that_cannot_be_called_are_refused_and_leave_no_member(
    dispatch_fn: Any, collect_fn: Any
) -> None:
    with pytest.raises(ValueError, match="dispatch mode NEW needs a callable"):
        register_dispatch_mode("NEW", dispatch_fn, collect_fn)
    assert Dispatch.from_name("NEW") is None
    with pytest.raises(ValueError, match="ONE_TO_ALL"):
        update_dispatch_mode(Dispatch.ONE_TO_ALL, dispatch_fn, collect_fn)
    assert get_predefined_dispatch_fn(Dispatch.ONE_TO_ALL)["dispatch_fn"] is dispatch_one_to_all


def test_what_is_no_mode_has_no_functions() -> None:
    for call in (get_predefined_dispatch_fn, lambda mode: update_dispatch_mode(mode, rank_times, total)):
        with pytest.raises(TypeError, match=r"known: .*ONE_TO_ALL"):
            call("ONE_TO_ALL")  # type: ignore[arg-type]


def test_execute_modes_name_the_group_function() -> None:
    assert get_predefined_execute_fn(Execute.ALL) == {"execute_fn_name": "execute_all"}
    assert get_predefined_execute_fn(Execute.RANK_ZERO) == {"execute_fn_name": "execute_rank_zero"}
    with pytest.raises(TypeError, match="execute_mode"):
        get_predefined_execute_fn(Dispatch.RANK_ZERO)  # type: ignore[arg-type]


# --- what the functions see and return --------------------------------------------------------------------


def test_a_dict_of_two_functions_is_a_mode() -> None:
    pair = {"dispatch_fn": rank_times, "collect_fn": total}
    group = LocalWorkerGroup(echo(pair), 3)
    assert group.f(1) == 3
    assert group.f.dispatch_mode == pair
    assert group.f.plan(1).mode == "rank_times"


def test_collect_gets_values_in_rank_order_when_blocking_and_futures_when_not() -> None:
    seen: list[Any] = []

    def collect(group: Any, outputs: Any) -> Any:
        seen.append(outputs)
        return outputs

    pair = {"dispatch_fn": rank_times, "collect_fn": collect}
    assert LocalWorkerGroup(echo(pair), 3).f(2) == [0, 2, 4]
    futures = LocalWorkerGroup(echo(pair, blocking=False), 3).f(2)
    assert futures is seen[1]
    assert [future.result() for future in futures] == [0, 2, 4]


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (lambda group: (([1, 2],), {}), "argument 0 has 2 entries for 3 workers"),
        (lambda group: ((), {"x": [1]}), "x has 1 entries for 3 workers"),
        (lambda group: ((5,), {}), "argument 0 is int, not a list"),
        (lambda group: ([1, 2, 3], {}), "argument 0 is int, not a list"),
        (lambda group: None, "it returned NoneType"),
        (lambda group: (1, 2, 3), "it returned tuple"),
        (lambda group: ((), []), r"it returned \(tuple, list\)"),
        (lambda group: CallPlan.of({}), r"calls ranks \[\]"),
        (lambda group: CallPlan.of({3: ((), {})}), r"calls ranks \[3\], the group has ranks 0..2"),
        (lambda group: CallPlan((RankCall(0), RankCall(0))), r"calls ranks \[0, 0\]"),
        (lambda group: CallPlan((RankCall(0),), fetched_ranks=(1,)), r"fetches ranks \[1\], but calls \[0\]"),
    ],
)
def test_what_no_call_can_be_made_of_is_an_error_naming_the_mode(result: Any, problem: str) -> None:
    def strange(group: Any) -> Any:
        return result(group)

    group = LocalWorkerGroup(echo({"dispatch_fn": strange, "collect_fn": total}), 3)
    with pytest.raises(InvalidModeError, match=f"mode strange .*{problem}"):
        group.f()


def test_a_dispatch_function_may_call_some_ranks_only() -> None:
    def odd_ranks(group: Any, value: int) -> CallPlan:
        return CallPlan.of({rank: ((value * rank,), {}) for rank in range(1, group.world_size, 2)})

    pair = {"dispatch_fn": odd_ranks, "collect_fn": collect_all_to_all}
    group = LocalWorkerGroup(echo(pair), 4)
    assert group.f(10) == [10, 30]
    plan = group.f.plan(10)
    assert (plan.method, plan.mode, plan.world_size, plan.fetched_ranks) == ("f", "odd_ranks", 4, (1, 3))


def test_on_rank_zero_the_worker_gets_what_the_function_returned() -> None:
    pair = {"dispatch_fn": lambda group, *values: (values, {}), "collect_fn": lambda group, output: [output]}
    group = LocalWorkerGroup(echo(pair, execute_mode=Execute.RANK_ZERO), 3)
    assert group.f("as it is") == ["as it is"]


# --- padding and order are undone -------------------------------------------------------------------------


def through_lists(group: Any, *args: Any, **kwargs: Any) -> Any:
    args, kwargs = dispatch_dp_compute_data_proto(group, *args, **kwargs)
    return args, kwargs


CUSTOM = {"dispatch_fn": through_lists, "collect_fn": collect_dp_compute_data_proto}
CONCATENATING = {
    "dispatch_fn": through_lists,
    "collect_fn": lambda group, outputs: DataProto.concat(outputs),
}


@pytest.mark.parametrize("mode", [CUSTOM, CONCATENATING])
@pytest.mark.parametrize("options", [{}, {"auto_padding": True}, {"uneven": "balanced"}, {"balance": "w"}])
def test_what_the_public_functions_split_comes_back_whole(mode: Any, options: dict[str, Any]) -> None:
    group = LocalWorkerGroup(echo(mode), 4)
    num_rows = 7 if options else 8
    assert rows_of(group.f.options(**options)(batch(num_rows))) == list(range(num_rows))
    assert rows_of(group.f(batch(7, auto_padding=True))) == list(range(7))


@pytest.mark.parametrize("options", [{}, {"auto_padding": True}, {"uneven": "balanced"}, {"balance": "w"}])
def test_also_when_not_blocking(options: dict[str, Any]) -> None:
    group = LocalWorkerGroup(echo(CUSTOM, blocking=False), 4)
    num_rows = 7 if options else 8
    future = group.f.options(**options)(batch(num_rows))
    assert isinstance(future, DataProtoFuture)
    assert rows_of(future.get()) == list(range(num_rows))
    assert rows_of(group.f(batch(7, auto_padding=True)).get()) == list(range(7))


def test_an_order_that_the_collect_function_loses_is_an_error() -> None:
    pair = {"dispatch_fn": through_lists, "collect_fn": lambda group, outputs: DataProto.concat(outputs)[:5]}
    with pytest.raises(CallOptionError, match="5 rows for 7 rows sent"):
        LocalWorkerGroup(echo(pair), 4).f.options(balance="w")(batch(7))


def test_a_collect_function_of_futures_sees_no_padding() -> None:
    pair = {"dispatch_fn": through_lists, "collect_fn": collect_all_to_all}
    futures = LocalWorkerGroup(echo(pair, blocking=False), 4).f(batch(5, auto_padding=True))
    assert [rows_of(future.result()) for future in futures] == [[0, 1], [2, 3], [4], []]


def test_a_mode_over_dp_ranks_gives_replicas_the_same_rows() -> None:
    mapping = [0, 0, 1, 1]

    def over_two(group: Any, *args: Any, **kwargs: Any) -> Any:
        return dispatch_nd_compute_dataproto(mapping, 2, group, *args, **kwargs)

    pair = {
        "dispatch_fn": over_two,
        "collect_fn": lambda group, outputs: [rows_of(output) for output in outputs],
    }
    group = LocalWorkerGroup(echo(pair), 4)
    assert group.f(batch(3, auto_padding=True)) == [[0, 1], [0, 1], [2], [2]]


# --- execute strategies -----------------------------------------------------------------------------------


@pytest.fixture
def ends() -> Iterator[Execute]:
    yield register_execute_mode("ENDS", lambda world_size: sorted({0, world_size - 1}))
    Execute.remove("ENDS")


def test_a_strategy_picks_ranks_and_answers_by_rank(ends: Execute) -> None:
    assert LocalWorkerGroup(echo(Dispatch.ONE_TO_ALL, execute_mode=ends), 4).f(7) == {0: 7, 3: 7}
    assert LocalWorkerGroup(echo(Dispatch.ALL_TO_ALL, execute_mode=ends), 3).f([1, 2, 3]) == {0: 1, 2: 3}
    pair = {"dispatch_fn": rank_times, "collect_fn": total}
    assert LocalWorkerGroup(echo(pair, execute_mode=ends), 4).f(10) == {0: 0, 3: 30}
    assert LocalWorkerGroup(echo(Dispatch.ONE_TO_ALL), 4).f.options(execute_mode=ends)(7) == {0: 7, 3: 7}


def test_a_strategy_gives_futures_by_rank_when_not_blocking(ends: Execute) -> None:
    group = LocalWorkerGroup(echo(Dispatch.ONE_TO_ALL, execute_mode=ends, blocking=False), 4)
    assert {rank: future.result() for rank, future in group.f(7).items()} == {0: 7, 3: 7}


@pytest.mark.parametrize(
    "mode",
    [
        Dispatch.RANK_ZERO,
        Dispatch.ONE_TO_ONE,
        Dispatch.DP_COMPUTE,
        Dispatch.DP_COMPUTE_PROTO,
        Dispatch.DP_COMPUTE_METRIC,
    ],
)
def test_a_strategy_is_refused_where_rows_or_entries_would_be_lost(ends: Execute, mode: Dispatch) -> None:
    with pytest.raises(ValueError, match=f"ENDS does not go with dispatch_mode {mode.name}: "):
        register(dispatch_mode=mode, execute_mode=ends)


def test_a_strategy_never_loses_rows(ends: Execute) -> None:
    group = LocalWorkerGroup(echo(Dispatch.ALL_TO_ALL, execute_mode=ends), 4)
    with pytest.raises(ValueError, match="rows of the other ranks would be lost"):
        group.f(batch(4))


@pytest.mark.parametrize("ranks", [[], [4], [0, 0], [-1]])
def test_a_strategy_that_names_no_valid_ranks_is_an_error(ranks: list[int]) -> None:
    strange = register_execute_mode("STRANGE", lambda world_size: ranks)
    try:
        with pytest.raises(InvalidModeError, match=r"STRANGE of 'f': select_ranks\(4\) gave .* each of 0..3"):
            LocalWorkerGroup(echo(Dispatch.ONE_TO_ALL, execute_mode=strange), 4).f(1)
    finally:
        Execute.remove("STRANGE")


def test_a_strategy_must_be_a_function() -> None:
    with pytest.raises(TypeError, match="select_ranks must be a function"):
        register_execute_mode("NEVER", [0, 1])  # type: ignore[arg-type]
    assert Execute.from_name("NEVER") is None


@pytest.mark.parametrize("broken", ["dispatch_fn", "collect_fn"])
@pytest.mark.parametrize("blocking", [True, False])
def test_an_error_of_a_custom_function_says_which_function_and_method(broken: str, blocking: bool) -> None:
    def fail(*_: Any) -> Any:
        raise LookupError("of the user")

    functions: Any = {"dispatch_fn": dispatch_one_to_all, "collect_fn": lambda group, output: output}
    group: Any = LocalWorkerGroup(echo({**functions, broken: fail}, blocking=blocking), 2)
    with pytest.raises(LookupError, match="of the user") as caught:
        group.f(1)
    assert caught.value.__notes__ == [f"in the {broken} of the custom mode of method 'f'"]
