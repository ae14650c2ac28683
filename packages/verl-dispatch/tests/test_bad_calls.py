"""Calls that cannot be carried out: each error names the method, the argument and the way out."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from verl_dispatch import (
    Dispatch,
    Execute,
    LocalWorkerGroup,
    Mesh,
    Worker,
    WorkerGroupError,
    create_colocated_worker_raw_cls,
    dispatch_dp_compute_data_proto,
    make_nd_compute_dataproto_dispatch_fn,
    register,
    register_execute_mode,
)
from verl_dispatch.errors import (
    AnswerError,
    CallOptionError,
    InvalidModeError,
    MeshError,
    MixedOrderWarning,
    UnevenRowsError,
    UnknownMemberError,
    UnknownMeshError,
    UnsplittableArgumentError,
    WorkerClassError,
)
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.errors import InvalidValueError


class Echo(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def rows(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def rows_async(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def count(self, data: DataProto) -> int:
        return len(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("m"))
    def over_mesh(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def apply(self, function: Any, data: DataProto) -> DataProto:
        result: DataProto = function(data)
        return result

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def value(self, value: Any) -> Any:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ONE)
    def each(self, value: Any) -> Any:
        return value


class Ready:
    def __init__(self, value: DataProto) -> None:
        self.value = value

    def result(self, timeout: float | None = None) -> DataProto:
        return self.value


def batch(num_rows: int) -> DataProto:
    return DataProto.from_dict(tensors={"i": torch.arange(num_rows)})


def future(num_rows: int, *, tells_rows: bool) -> DataProtoFuture[DataProto]:
    counts = [num_rows] if tells_rows else None
    return DataProtoFuture(DataProto.concat, [Ready(batch(num_rows))], row_counts=counts)


def ready(answer: Any) -> Any:
    return answer.get() if isinstance(answer, DataProtoFuture) else answer


@pytest.fixture(scope="module")
def group() -> Any:
    group = LocalWorkerGroup(Echo, 4)
    group.add_mesh(Mesh.from_sizes("m", {"dp": 4}))
    return group


# --- rows that only the workers learn ---------------------------------------------------------------------


@pytest.mark.parametrize("tells_rows", [True, False])
@pytest.mark.parametrize("name", ["rows", "rows_async", "count", "over_mesh"])
def test_uneven_parts_of_a_future_leave_no_worker_without_rows(
    group: Any, name: str, tells_rows: bool
) -> None:
    method = group.bind(name).options(uneven="balanced")
    with pytest.raises(WorkerGroupError, match="3 rows are fewer than one for each of 4 workers") as caught:
        method(future(3, tells_rows=tells_rows))
    cause = caught.value.errors[0].cause
    assert isinstance(cause, UnevenRowsError)
    assert f"argument 0 ('data') of method '{name}'" in str(cause)
    assert caught.value.failed_ranks == [0, 1, 2, 3]


@pytest.mark.parametrize("tells_rows", [True, False])
@pytest.mark.parametrize("name", ["rows", "rows_async", "over_mesh"])
@pytest.mark.parametrize("num_rows", [0, 4, 5, 7])
def test_uneven_parts_of_a_future(group: Any, name: str, tells_rows: bool, num_rows: int) -> None:
    got = group.bind(name).options(uneven="balanced")(future(num_rows, tells_rows=tells_rows))
    assert got.tensor("i").tolist() == list(range(num_rows))


@pytest.mark.parametrize("tells_rows", [True, False])
@pytest.mark.parametrize("name", ["rows", "rows_async"])
def test_a_future_that_does_not_divide_is_told_as_a_batch_is(group: Any, name: str, tells_rows: bool) -> None:
    with pytest.raises(UnevenRowsError) as at_the_driver:
        group.bind(name)(batch(5))
    with pytest.raises(WorkerGroupError) as at_the_worker:
        group.bind(name)(future(5, tells_rows=tells_rows))
    assert str(at_the_worker.value.errors[0].cause) == str(at_the_driver.value)


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("timeout_s", "5"),
        ("timeout_s", 0),
        ("timeout_s", float("nan")),
        ("timeout_s", True),
        ("uneven", True),
        ("uneven", "Balanced"),
        ("balance", 3),
        ("equal_size", "yes"),
        ("auto_padding", "yes"),
        ("blocking", 0),
        ("execute_mode", "RANK_ZERO"),
        ("read_only", 1),
    ],
)
def test_an_option_of_a_wrong_kind_is_named_with_what_is_expected(
    group: Any, option: str, value: object
) -> None:
    with pytest.raises(CallOptionError, match=f"option {option}=.*expected"):
        group.rows.options(**{option: value})


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (["1", "2", "3", "4"], "holds no numbers"),
        ([None] * 4, "holds no numbers"),
        (torch.tensor([1.0, float("nan"), 1.0, 1.0]), "not all of them are finite"),
        (torch.tensor([1, -1, 1, 1]), "at least 0"),
    ],
)
def test_a_column_that_holds_no_weights_is_named(group: Any, column: Any, problem: str) -> None:
    kind = "tensors" if isinstance(column, torch.Tensor) else "non_tensors"
    columns: dict[str, Any] = {kind: {"w": column}}
    data = batch(4).union(DataProto.from_dict(**columns))
    with pytest.raises(CallOptionError, match=f"option balance='w' .*{problem}"):
        group.rows.options(balance="w")(data)


@pytest.mark.parametrize("timeout_s", [float("inf"), 1e12])
def test_a_call_may_be_given_all_the_time_there_is(timeout_s: float) -> None:
    group: Any = LocalWorkerGroup(Echo, 2, concurrent=True)
    with group:
        assert group.value.options(timeout_s=timeout_s)(1) == [1, 1]
        assert group.value.submit(1).result(timeout_s) == [1, 1]
        assert sorted(group.value.options(timeout_s=timeout_s).stream(1)) == [(0, 1), (1, 1)]


def test_a_custom_mode_that_never_looks_at_an_option_says_so() -> None:
    def to_all(group: Any, value: Any) -> Any:
        return ([value] * group.world_size,), {}

    class Custom(Worker):
        @register(dispatch_mode={"dispatch_fn": to_all, "collect_fn": lambda group, output: output})
        def whole(self, value: Any) -> Any:
            return value

        @register(
            dispatch_mode={
                "dispatch_fn": dispatch_dp_compute_data_proto,
                "collect_fn": lambda group, output: sum(map(len, output)),
            }
        )
        def split(self, value: Any) -> Any:
            return value

    group: Any = LocalWorkerGroup(Custom, 2)
    assert group.whole(7) == [7, 7]
    assert group.split.options(uneven="balanced")(batch(5)) == 5
    for options in ({"balance": "i"}, {"uneven": "balanced"}, {"auto_padding": True}):
        with pytest.raises(CallOptionError, match=f"option {next(iter(options))}.*'whole'"):
            group.whole.options(**options)(batch(5))


def test_an_option_with_a_typo_is_told_the_nearest(group: Any) -> None:
    with pytest.raises(CallOptionError, match=r"option auto_pading .* did you mean 'auto_padding'"):
        group.rows.options(auto_pading=True)


def test_an_option_among_the_arguments_is_told_where_it_goes(group: Any) -> None:
    way = r"; to set an option of the call: group\.rows\.options\(auto_padding=True\)\(\.\.\.\)"
    with pytest.raises(TypeError, match=f"unexpected keyword argument 'auto_padding'{way}"):
        group.rows(batch(4), auto_padding=True)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'other'$"):
        group.rows(batch(4), other=True)


@pytest.mark.parametrize("value", [{"i": [1]}, torch.arange(4), np.arange(4)], ids=lambda value: type(value))
def test_rows_that_are_no_batch_are_told_how_to_become_one(group: Any, value: Any) -> None:
    with pytest.raises(UnsplittableArgumentError, match=r"make it a batch with DataProto\.from_dict"):
        group.rows(value)


def test_a_row_is_told_how_to_be_a_batch_of_one(group: Any) -> None:
    with pytest.raises(UnsplittableArgumentError, match=r"take it as batch\[i : i \+ 1\]"):
        group.rows(batch(4)[0])


@pytest.mark.parametrize(("value", "way"), [(None, "give Broadcast.None. where None is"), (3, "wrap it in")])
def test_what_holds_no_rows_is_told_of_broadcast_alone(group: Any, value: Any, way: str) -> None:
    with pytest.raises(UnsplittableArgumentError, match=f"expected .*; {way}") as caught:
        group.rows(value)
    assert "from_dict" not in str(caught.value)


def test_too_few_rows_are_not_told_to_be_uneven(group: Any) -> None:
    with pytest.raises(UnevenRowsError, match="3 rows are fewer than one for each of 4 workers") as caught:
        group.rows(batch(3))
    assert "uneven" not in str(caught.value)
    with pytest.raises(UnevenRowsError, match='uneven="balanced"'):
        group.rows(batch(5))


# --- ranks ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, 3, ["a"], [], "0", [True], [1.0], [4], [0, 0], np.arange(0)])
def test_an_execute_mode_that_selects_no_valid_ranks(group: Any, given: Any) -> None:
    mode = register_execute_mode("ODD_ONES", lambda world_size: given)
    try:
        with pytest.raises(InvalidModeError, match=r"ODD_ONES of 'value': select_ranks\(4\) gave .*0\.\.3"):
            group.value.options(execute_mode=mode)(1)
    finally:
        Execute.remove("ODD_ONES")


def test_numbers_of_numpy_are_ranks_and_sizes(group: Any) -> None:
    assert group.each({np.int64(1): "b", np.int32(3): "d"}) == {1: "b", 3: "d"}
    two: Any = np.int64(2)
    assert LocalWorkerGroup(Echo, two).world_size == 2
    mode = register_execute_mode("OF_NUMPY", lambda world_size: np.arange(0, world_size, 2))
    try:
        assert group.value.options(execute_mode=mode)(1) == {0: 1, 2: 1}
    finally:
        Execute.remove("OF_NUMPY")
    assert Mesh.from_sizes("m", {"dp": two}) == Mesh.from_sizes("m", {"dp": 2})
    with pytest.raises(
        InvalidValueError, match=r"arguments of 'each' .*argument 0 \('value'\).*ranks \[True\]"
    ):
        group.each({True: "b"})


def test_a_function_may_be_passed_by_name(group: Any) -> None:
    assert len(group.apply(function=lambda data: data, data=batch(4))) == 4
    with pytest.raises(UnsplittableArgumentError, match=r"argument 0 \('function'\) of method 'apply'"):
        group.apply(function=3, data=batch(4))
    with pytest.raises(TypeError, match=r"apply\(.*missing a required argument: 'function'"):
        group.apply(data=batch(4))


def test_a_name_that_is_no_string_is_no_member() -> None:
    with pytest.raises(UnknownMemberError, match="no member 3"):
        Dispatch[3]  # type: ignore[index]


# --- answers ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("what", "problem"), [("meta", "meta_info.*x"), ("columns", "part 1 has.*j"), ("kind", "TensorDict")]
)
def test_answers_that_do_not_fit_together_name_method_and_ranks(
    what: str, problem: str, later: bool, padded: bool
) -> None:
    class Odd(Worker):
        @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("m"))
        def answer(self, data: DataProto) -> Any:
            if what == "meta":
                data.meta_info["x"] = self.rank
            if self.rank == 3 and what == "columns":
                data.batch["j"] = data.batch["i"]
            return data.to_tensordict() if self.rank == 3 and what == "kind" else data

    group: Any = LocalWorkerGroup(Odd, 4)
    group.add_mesh(Mesh.from_sizes("m", {"dp": 2, "tp": 2}, answering={"tp": -1}))
    method = group.answer.options(auto_padding=padded or None, blocking=not later)
    with pytest.raises(AnswerError, match=f"of 'answer' cannot be joined.*{problem}") as caught:
        ready(method(batch(3 if padded else 4)))
    assert "part 1 is the answer of rank 3" in str(caught.value)
    assert ("belongs in meta_info['metrics']" in str(caught.value)) == (what == "meta")
    assert caught.value.__cause__ is not None


# --- meshes and roles -------------------------------------------------------------------------------------


def test_a_mesh_of_another_size_is_refused_where_it_is_added(group: Any) -> None:
    with pytest.raises(MeshError, match=r"mesh 'small': it is of 2 ranks .* 4 workers.*multiply to 4"):
        group.add_mesh(Mesh.from_sizes("small", {"dp": 2}))
    with pytest.raises(UnknownMeshError):
        group.mesh("small")


def test_a_mesh_with_a_typo_is_told_the_nearest_and_how_to_add_one(group: Any) -> None:
    group.add_mesh(Mesh.from_sizes("actor", {"dp": 4}))
    with pytest.raises(
        UnknownMeshError, match=r"'actr' .*; maybe 'actor'\?.*group\.add_mesh\(Mesh\.from_sizes"
    ):
        group.mesh("actr")


@pytest.mark.parametrize("sizes", [None, 4, [("dp", 2)], "dp"])
def test_sizes_are_a_dict(sizes: Any) -> None:
    with pytest.raises(MeshError, match="mesh 'm': its sizes must be a dict"):
        Mesh.from_sizes("m", sizes)


@pytest.mark.parametrize("name", [3, None, ""])
def test_a_mesh_has_a_name(name: Any) -> None:
    with pytest.raises(MeshError, match=f"mesh {name!r}: its name must be a text"):
        Mesh.from_sizes(name, {"dp": 2})
    with pytest.raises(MeshError, match=f"mesh {name!r}: its name must be a text"):
        make_nd_compute_dataproto_dispatch_fn(name)


@pytest.mark.parametrize("sizes", [{"dp": "2"}, {"dp": 1.5}, {"dp": 0}, {"dp": True}])
def test_an_axis_needs_a_whole_number(sizes: Any) -> None:
    with pytest.raises(MeshError, match="whole number of at least 1"):
        Mesh.from_sizes("m", sizes)


@pytest.mark.parametrize("index", [2, -3])
def test_what_answers_lies_on_the_axis(index: int) -> None:
    with pytest.raises(MeshError, match=rf"answering={{'tp': {index}}} is outside the axis.*size 2"):
        Mesh.from_sizes("m", {"dp": 2, "tp": 2}, answering={"tp": index})


def test_an_axis_over_which_rows_are_split_answers_as_a_whole() -> None:
    with pytest.raises(MeshError, match=r"answering={'dp': 1}: rows are split over this axis"):
        Mesh.from_sizes("m", {"dp": 2, "tp": 2}, answering={"dp": 1})


def test_dp_ranks_are_whole_numbers() -> None:
    entries: Any = [0, "a"]
    with pytest.raises(MeshError, match=r"ranks \[1\] are no whole numbers"):
        Mesh.from_registration("m", entries, [True, True], 2)


def test_roles_have_names() -> None:
    classes: Any = {3: Echo}
    with pytest.raises(WorkerClassError, match="expected a name for each role"):
        create_colocated_worker_raw_cls(classes)
    no_classes: Any = [Echo]
    with pytest.raises(WorkerClassError, match="expected a dict of role and class"):
        create_colocated_worker_raw_cls(no_classes)
    group: Any = LocalWorkerGroup(create_colocated_worker_raw_cls({"actor": Echo}), 2)
    assert group.spawn("actor")["actor"].value(1) == [1, 1]


# --- order ------------------------------------------------------------------------------------------------


def test_a_backend_without_order_warns_of_classes_that_mix_plain_and_async_methods() -> None:
    class Unordered(LocalWorkerGroup[Any]):
        _keeps_order = False

    class Plain(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def ping(self) -> int:
            return 1

    with pytest.warns(
        MixedOrderWarning, match=r"Echo has async methods \(rows_async\) and plain ones \(apply"
    ):
        Unordered(Echo, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Unordered(Plain, 1)
        LocalWorkerGroup(Echo, 1)
