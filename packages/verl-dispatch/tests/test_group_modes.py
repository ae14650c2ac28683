"""Every predefined mode on a group: what the workers get, what the caller gets, and what is refused."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl_dispatch import Broadcast, Dispatch, Execute, LocalWorkerGroup, Worker, WorkerGroupError, register
from verl_dispatch.errors import (
    AnswerError,
    CallOptionError,
    EntryCountError,
    RowCountError,
    UnevenRowsError,
    UnsplittableArgumentError,
)
from verl_protocol import DataProto, DataProtoConfig
from verl_protocol.batch import convert as batch_conversion
from verl_protocol.errors import InvalidValueError


class Modes(Worker):
    """One echo method for every mode; it answers its rank and what it got."""

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def rank_zero(self, x: Any, y: Any = None) -> Any:
        return self.rank, x, y

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def one_to_all(self, x: Any, y: Any = None) -> Any:
        return self.rank, x, y

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first_only(self, x: Any) -> Any:
        return self.rank, x

    def add(self, x: int) -> int:
        return x + 1

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def all_to_all(self, x: Any, y: Any = None) -> Any:
        return x if y is None else (x, y)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def whole_to_first(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.ONE_TO_ONE)
    def one_to_one(self, x: Any, y: Any = None) -> Any:
        return self.rank, x, y

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def dp_compute(self, *values: Any, **named: Any) -> Any:
        return self.rank, values, named

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def with_default(self, x: Any, size: list[int] = [1, 2]) -> Any:  # noqa: B006 - a default is never split
        return x, size

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def proto(self, d: Any, *others: Any, **named: Any) -> Any:
        return d

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def pair(self, d: DataProto, other: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"rows": torch.tensor([len(d), len(other)])})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def answer(self, d: DataProto, kind: Any) -> Any:
        return kind(self.rank, d)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def no_arguments(self) -> DataProto:
        return DataProto.from_dict(tensors={"rank": torch.tensor([self.rank])})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def with_function(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        return function(self.rank, *values, **named)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def metric(self, d: DataProto) -> dict[str, int]:
        return {"rank": self.rank, "rows": len(d)}

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    def direct(self) -> None: ...


Group = LocalWorkerGroup[Modes]


@pytest.fixture(scope="module")
def groups() -> dict[int, Any]:
    return {size: LocalWorkerGroup(Modes, size) for size in (1, 2, 3, 4)}


def batch(num_rows: int, *, auto_padding: bool = False, **meta: Any) -> DataProto:
    return DataProto.from_dict(
        tensors={"i": torch.arange(num_rows)},
        non_tensors={"s": [f"s{row}" for row in range(num_rows)]},
        meta_info=meta,
        auto_padding=auto_padding,
    )


def rows_of(data: Any) -> list[int]:
    tensor = data.tensor("i") if isinstance(data, DataProto) else data["i"]
    return [int(value) for value in tensor]


# --- the same for all, or one only ------------------------------------------------------------------------


def test_rank_zero_gets_the_arguments_as_given(groups: dict[int, Any]) -> None:
    assert groups[3].rank_zero([1, 2], y=Broadcast(5)) == (0, [1, 2], 5)


def test_one_to_all_gives_the_same_to_every_worker(groups: dict[int, Any]) -> None:
    assert groups[3].one_to_all("v", y=[1, 2, 3]) == [(rank, "v", [1, 2, 3]) for rank in range(3)]
    assert groups[2].one_to_all(Broadcast(7)) == [(0, 7, None), (1, 7, None)]


def test_one_to_all_on_rank_zero_gives_the_value_itself(groups: dict[int, Any]) -> None:
    assert groups[3].first_only("v") == (0, "v")


def test_all_to_all_on_rank_zero_does_not_split(groups: dict[int, Any]) -> None:
    assert groups[3].whole_to_first([7, 8, 9]) == (0, [7, 8, 9])
    rank, data = groups[3].whole_to_first(batch(5))
    assert (rank, rows_of(data)) == (0, [0, 1, 2, 3, 4])


def test_a_direct_method_is_not_callable_on_a_group(groups: dict[int, Any]) -> None:
    with pytest.raises(NotImplementedError, match="'direct' is called directly on its worker"):
        groups[2].direct()


# --- one entry per worker ---------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("entries", [[7], [7, 8], (7, 8, 9)])
def test_a_list_is_split_if_it_has_an_entry_per_worker_and_else_refused(
    groups: dict[int, Any], size: int, entries: Any
) -> None:
    if len(entries) == size:
        assert groups[size].all_to_all(entries) == list(entries)
        assert [values for _, values, _ in groups[size].dp_compute(entries)] == [
            (entry,) for entry in entries
        ]
        return
    for method in (groups[size].all_to_all, groups[size].dp_compute):
        with pytest.raises(EntryCountError, match=f"{size} workers .* got {len(entries)}"):
            method(entries)


def test_a_low_level_failure_says_that_a_list_went_to_all_whole(groups: dict[int, Any]) -> None:
    group = groups[2]
    with pytest.raises(WorkerGroupError) as caught:
        group.execute_all_sync("add", x=[1, 1])
    [note] = caught.value.__notes__
    assert (
        "every worker got the whole of argument 'x', a list with one entry for each of the 2 workers" in note
    )
    assert "Dispatch.ALL_TO_ALL" in note
    for other in ([1, 1, 1], "ab"):
        with pytest.raises(WorkerGroupError) as caught:
            group.execute_all_sync("add", x=other)
        assert not hasattr(caught.value, "__notes__")


def test_the_low_level_call_never_splits(groups: dict[int, Any]) -> None:
    assert groups[2].execute_all_sync("all_to_all", [7, 8]) == [[7, 8], [7, 8]]
    assert groups[2].execute_rank_zero_sync("all_to_all", [7, 8]) == [7, 8]
    assert [future.result() for future in groups[2].execute_all("all_to_all", 3)] == [3, 3]
    assert groups[2].execute_rank_zero_async("all_to_all", 3).result() == 3


def test_all_to_all_splits_batches_and_broadcasts_on_request(groups: dict[int, Any]) -> None:
    answers = groups[2].all_to_all(batch(4), y=Broadcast({"lr": 0.1}))
    assert [(rows_of(part), other) for part, other in answers] == [
        ([0, 1], {"lr": 0.1}),
        ([2, 3], {"lr": 0.1}),
    ]


@pytest.mark.parametrize("value", [5, "ab", {"a": 1}, torch.arange(2), None])
def test_all_to_all_refuses_what_it_cannot_split_and_names_the_ways(
    groups: dict[int, Any], value: Any
) -> None:
    with pytest.raises(
        TypeError, match=r"argument 0 \('x'\) .* cannot be split .* one entry per worker.*Broadcast"
    ):
        groups[2].all_to_all(value)


def test_each_of_args_and_kwargs_counts_one_by_one(groups: dict[int, Any]) -> None:
    answers = groups[2].dp_compute([1, 2], (3, 4), z=[5, 6], w=Broadcast("all"))
    assert answers == [(0, (1, 3), {"z": 5, "w": "all"}), (1, (2, 4), {"z": 6, "w": "all"})]
    with pytest.raises(EntryCountError, match=r"argument 'z' of method 'dp_compute': 2 workers .* got 1"):
        groups[2].dp_compute([1, 2], z=[5])


def test_defaults_that_the_caller_leaves_out_are_not_split(groups: dict[int, Any]) -> None:
    assert groups[2].with_default(["a", "b"]) == [("a", [1, 2]), ("b", [1, 2])]


def test_dp_compute_takes_no_batches_and_says_who_does(groups: dict[int, Any]) -> None:
    with pytest.raises(UnsplittableArgumentError, match="DP_COMPUTE_PROTO"):
        groups[2].dp_compute(batch(4))


# --- who gets what by rank --------------------------------------------------------------------------------


def test_one_to_one_calls_only_the_named_ranks(groups: dict[int, Any]) -> None:
    assert groups[4].one_to_one({2: "c", 0: "a"}, y={0: 1, 2: 3}) == {0: (0, "a", 1), 2: (2, "c", 3)}
    assert groups[2].one_to_one(["a", "b"], ["c", "d"]) == [(0, "a", "c"), (1, "b", "d")]
    assert groups[2].one_to_one({1: "b"}, Broadcast("all")) == {1: (1, "b", "all")}
    assert groups[2].one_to_one({0: "a", 1: "b"}, ["c", "d"]) == {0: (0, "a", "c"), 1: (1, "b", "d")}


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (({0: 1}, {1: 1}), r"argument 0 .* ranks \[0\], but argument 1 .* ranks \[1\]"),
        (({0: 1, 7: 1},), r"ranks \[0, 7\], but the group has ranks 0..2"),
        (({-1: 1},), r"ranks \[-1\]"),
        (({},), r"ranks \[\]"),
        (({True: 1},), "ranks"),
        (({"a": 1},), r"ranks \['a'\]"),
        ((5,), "must be {rank: value}.*got int"),
        ((Broadcast(5),), "no argument names any rank"),
        (({0: 1}, [1, 2, 3]), r"names ranks \[0\], but .* names ranks \[0, 1, 2\]"),
    ],
)
def test_one_to_one_refuses_arguments_that_do_not_name_the_same_ranks(
    groups: dict[int, Any], arguments: tuple[Any, ...], problem: str
) -> None:
    with pytest.raises(InvalidValueError, match=problem):
        groups[3].one_to_one(*arguments)


def test_one_to_one_lists_need_an_entry_per_worker(groups: dict[int, Any]) -> None:
    with pytest.raises(EntryCountError, match=r"3 workers .* got 2"):
        groups[3].one_to_one([1, 2])


# --- batches ----------------------------------------------------------------------------------------------


def test_batches_are_split_and_joined_in_input_order(groups: dict[int, Any]) -> None:
    data = batch(6)
    for joined in (groups[3].proto(data), groups[3].proto(d=data)):
        assert rows_of(joined) == list(range(6))
        assert joined.non_tensor_batch["s"].tolist() == [f"s{row}" for row in range(6)]


def test_tensordicts_are_split_and_joined_too(groups: dict[int, Any]) -> None:
    jagged = torch.nested.as_nested_tensor([torch.arange(n) for n in (1, 2, 3, 4)], layout=torch.jagged)
    joined = groups[2].proto(TensorDict({"i": torch.arange(4), "j": jagged}, batch_size=4))
    assert isinstance(joined, TensorDict)
    assert rows_of(joined) == [0, 1, 2, 3]
    assert [row.tolist() for row in joined["j"].unbind()] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3]]


@pytest.mark.parametrize("num_rows", [7, 8])
def test_a_tensordict_with_further_batch_dims_comes_back_with_them(
    groups: dict[int, Any], num_rows: int
) -> None:
    data = TensorDict({"i": torch.arange(num_rows * 3).view(num_rows, 3)}, batch_size=[num_rows, 3])
    joined = groups[4].proto.options(auto_padding=True)(data)
    assert joined.batch_size == data.batch_size
    assert torch.equal(joined["i"], data["i"])


@pytest.mark.parametrize(
    "options",
    [{"auto_padding": True}, {"uneven": "balanced"}, {"balance": "i"}],
    ids=str,
)
def test_a_tensordict_is_converted_once_on_its_way_in_and_each_part_once(
    groups: dict[int, Any], monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """However its rows are laid out: in and out as a whole, in and out for each of the four ranks."""
    count: Counter[str] = Counter()

    def counted(name: str) -> Callable[..., Any]:
        convert = getattr(batch_conversion, name)
        return lambda *args, **kwargs: (count.update([name]), convert(*args, **kwargs))[1]

    for name in ("parts_of", "tensordict_of"):
        monkeypatch.setattr(batch_conversion, name, counted(name))
    joined = groups[4].proto.options(**options)(TensorDict({"i": torch.arange(7)}, batch_size=7))
    weighed = 1 if "balance" in options else 0
    assert rows_of(joined) == list(range(7))
    assert count == {"parts_of": 5 + weighed, "tensordict_of": 5}


@pytest.mark.parametrize("bad", [[1, 2, 3, 4], {"i": torch.arange(4)}, torch.arange(4), "abcd", None, 3])
def test_what_is_no_batch_is_never_copied_to_all_silently(groups: dict[int, Any], bad: Any) -> None:
    with pytest.raises(TypeError, match=r"argument 0 .* cannot be split"):
        groups[2].proto(bad)
    with pytest.raises(TypeError, match=r"argument 'extra' .* cannot be split"):
        groups[2].proto(batch(4), extra=bad)
    assert rows_of(groups[2].proto(batch(4), Broadcast(bad))) == [0, 1, 2, 3]


def test_batches_of_one_call_may_differ_in_rows_when_each_divides(groups: dict[int, Any]) -> None:
    assert groups[2].pair(batch(4), batch(8)).tensor("rows").tolist() == [2, 4, 2, 4]
    with pytest.raises(UnevenRowsError, match=r"argument 1 \('other'\) .*: 5 rows"):
        groups[2].pair(batch(4), batch(5))


def test_rows_that_do_not_divide_are_an_error_with_the_ways_out(groups: dict[int, Any]) -> None:
    with pytest.raises(ValueError, match=r"10 rows .* 3 workers .* pad .* uneven"):
        groups[3].proto(batch(10))


def test_uneven_parts_on_request(groups: dict[int, Any]) -> None:
    method = groups[3].proto.options(uneven="balanced")
    assert [call.rows for call in method.plan(batch(10))] == [4, 3, 3]
    assert rows_of(method(batch(10))) == list(range(10))
    with pytest.raises(ValueError, match=r"2 rows .* 3 workers"):
        method(batch(2))
    with pytest.raises(RowCountError, match=r"argument 0 \('d'\) .*: 4 rows, argument 'other' .*: 5 rows"):
        groups[3].pair.options(uneven="balanced")(batch(4), other=batch(5))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 7, 8])
def test_padding_is_invisible_from_outside(groups: dict[int, Any], num_rows: int) -> None:
    group, data = groups[4], batch(num_rows, auto_padding=True)
    assert rows_of(group.proto(data)) == list(range(num_rows))
    assert [answer["rank"] for answer in group.metric(data)] == [0, 1, 2, 3]
    assert sum(answer["rows"] for answer in group.metric(data)) == -(-num_rows // 4) * 4
    assert len(data) == num_rows
    assert data.meta_info == {}


def test_the_same_batch_twice_is_padded_once(groups: dict[int, Any]) -> None:
    data = batch(5, auto_padding=True)
    assert groups[4].pair(data, data).tensor("rows").tolist() == [2] * 5


def test_one_batch_that_asks_pads_all_and_options_overrule(groups: dict[int, Any]) -> None:
    plain, asking = batch(5), batch(5, auto_padding=True)
    assert groups[4].pair(plain, asking).tensor("rows").tolist() == [2] * 5
    assert rows_of(groups[4].proto.options(auto_padding=True)(plain)) == list(range(5))
    with pytest.raises(UnevenRowsError):
        groups[4].proto.options(auto_padding=False)(asking)
    with pytest.raises(RowCountError):
        groups[4].pair(asking, batch(4))


def test_padding_for_all_batches_of_the_process(
    groups: dict[int, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_AUTO_PADDING", "1")
    tensordict = TensorDict({"i": torch.arange(5)}, batch_size=5)
    assert DataProtoConfig.auto_padding
    assert rows_of(groups[4].proto(tensordict)) == list(range(5))
    assert rows_of(groups[4].proto(batch(5))) == list(range(5))


def test_workers_can_tell_padding(groups: dict[int, Any]) -> None:
    def mask(rank: int, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"i": data.pad_mask})

    plan = groups[4].answer.plan(batch(5, auto_padding=True), Broadcast(mask))
    assert [call.args[0].pad_mask.tolist() for call in plan] == [
        [False] * 2,
        [False] * 2,
        [False, True],
        [True] * 2,
    ]


def test_a_method_without_arguments_is_called_on_every_rank(groups: dict[int, Any]) -> None:
    assert groups[3].no_arguments().tensor("rank").tolist() == [0, 1, 2]


def test_zero_rows_go_round_and_come_back(groups: dict[int, Any]) -> None:
    for data in (batch(0), batch(0, auto_padding=True)):
        joined = groups[3].proto(data)
        assert len(joined) == 0
        assert set(joined.non_tensor_batch) == {"s"}


def test_a_batch_of_meta_info_only_reaches_every_rank(groups: dict[int, Any]) -> None:
    joined = groups[3].proto(DataProto(meta_info={"temperature": 0.5, "metrics": {"loss": 2.0}}))
    assert joined.meta_info == {"temperature": 0.5, "metrics": {"loss": [2.0]}}


def test_meta_info_travels_with_rows_and_metrics_come_back_once(groups: dict[int, Any]) -> None:
    joined = groups[3].proto(batch(6, temperature=0.5, metrics={"loss": 1.0}))
    assert joined.meta_info == {"temperature": 0.5, "metrics": {"loss": [1.0]}}


# --- a function first -------------------------------------------------------------------------------------


def test_a_function_goes_to_every_worker_before_the_batches(groups: dict[int, Any]) -> None:
    def marked(rank: int, data: DataProto, bonus: int = 0) -> DataProto:
        return DataProto.from_dict(tensors={"i": data.tensor("i") + 100 * rank + bonus})

    assert rows_of(groups[2].with_function(marked, batch(4))) == [0, 1, 102, 103]
    assert rows_of(groups[2].with_function(marked, batch(4), bonus=Broadcast(5))) == [5, 6, 107, 108]
    assert rows_of(groups[2].with_function(marked, batch(3, auto_padding=True))) == [0, 1, 102]


def test_without_a_function_first_the_call_is_refused(groups: dict[int, Any]) -> None:
    with pytest.raises(TypeError, match=r"argument 0 \('function'\) .* expected a function"):
        groups[2].with_function(batch(4))


# --- rows of answers --------------------------------------------------------------------------------------


def repeated(times: int) -> Callable[[int, DataProto], DataProto]:
    return lambda rank, data: data.repeat(times)


def test_several_rows_for_each_row_stay_in_input_order(groups: dict[int, Any]) -> None:
    kind = Broadcast(repeated(3))
    expected = [row for row in range(5) for _ in range(3)]
    assert rows_of(groups[4].answer(batch(5, auto_padding=True), kind)) == expected
    weighted = batch(5).union(DataProto.from_dict(tensors={"w": torch.tensor([9, 1, 1, 1, 1])}))
    assert rows_of(groups[2].answer.options(balance="w")(weighted, kind)) == expected


def test_answers_without_rows_are_joined_as_they_are(groups: dict[int, Any]) -> None:
    def only_metrics(rank: int, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"rank": rank}})

    joined = groups[4].answer(batch(5, auto_padding=True), Broadcast(only_metrics))
    assert joined.meta_info == {"metrics": {"rank": [0, 1, 2, 3]}}
    assert len(joined) == 0


def test_other_row_counts_are_kept_when_nothing_was_padded_or_reordered(groups: dict[int, Any]) -> None:
    filtered = Broadcast(lambda rank, data: data[: 1 + rank])
    assert rows_of(groups[2].answer(batch(4), filtered)) == [0, 2, 3]
    summary = Broadcast(lambda rank, data: data[:1])
    assert rows_of(groups[2].answer(batch(8), summary)) == [0, 4]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda rank, data: data[:1], r"rank 0 was sent 2 rows and returned 1"),
        (lambda rank, data: data.repeat(1 + rank), r"rank 1 was sent 2 rows and returned 4: 2 for each row"),
        (lambda rank, data: data[:0], r"rank 0 was sent 2 rows and returned 0"),
    ],
)
def test_rows_that_cannot_be_matched_with_padded_rows_are_an_error(
    groups: dict[int, Any], answer: Any, problem: str
) -> None:
    with pytest.raises(AnswerError, match=problem):
        groups[4].answer(batch(7, auto_padding=True), Broadcast(answer))


@pytest.mark.parametrize("options", [{}, {"auto_padding": True}, {"uneven": "balanced"}])
@pytest.mark.parametrize("empty", [DataProto(), DataProto(meta_info={"metrics": {"loss": 1.0}})])
def test_a_rank_that_answers_no_rows_where_others_do_is_an_error(
    groups: dict[int, Any], options: dict[str, Any], empty: DataProto
) -> None:
    some = Broadcast(lambda rank, data: data if rank == 0 else empty)
    with pytest.raises(AnswerError, match="rank 1 was sent 2 rows and returned 0: other ranks returned rows"):
        groups[2].answer.options(**options)(batch(4), some)
    assert len(groups[2].answer.options(**options)(batch(4), Broadcast(lambda rank, data: empty))) == 0


def test_what_no_rows_were_sent_for_may_come_from_some_ranks(groups: dict[int, Any]) -> None:
    some = Broadcast(lambda rank, data: batch(3) if rank == 0 else DataProto())
    assert rows_of(groups[2].answer(Broadcast(None), some)) == [0, 1, 2]


def test_reordered_rows_need_an_answer_from_every_rank(groups: dict[int, Any]) -> None:
    weighted = batch(4).union(DataProto.from_dict(tensors={"w": torch.tensor([9, 1, 1, 1])}))
    balanced = groups[2].answer.options(balance="w")
    some = Broadcast(lambda rank, data: data if rank else DataProto(meta_info={"metrics": {"rank": rank}}))
    with pytest.raises(AnswerError, match="rank 0 was sent 1 row and returned 0: other ranks returned rows"):
        balanced(weighted, some)
    nobody = Broadcast(lambda rank, data: DataProto(meta_info={"metrics": {"rank": rank}}))
    assert balanced(weighted, nobody).meta_info == {"metrics": {"rank": [0, 1]}}


@pytest.mark.parametrize("answer", [3, None, {"loss": 1.0}, torch.ones(2), [batch(2)]])
def test_an_answer_that_is_no_batch_points_to_the_metric_mode(groups: dict[int, Any], answer: Any) -> None:
    with pytest.raises(AnswerError, match=r"'answer' on rank 0 answered .* DP_COMPUTE_METRIC"):
        groups[2].answer(batch(4), Broadcast(lambda rank, data: answer))


def test_answers_that_disagree_about_meta_info_are_an_error_showing_both(groups: dict[int, Any]) -> None:
    for make in (
        lambda rank, data: DataProto.from_dict({"i": data.tensor("i")}, meta_info={"version": rank}),
        lambda rank, data: DataProto.from_dict(
            {"i": data.tensor("i")}, meta_info={"version": rank}
        ).to_tensordict(),
    ):
        with pytest.raises(ValueError, match=r"version.*0.*1"):
            groups[2].answer(batch(4), Broadcast(make))


def test_row_options_are_refused_where_nothing_is_split(groups: dict[int, Any]) -> None:
    for method in (groups[2].one_to_all, groups[2].dp_compute, groups[2].first_only, groups[2].one_to_one):
        with pytest.raises(CallOptionError, match="splits no batches"):
            method.options(uneven="balanced")
