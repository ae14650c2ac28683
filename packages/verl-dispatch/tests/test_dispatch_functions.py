"""The public dispatch and collect functions, called as custom modes call them."""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl_dispatch import (
    Broadcast,
    _concat_data_proto_or_future,
    _split_args_kwargs_data_proto,
    _split_args_kwargs_data_proto_with_auto_padding,
    collect_all_to_all,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    collect_nd_compute,
    collect_nd_compute_dataproto,
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_nd_compute,
    dispatch_nd_compute_dataproto,
    dispatch_one_to_all,
    make_nd_compute_dataproto_dispatch_fn,
)
from verl_dispatch.errors import AnswerError, EntryCountError, MeshError, UnevenRowsError
from verl_protocol import DataProto, DataProtoFuture


def group_of(world_size: int, **attributes: Any) -> Any:
    return SimpleNamespace(world_size=world_size, **attributes)


def batch(num_rows: int, **options: Any) -> DataProto:
    return DataProto.from_dict(tensors={"i": torch.arange(num_rows)}, **options)


def rows_of(data: Any) -> list[int]:
    return [int(row) for row in data.tensor("i")]


def test_one_to_all_repeats_the_very_object() -> None:
    big = object()
    args, kwargs = dispatch_one_to_all(group_of(3), big, k=big)
    assert args == ([big] * 3,)
    assert kwargs == {"k": [big] * 3}


def test_lists_pass_through_when_they_have_an_entry_per_worker() -> None:
    for function in (dispatch_all_to_all, dispatch_dp_compute):
        args, kwargs = function(group_of(2), [1, 2], (3, 4), k=[5, 6], every=Broadcast(7))
        assert [list(entries) for entries in args] == [[1, 2], [3, 4]]
        assert kwargs == {"k": [5, 6], "every": [7, 7]}
        with pytest.raises(EntryCountError, match=r"argument 'k': 2 workers .* got 3"):
            function(group_of(2), k=[1, 2, 3])


def test_batches_are_split_by_position_and_by_name() -> None:
    args, kwargs = dispatch_dp_compute_data_proto(group_of(2), batch(4), other=batch(2), same=Broadcast(1))
    assert [rows_of(part) for part in args[0]] == [[0, 1], [2, 3]]
    assert [rows_of(part) for part in kwargs["other"]] == [[0], [1]]
    assert kwargs["same"] == [1, 1]
    with pytest.raises(TypeError, match=r"argument 0, of type list, cannot be split over 2 workers"):
        dispatch_dp_compute_data_proto(group_of(2), [1, 2])


def test_padded_parts_leave_the_batch_alone() -> None:
    data = batch(5, auto_padding=True)
    args, kwargs = _split_args_kwargs_data_proto_with_auto_padding(4, data, again=data)
    assert [rows_of(part) for part in args[0]] == [[0, 1], [2, 3], [4, 4], [4, 4]]
    assert [rows_of(part) for part in kwargs["again"]] == [[0, 1], [2, 3], [4, 4], [4, 4]]
    assert len(data) == 5
    with pytest.raises(UnevenRowsError):
        _split_args_kwargs_data_proto(4, data)
    assert [len(part) for part in _split_args_kwargs_data_proto(5, data)[0][0]] == [1] * 5


def test_futures_are_split_without_being_waited_for() -> None:
    never: Future[DataProto] = Future()
    future = DataProtoFuture.concat([never])
    args, _ = dispatch_dp_compute_data_proto(group_of(2), future)
    never.set_result(batch(4))
    assert [rows_of(part.get()) for part in args[0]] == [[0, 1], [2, 3]]


def test_a_function_comes_first() -> None:
    args, kwargs = dispatch_dp_compute_data_proto_with_func(group_of(2), len, batch(4), k=batch(2))
    assert args[0] == [len, len]
    assert [rows_of(part) for part in args[1]] == [[0, 1], [2, 3]]
    assert [rows_of(part) for part in kwargs["k"]] == [[0], [1]]


def test_mesh_functions_spread_parts_over_ranks() -> None:
    parts = ["a", "b"]
    args, kwargs = dispatch_nd_compute([1, 0, 1], 2, group_of(3), parts, k=tuple(parts))
    assert list(args[0]) == ["b", "a", "b"]
    assert list(kwargs["k"]) == ["b", "a", "b"]
    args, _ = dispatch_nd_compute_dataproto([0, 0, 1, 1], 2, group_of(4), batch(4))
    assert args[0][0] is args[0][1]
    assert [rows_of(part) for part in args[0]] == [[0, 1], [0, 1], [2, 3], [2, 3]]


@pytest.mark.parametrize(
    ("mapping", "parts", "error"),
    [
        ([0, 1], ["a", "b"], EntryCountError),
        ([0, 1, 2], ["a", "b"], MeshError),
        ([0, 1, 1], ["a"], EntryCountError),
    ],
)
def test_mesh_functions_check_mapping_and_parts(
    mapping: list[int], parts: list[str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        dispatch_nd_compute(mapping, 2, group_of(3), parts)


def test_a_mesh_mode_asks_a_group_for_its_tables() -> None:
    asked: list[str] = []

    def ask(mesh_name: str) -> list[Any]:
        asked.append(mesh_name)
        return [0, 0, 1, 1] if len(asked) == 1 else [True, False, False, True]

    group = group_of(
        4, _dispatch_info={}, _collect_info={}, _query_dispatch_info=ask, _query_collect_info=ask
    )
    pair: Any = make_nd_compute_dataproto_dispatch_fn("actor")
    assert set(pair) == {"dispatch_fn", "collect_fn"}
    args, _ = pair["dispatch_fn"](group, batch(4))
    assert [rows_of(part) for part in args[0]] == [[0, 1], [0, 1], [2, 3], [2, 3]]
    assert rows_of(pair["collect_fn"](group, list(args[0]))) == [0, 1, 2, 3]
    assert asked == ["actor", "actor"]


def test_collect_functions_join_or_pass_through() -> None:
    assert collect_all_to_all(group_of(2), [1, 2]) == [1, 2]
    assert collect_dp_compute(group_of(2), [1, 2]) == [1, 2]
    with pytest.raises(EntryCountError, match=r"the output: 3 workers .* got 2"):
        collect_dp_compute(group_of(3), [1, 2])
    assert rows_of(collect_dp_compute_data_proto(group_of(2), batch(4).chunk(2))) == [0, 1, 2, 3]
    mask = [True, False, True]
    assert collect_nd_compute(mask, group_of(3), ["a", "b", "c"]) == ["a", "c"]
    assert rows_of(collect_nd_compute_dataproto(mask, group_of(3), batch(3).chunk(3))) == [0, 2]
    with pytest.raises(EntryCountError, match="the collect mask"):
        collect_nd_compute([True], group_of(3), ["a", "b", "c"])


def test_futures_are_joined_to_a_future() -> None:
    parts: list[Future[DataProto]] = [Future(), Future()]
    joined = collect_dp_compute_data_proto(group_of(2), parts)
    assert isinstance(joined, DataProtoFuture)
    for part, value in zip(parts, batch(4).chunk(2), strict=True):
        part.set_result(value)
    assert rows_of(joined.get()) == [0, 1, 2, 3]
    assert rows_of(_concat_data_proto_or_future([joined, joined]).get()) == [0, 1, 2, 3] * 2


def test_tensordicts_join_their_metrics_and_must_agree_otherwise() -> None:
    parts = [
        batch(1, meta_info={"metrics": {"loss": loss}, "step": 1}).to_tensordict() for loss in (1.0, 2.0)
    ]
    joined = _concat_data_proto_or_future(parts)
    assert isinstance(joined, TensorDict)
    assert DataProto.from_tensordict(joined).meta_info == {"metrics": {"loss": [1.0, 2.0]}, "step": 1}


def test_what_cannot_be_joined_is_an_error() -> None:
    with pytest.raises(AnswerError, match=r"rank 1 answered of type int"):
        _concat_data_proto_or_future([batch(2), 3])
    with pytest.raises((TypeError, ValueError), match="TensorDict"):
        _concat_data_proto_or_future([batch(2), batch(2).to_tensordict()])
