"""Plans are values: they can be read, compared, printed and asserted on, and nothing is sent."""

from typing import Any

import pytest
import torch
from verl_dispatch import Broadcast, CallPlan, Dispatch, LocalWorkerGroup, RankCall, Worker, register
from verl_protocol import DataProto, DataProtoFuture


class Counting(Worker):
    calls = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def all(self, x: Any, y: Any = None) -> None:
        Counting.calls += 1

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def batch(self, d: Any, config: Any = None) -> Any:
        Counting.calls += 1
        return d

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    def read(self, x: Any) -> None:
        Counting.calls += 1


@pytest.fixture(scope="module")
def group() -> Any:
    return LocalWorkerGroup(Counting, 4)


def batch(num_rows: int, **options: Any) -> DataProto:
    return DataProto.from_dict(tensors={"i": torch.arange(num_rows)}, **options)


def test_a_plan_sends_nothing(group: Any) -> None:
    plan = group.batch.plan(batch(8))
    assert isinstance(plan, CallPlan)
    assert Counting.calls == 0


def test_a_plan_spells_out_every_call(group: Any) -> None:
    plan = group.batch.plan(batch(5, auto_padding=True), config=Broadcast("c"))
    assert (plan.method, plan.mode, plan.world_size) == ("batch", "DP_COMPUTE_PROTO", 4)
    assert [(call.rank, call.rows, call.pad) for call in plan.calls] == [
        (0, 2, 0),
        (1, 2, 0),
        (2, 2, 1),
        (3, 2, 2),
    ]
    assert [call.kwargs for call in plan] == [{"config": "c"}] * 4
    assert plan.pad == 3
    assert plan.nbytes() == (16,) * 4
    assert plan.fetches_all
    assert plan.order is None


def test_plans_are_compared_by_value(group: Any) -> None:
    data = DataProto.from_dict(tensors={"x": torch.tensor([float("nan"), 1.0, 2.0, 3.0])})
    again = DataProto.from_dict(tensors={"x": torch.tensor([float("nan"), 1.0, 2.0, 3.0])})
    assert group.batch.plan(data) == group.batch.plan(again)
    assert group.batch.plan(data) != group.batch.plan(again[[1, 0, 2, 3]])
    assert group.all.plan(torch.ones(2)) == group.all.plan(torch.ones(2))
    assert group.all.plan(torch.ones(2)) != group.all.plan(torch.ones(3))
    assert RankCall(0, (torch.ones(2),)) != RankCall(1, (torch.ones(2),))
    assert RankCall(0, (1,)) == RankCall(0, (1,), {})
    assert (RankCall(0) == (0, (), {}, None, 0)) is False


def test_a_plan_prints_as_a_small_table(group: Any) -> None:
    text = str(group.batch.plan(batch(3, auto_padding=True), Broadcast([1])))
    assert text.splitlines() == [
        "batch: DP_COMPUTE_PROTO over 4 workers",
        "  rank  rows  pad  bytes  answers  arguments",
        "     0     1    0      8      yes  DataProto, list",
        "     1     1    0      8      yes  DataProto, list",
        "     2     1    0      8      yes  DataProto, list",
        "     3     1    1      8      yes  DataProto, list",
        "shared by several ranks: 1 (list)",
    ]
    assert "reordered to balance" in str(group.batch.options(balance="i").plan(batch(4)))
    assert (
        str(group.all.plan("a long text that is cut somewhere", y=3))
        .splitlines()[2]
        .endswith("'a long text that ...', y=3")
    )
    assert str(group.all.plan(DataProtoFuture(list, []))).count("DataProtoFuture") == 5


def test_a_plan_names_what_several_ranks_share_once(group: Any) -> None:
    big = torch.zeros(1000)
    shared = group.all.plan(big, y=big).shared
    assert [(entry.value is big, entry.ranks) for entry in shared.values()] == [(True, (0, 1, 2, 3))]
    weights, text = torch.zeros(10), "x" * 2000
    meta = {"table": {"weights": weights, "step": 3}, "texts": [text, "short"]}
    data = DataProto.from_dict(tensors={"i": torch.arange(4)}, meta_info=meta)
    shared = group.batch.plan(data).shared
    assert [entry.value is value for entry, value in zip(shared.values(), (weights, text), strict=True)] == [
        True
    ] * 2
    assert group.batch.plan(batch(4)).shared == {}


def test_read_only_is_said_at_registration_or_at_the_call(group: Any) -> None:
    assert group.read.plan(1).read_only
    assert not group.all.plan(1).read_only
    assert group.all.options(read_only=True).plan(1).read_only
    assert not group.read.options(read_only=False).plan(1).read_only
    assert group.batch.options(read_only=True).plan(batch(4)).read_only


def test_a_plan_of_given_calls_is_in_rank_order() -> None:
    plan = CallPlan.of({2: (("c",), {}), 0: (("a",), {"k": 1})})
    assert plan.calls == (RankCall(0, ("a",), {"k": 1}), RankCall(2, ("c",)))
    assert plan.fetched_ranks == plan.called_ranks == (0, 2)


def test_what_a_group_keeps_in_its_store_are_batches_which_a_method_may_be_annotated_never_to_answer() -> (
    None
):
    class Maker(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE)
        def anything(self, xs: Any) -> Any:
            return xs

        @register(dispatch_mode=Dispatch.DP_COMPUTE)
        def count(self, xs: Any) -> int:
            return 1

        @register(dispatch_mode=Dispatch.DP_COMPUTE, remote=True)
        def asked(self, xs: Any) -> int:
            return 1

    with LocalWorkerGroup(Maker, 2, remote=True) as group:
        xs = [1, 2]
        assert group.anything.plan(xs).remote
        assert not group.count.plan(xs).remote
        assert group.asked.plan(xs).remote
        assert group.count.options(remote=True).plan(xs).remote
