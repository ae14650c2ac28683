"""Columns that a method is declared to read and to write: what reaches it, and what is refused where."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl_dispatch import (
    Broadcast,
    Dispatch,
    LocalWorkerGroup,
    Worker,
    collect_dp_compute_data_proto,
    dispatch_dp_compute_data_proto,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_dispatch.errors import InvalidModeError, WorkerGroupError
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.errors import SchemaError

READ = ("i", "s")


def names(data: Any) -> list[str]:
    if not isinstance(data, DataProto):
        return sorted(map(str, data.keys()))
    tensors: Any = data.batch
    return sorted([*(tensors.keys() if tensors is not None else ()), *data.non_tensor_batch])


def named(group: Any, *args: Any, **kwargs: Any) -> Any:
    return dispatch_dp_compute_data_proto(group, *args, **kwargs)


class Reader(Worker):
    """Tells the columns that reached it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Any = None
        self._register_dispatch_collect_info("pairs", self.rank % 2, self.rank < 2)

    def _told(self, *data: Any) -> DataProto:
        first = data[0]
        self.seen = [names(each) for each in data]
        text = np.array(["; ".join(map(str, self.seen))] * len(first), dtype=object)
        return DataProto.from_dict({"n": torch.arange(len(first))}, {"seen": text})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get_seen(self) -> Any:
        return self.seen

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=READ)
    def rows(self, data: Any) -> DataProto:
        return self._told(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=READ)
    async def rows_async(self, data: Any) -> DataProto:
        return self._told(data)

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO,
        reads={"i": torch.int64, "x": (torch.float32, (2, None)), "s": (object, ()), "j": (None, (None,))},
    )
    def checked(self, data: DataProto) -> DataProto:
        return self._told(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads={"data": "i", "more": {"x": None}})
    def two(self, data: DataProto, more: DataProto, other: Any = None) -> DataProto:
        return self._told(data, more, *([] if other is None else [other]))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads={"i": torch.int64, "x?": torch.float32})
    def perhaps(self, data: DataProto) -> DataProto:
        return self._told(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=())
    def nothing(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"rows": len(data), "step": data.meta_info["step"]}})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads="i")
    def sums(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"i": data.tensor("i").clone(), "n": data.tensor("i") * 2})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, reads=READ)
    def metric(self, data: Any) -> Any:
        return names(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, reads=READ)
    def with_function(self, function: Any, data: Any) -> DataProto:
        return self._told(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, reads=READ)
    def one_to_all(self, x: Any = None, *more: Any, **named: Any) -> Any:
        return [names(each) for each in (x, *more, *named.values()) if each is not None]

    @register(dispatch_mode=Dispatch.RANK_ZERO, reads=READ)
    def rank_zero(self, x: Any) -> Any:
        return names(x)

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, reads=READ)
    def all_to_all(self, x: Any) -> Any:
        return names(x)

    @register(dispatch_mode=Dispatch.ONE_TO_ONE, reads=READ)
    def one_to_one(self, x: Any) -> Any:
        return names(x)

    @register(dispatch_mode=Dispatch.DP_COMPUTE, reads=READ)
    def dp_compute(self, x: Any) -> Any:
        return names(x)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("pairs"), reads=READ)
    def over_mesh(self, data: Any) -> DataProto:
        return self._told(data)

    @register(dispatch_mode={"dispatch_fn": named, "collect_fn": collect_dp_compute_data_proto}, reads=READ)
    def custom(self, data: Any) -> DataProto:
        return self._told(data)

    # what is written

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO, writes={"log_probs": (torch.float32, (4,)), "why": object}
    )
    def wrote(self, data: DataProto) -> Any:
        answer: Any = data.meta_info["answer"]
        return answer(self, data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, writes="i")
    def wrote_to_list(self, data: Any) -> Any:
        return data


@pytest.fixture(scope="module")
def group() -> Iterator[Any]:
    with LocalWorkerGroup(Reader, 4) as made:
        yield made


def batch(num_rows: int = 8, **options: Any) -> DataProto:
    rows = [torch.zeros(1 + row % 3) for row in range(num_rows)]
    jagged = torch.nested.nested_tensor(rows or [torch.zeros(1)], layout=torch.jagged)
    data = DataProto.from_dict(
        {"i": torch.arange(max(1, num_rows)), "x": torch.zeros(max(1, num_rows), 2, 3), "j": jagged},
        {"s": np.array([f"row {row}" for row in range(max(1, num_rows))], dtype=object)},
        **{"meta_info": {"step": 3}, **options},
    )
    return data[:num_rows]


def seen(data: DataProto) -> list[str]:
    return sorted(set(data.column("seen").tolist()))


# --- what a method gets -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows", "rows_async", "over_mesh", "custom"])
def test_only_the_columns_that_it_reads_reach_a_method(group: Any, name: str) -> None:
    data, method = batch(), getattr(group, name)
    assert seen(method(data)) == ["['i', 's']"]
    assert method.plan(data).nbytes() == method.plan(data.select(["i"])).nbytes()
    assert names(data) == ["i", "j", "s", "x"]


def test_in_modes_that_give_lists_too(group: Any) -> None:
    data = batch()
    for method in (group.metric, group.all_to_all):
        assert method(data) == [["i", "s"]] * 4
    assert group.one_to_all(data) == [[["i", "s"]]] * 4


def test_a_function_goes_along_with_the_batch(group: Any) -> None:
    assert seen(group.with_function(len, batch())) == ["['i', 's']"]


def test_entries_of_lists_and_dicts_are_batches_too(group: Any) -> None:
    data = batch()
    assert group.rank_zero(data) == ["i", "s"]
    assert group.one_to_one({2: data}) == {2: ["i", "s"]}
    assert group.dp_compute([data] * 4) == [["i", "s"]] * 4
    assert group.all_to_all([data] * 4) == [["i", "s"]] * 4
    assert group.all_to_all(Broadcast(data)) == [["i", "s"]] * 4


def test_what_is_no_batch_is_passed_on(group: Any) -> None:
    assert group.one_to_all() == [[]] * 4
    assert group.one_to_all({"a": 1}) == [[["a"]]] * 4


def test_meta_info_comes_along_without_any_column(group: Any) -> None:
    got = group.nothing(batch())
    assert got.meta_info["metrics"] == {"rows": [2] * 4, "step": [3] * 4}
    assert group.nothing.plan(batch()).nbytes() == (0,) * 4


def test_every_argument_that_is_a_batch_is_read_alike(group: Any) -> None:
    data = batch()
    assert group.one_to_all(data, data, other=data) == [[["i", "s"]] * 3] * 4
    with pytest.raises(SchemaError, match=r"argument 'other' of method 'one_to_all' has no column 's'"):
        group.one_to_all(data, other=data.select(["i"], []))


def test_columns_are_named_by_parameter_where_batches_differ(group: Any) -> None:
    data = batch()
    assert seen(group.two(data, data)) == ["['i']; ['x']"]
    assert seen(group.two(more=data, data=data, other=data)) == ["['i']; ['x']; ['i', 'j', 's', 'x']"]
    with pytest.raises(SchemaError, match=r"argument 1 \('more'\) of method 'two' has no column 'x'"):
        group.two(data, data.select(["i"]))


def test_a_column_that_may_be_missing_is_sent_and_checked_where_it_is_there(group: Any) -> None:
    data = batch()
    assert seen(group.perhaps(data)) == ["['i', 'x']"]
    assert seen(group.perhaps(data.select(["i", "j"]))) == ["['i']"]
    later = DataProtoFuture.concat([data.select(["i"])])
    assert seen(group.perhaps(later)) == ["['i']"]
    assert "reads i int64, x? float32" in str(group.perhaps.plan(data))
    with pytest.raises(SchemaError, match=r"column 'x' of .* is of dtype torch.int64, not torch.float32"):
        group.perhaps(DataProto.from_dict({"i": torch.arange(8), "x": torch.arange(8)}))
    with pytest.raises(SchemaError, match="has no column 'i'"):
        group.perhaps(data.select(["x"]))


def test_tensordicts_are_read_alike(group: Any) -> None:
    data = TensorDict({"i": torch.arange(4), "s": torch.zeros(4), "x": torch.zeros(4, 2)}, batch_size=[4])
    data.set_non_tensor("step", 3)
    assert group.metric(data) == [["i", "s", "step"]] * 4
    assert group.one_to_all(data) == [[["i", "s", "step"]]] * 4
    with pytest.raises(SchemaError, match=r"no column 's', which reads of @register names; there are \['i'"):
        group.metric(data.exclude("s"))


def test_rows_are_padded_and_balanced_by_columns_that_nobody_reads(group: Any) -> None:
    data = batch(7, auto_padding=True)
    assert group.sums(data).tensor("n").tolist() == [2 * row for row in range(7)]
    weighed = batch(8)
    weighed.union(DataProto.from_dict({"w": torch.arange(8)}))
    got = group.sums.options(balance="w")(weighed)
    assert got.tensor("i").tolist() == list(range(8))


def test_batches_without_rows_have_columns_all_the_same(group: Any) -> None:
    assert len(group.rows(batch(0))) == 0
    with pytest.raises(SchemaError, match="no column 's'"):
        group.rows(batch(0).select(["i"], []))


def test_a_batch_for_all_stays_one_object(group: Any) -> None:
    plan = group.one_to_all.plan(batch())
    assert len({id(call.args[0]) for call in plan.calls}) == 1
    assert len(plan.shared) == 1


# --- futures: the worker chooses --------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [8, 5])
def test_of_a_future_the_worker_chooses_the_columns(group: Any, rows: int) -> None:
    later = DataProtoFuture.concat([batch(rows)])
    got = group.rows.options(auto_padding=True)(later)
    assert seen(got) == ["['i', 's']"]
    assert len(got) == rows
    assert seen(group.rows_async.options(auto_padding=True)(later)) == ["['i', 's']"]


def test_what_a_future_lacks_is_said_by_the_worker(group: Any) -> None:
    later = DataProtoFuture.concat([batch().select(["i"], [])])
    with pytest.raises(WorkerGroupError, match=r"argument 0 \('data'\) of method 'rows' has no column 's'"):
        group.rows(later)


# --- what is refused before anything is sent --------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"i": torch.zeros(8)}, "column 'i' of argument 0 .* is of dtype torch.float32, not torch.int64"),
        ({"x": torch.zeros(8, 2)}, r"column 'x' of .* has rows of shape \[2\], not \[2, \*\]"),
        ({"x": torch.zeros(8, 3, 3)}, r"has rows of shape \[3, 3\], not \[2, \*\] as reads of @register"),
        ({"i": np.zeros(8, dtype=object)}, "is of dtype object, not torch.int64"),
        ({"s": np.zeros((8, 2), dtype=object)}, r"column 's' of .* has rows of shape \[2\], not \[\]"),
    ],
)
def test_a_wrong_column_is_refused_before_anything_is_sent(
    group: Any, columns: dict[str, Any], problem: str
) -> None:
    data, kept = batch(), group.get_seen()
    rest = data.select(
        [key for key in ("i", "x", "j") if key not in columns], [] if "s" in columns else ["s"]
    )
    with pytest.raises(SchemaError, match=problem):
        group.checked(DataProto.from_single_dict(columns).union(rest))
    assert group.get_seen() == kept


def test_columns_as_declared_are_taken(group: Any) -> None:
    assert seen(group.checked(batch())) == ["['i', 'j', 's', 'x']"]


def test_several_missing_columns_are_named_at_once(group: Any) -> None:
    with pytest.raises(SchemaError, match=r"argument 0 \('data'\) of method 'rows' has no column 'i', 's'"):
        group.rows(batch().select(["x"], []))


def test_a_plan_is_refused_as_the_call_is(group: Any) -> None:
    with pytest.raises(SchemaError, match="no column"):
        group.rows.plan(batch().select(["x"], []))


# --- what a method answers --------------------------------------------------------------------------------


def good(num_rows: int) -> dict[str, Any]:
    why = np.array(["so"] * num_rows, dtype=object)
    return {"log_probs": torch.zeros(num_rows, 4), "why": why}


def answering(change: Mapping[str, Any], on_rank: int = 2) -> DataProto:
    """A batch that says what is answered: `good`, on one rank with changed columns, None for none."""

    def answer(worker: Worker, data: DataProto) -> Any:
        columns = good(len(data)) | (dict(change) if worker.rank == on_rank else {})
        return DataProto.from_single_dict({k: v for k, v in columns.items() if v is not None})

    return batch(8, meta_info={"answer": answer})


def test_an_answer_as_declared_is_taken(group: Any) -> None:
    assert names(group.wrote(answering({}))) == ["log_probs", "why"]
    nobody = batch(8, meta_info={"answer": lambda worker, data: DataProto.from_single_dict(good(0))})
    assert len(group.wrote(nobody)) == 0


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"log_probs": None},
            r"the answer of method 'wrote' has no column 'log_probs', .* there are \['why'\]",
        ),
        ({"log_probs": torch.zeros(2, 4).double()}, "is of dtype torch.float64, not torch.float32 as writes"),
        ({"log_probs": torch.zeros(2, 5)}, r"has rows of shape \[5\], not \[4\] as writes of @register"),
        (
            {"x": torch.zeros(2, 5)},
            r"columns that writes of @register does not name: \['x'\]; leave them out",
        ),
    ],
)
def test_a_wrong_answer_is_refused_by_its_worker(group: Any, change: dict[str, Any], problem: str) -> None:
    with pytest.raises(WorkerGroupError, match=problem) as caught:
        group.wrote(answering(change))
    assert caught.value.failed_ranks == [2]
    assert caught.value.method == "wrote"


def test_an_answer_that_is_no_batch_is_refused(group: Any) -> None:
    with pytest.raises(
        WorkerGroupError, match=r"answer of method 'wrote_to_list' is of type int, but writes"
    ):
        group.wrote_to_list(3)
    assert len(group.wrote_to_list(batch().select(["i"], []))) == 4


# --- what a plan says, and what cannot be declared --------------------------------------------------------


def test_a_plan_says_what_is_read_and_written(group: Any) -> None:
    data = batch()
    assert "reads i int64, x float32[2, *], s object[], j [*]" in str(group.checked.plan(data)).splitlines()
    assert "reads data: i; more: x" in str(group.two.plan(data, data))
    assert "writes log_probs float32[4], why object" in str(group.wrote.plan(data))
    assert "reads no columns" in str(group.nothing.plan(data))
    assert "reads" not in str(group.wrote.plan(data))
    assert group.rows.plan(data) == group.rows.plan(data)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"reads": 3}, "reads of register is 3, expected names of columns, or a dict"),
        ({"reads": ("a", 3)}, "expected names of columns"),
        ({"reads": ("a", "a?")}, "expected names of columns"),
        ({"writes": "?"}, "expected names of columns"),
        ({"writes": {"a": "int64"}}, r"writes of register is \{'a': 'int64'\}, expected names"),
        ({"writes": {"a": (torch.int64, "wide")}}, "expected names"),
        ({"reads": {"a": torch.int64, "data": ("b",)}}, "expected names"),
        ({"reads": {"date": ("b",)}}, r"names parameters \['date'\], but method 'method' takes \['data'\]"),
        ({"reads": {"a": "int64"}}, r"a column is given a dtype of torch or numpy, \(dtype, row shape\)"),
        (
            {"reads": "a", "materialize_futures": False},
            "with materialize_futures=False the method gets futures",
        ),
        (
            {"reads": "a", "dispatch_mode": Dispatch.DIRECT_ROLLOUT_METHOD},
            "DIRECT_ROLLOUT_METHOD is never called on a group",
        ),
        (
            {"writes": "a", "dispatch_mode": Dispatch.DIRECT_ROLLOUT_METHOD},
            "DIRECT_ROLLOUT_METHOD is never called on a group",
        ),
    ],
)
def test_what_names_no_columns_is_refused_at_once(options: dict[str, Any], problem: str) -> None:
    def method(self: Any, data: Any) -> Any:
        return data

    with pytest.raises((InvalidModeError, TypeError), match=problem):
        register(**{"dispatch_mode": Dispatch.DP_COMPUTE_PROTO, **options})(method)


def test_a_method_that_never_answers_a_batch_writes_no_columns() -> None:
    with pytest.raises(InvalidModeError, match="annotated to answer float, but writes of register names"):

        @register(dispatch_mode=Dispatch.ONE_TO_ALL, writes="a")
        def method(self: Any, data: Any) -> float:
            return 0.0


def test_a_call_within_the_worker_reads_alike(group: Any) -> None:
    worker = group.workers[0]
    worker.rows(batch())
    assert worker.seen == [["i", "s"]]


def test_a_column_that_stays_elsewhere_is_checked_and_sent_unread() -> None:
    class Maker(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True)
        def make(self, data: DataProto) -> DataProto:
            wide = torch.zeros(len(data), 50_000)
            return DataProto.from_dict({"wide": wide, "also": wide.clone()})

        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads={"wide": (torch.float32, (None,))})
        def use(self, data: DataProto) -> DataProto:
            return DataProto.from_dict({"n": data.tensor("wide").sum(1)})

        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads={"wide": torch.int64})
        def use_wrong(self, data: DataProto) -> DataProto:
            return data

    with LocalWorkerGroup(Maker, 2) as made:
        data = made.make(batch().select(["i"], []))
        assert made.use(data).tensor("n").tolist() == [0.0] * 8
        with pytest.raises(SchemaError, match=r"column 'wide' of .* is of dtype torch.float32"):
            made.use_wrong(data)
        assert data.remote_keys == ["wide", "also"]
