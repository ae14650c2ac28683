"""The verbs of a bound method: call, submit, stream, plan, options; blocking or not, async or not; traced."""

import asyncio
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from verl_dispatch import (
    Broadcast,
    CallOptions,
    Dispatch,
    Execute,
    LocalWorkerGroup,
    Worker,
    WorkerGroupError,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_dispatch.errors import CallOptionError, InvalidModeError, UnknownMeshError
from verl_dispatch.planning.layout import RowTrim
from verl_dispatch.planning.parts import PaddedChunk, PaddedPart, resolve_parts
from verl_dispatch.planning.plan import with_worker_trims
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.errors import InvalidTypeError


class Echo(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def all(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def all_later(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.RANK_ZERO, blocking=False)
    def first_later(self, x: Any) -> Any:
        return x

    @register(dispatch_mode=Dispatch.ONE_TO_ONE, blocking=False)
    def some_later(self, x: Any) -> Any:
        return x

    @register(dispatch_mode=Dispatch.ALL_TO_ALL, blocking=False)
    def each_later(self, x: Any) -> Any:
        return x

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def batch(self, d: Any) -> Any:
        return d

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def batch_later(self, d: Any) -> Any:
        return d

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    async def lazily_async(self, d: Any) -> Any:
        return await d if isinstance(d, DataProtoFuture) else d

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def lazily(self, d: Any) -> Any:
        if isinstance(d, DataProtoFuture):
            return d.get()
        return d

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def batch_async(self, d: Any) -> Any:
        await asyncio.sleep(0)
        return d

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def rows(self, d: Any) -> int:
        return len(d)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise KeyError("boom")


@pytest.fixture(scope="module")
def group() -> Any:
    return LocalWorkerGroup(Echo, 4)


def batch(num_rows: int, **options: Any) -> DataProto:
    return DataProto.from_dict(
        tensors={"i": torch.arange(num_rows), "w": torch.arange(num_rows, 0, -1)}, **options
    )


def rows_of(data: Any) -> list[int]:
    return [int(row) for row in data.tensor("i")]


# --- what comes back --------------------------------------------------------------------------------------


def test_non_blocking_list_modes_give_a_future_per_worker(group: Any) -> None:
    futures = group.all_later("x")
    assert isinstance(futures, list)
    assert all(isinstance(future, Future) for future in futures)
    assert [future.result() for future in futures] == [(rank, "x") for rank in range(4)]


def test_non_blocking_single_and_dict_modes(group: Any) -> None:
    assert group.first_later("x").result() == "x"
    assert {rank: future.result() for rank, future in group.some_later({2: "c"}).items()} == {2: "c"}
    assert [future.result() for future in group.some_later([1, 2, 3, 4])] == [1, 2, 3, 4]


def test_non_blocking_batch_modes_give_a_batch_future(group: Any) -> None:
    future = group.batch_later(batch(8))
    assert isinstance(future, DataProtoFuture)
    assert rows_of(future.get()) == list(range(8))


def test_padding_is_off_every_non_blocking_answer(group: Any) -> None:
    data = batch(5, auto_padding=True)
    assert rows_of(group.batch_later(data).get()) == list(range(5))
    parts = [future.result() for future in group.each_later(data)]
    assert [rows_of(part) for part in parts] == [[0, 1], [2, 3], [4], []]
    assert len(data) == 5


def test_blocking_can_be_chosen_at_the_call(group: Any) -> None:
    assert group.all_later.call("x") == group.all("x")
    assert group.all_later.options(blocking=True)("x") == group.all("x")
    assert group.all.options(blocking=False)("x")[3].result() == (3, "x")


def test_async_methods_are_called_as_others(group: Any) -> None:
    assert rows_of(group.batch_async(batch(8))) == list(range(8))
    assert rows_of(group.batch_async(batch(5, auto_padding=True))) == list(range(5))
    assert rows_of(group.batch_async(group.batch_later(batch(8)))) == list(range(8))


# --- futures handed on ------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("method", ["batch", "lazily", "batch_async"])
def test_a_future_goes_on_to_another_group_of_any_size(group: Any, num_workers: int, method: str) -> None:
    consumer: Any = LocalWorkerGroup(Echo, num_workers)
    future = group.batch_later(batch(12))
    assert rows_of(consumer.call(method, future)) == list(range(12))


@pytest.mark.parametrize("method", ["batch", "lazily", "batch_async", "batch_later"])
@pytest.mark.parametrize("num_rows", [1, 5, 8])
def test_a_future_of_unknown_rows_is_padded_at_the_worker(group: Any, method: str, num_rows: int) -> None:
    future = group.batch_later(batch(num_rows, auto_padding=True))
    assert rows_of(group.call(method, future)) == list(range(num_rows))
    assert rows_of(group.batch_later(future).get()) == list(range(num_rows))
    assert group.rows(future) == [-(-num_rows // 4)] * 4


def test_a_future_with_row_counts_is_padded_by_fetching_only_its_rows() -> None:
    fetched: list[int] = []

    class Part:
        def __init__(self, index: int) -> None:
            self.index = index

        def result(self, timeout: float | None = None) -> DataProto:
            fetched.append(self.index)
            return batch(6).chunk(2)[self.index]

    future: DataProtoFuture[DataProto] = DataProtoFuture(
        DataProto.concat, [Part(0), Part(1)], row_counts=[3, 3]
    )
    parts = [future._cut(PaddedChunk(4, index, False, "d", "m", None)) for index in range(4)]
    resolved = [resolve_parts((part,), {}, materialize=True) for part in parts]
    assert [rows_of(part) for (part,), _, _ in resolved] == [[0, 1], [2, 3], [4, 5], [5, 5]]
    assert [trim.pad for _, _, trim in resolved if isinstance(trim, RowTrim)] == [0, 0, 0, 2]
    assert fetched == [0, 0, 1, 1, 1]


@pytest.mark.parametrize("rows", [(4, 4), (2, 3), (0, 1), (3, 0), (0, 0)])
@pytest.mark.parametrize("with_counts", [True, False])
def test_a_padded_future_keeps_the_metrics_of_all_its_parts(
    group: Any, rows: tuple[int, int], with_counts: bool
) -> None:
    parts = [DataProto.from_dict({"i": torch.arange(size)}) for size in rows]
    for part, loss in zip(parts, (0.5, 0.25), strict=True):
        part.meta_info["metrics"] = {"loss": loss}
    future = DataProtoFuture(DataProto.concat, parts, row_counts=rows if with_counts else None)
    answer = group.batch.options(auto_padding=True)(future)
    assert len(answer) == sum(rows)
    assert answer.meta_info["metrics"] == {"loss": [0.5, 0.25]}


@pytest.mark.parametrize("method", ["batch", "lazily", "lazily_async"])
@pytest.mark.parametrize("num_rows", [5, 8])
def test_a_padded_future_is_trimmed_once_where_its_call_is_watched(
    group: Any, method: str, num_rows: int
) -> None:
    future = group.batch_later(batch(num_rows, auto_padding=True))
    with group.trace():
        assert rows_of(group.call(method, future)) == list(range(num_rows))
        assert rows_of(group.call(method, batch(num_rows, auto_padding=True))) == list(range(num_rows))
        assert rows_of(group.submit(method, batch(num_rows, auto_padding=True)).result()) == list(
            range(num_rows)
        )


def test_of_a_future_that_needed_no_padding_any_rows_may_be_answered(group: Any) -> None:
    class Filtering(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def without_first(self, d: DataProto) -> DataProto:
            return d[1:]

    consumer: Any = LocalWorkerGroup(Filtering, 4)
    for there in (group.batch_later(batch(8, auto_padding=True)), batch(8, auto_padding=True)):
        assert rows_of(consumer.without_first(there)) == [1, 3, 5, 7]
    with pytest.raises(WorkerGroupError, match="was sent 2 rows and returned 1"):
        consumer.without_first(group.batch_later(batch(7, auto_padding=True)))


def test_a_chunk_of_a_padded_piece_asks_for_padding_as_the_piece_does(group: Any) -> None:
    class Inner(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, materialize_futures=False)
        def rows_of_chunks(self, d: DataProtoFuture[DataProto]) -> list[Any]:
            inner: Any = LocalWorkerGroup(Echo, 2)
            return [inner.rows(chunk) for chunk in d.chunk(2)]

    outer: Any = LocalWorkerGroup(Inner, 1)
    assert outer.rows_of_chunks(group.batch_later(batch(6, auto_padding=True))) == [[[2, 2], [2, 2]]]


def test_a_future_beside_a_batch_must_have_its_rows(group: Any) -> None:
    class Both(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def both(self, d: DataProto, e: DataProto) -> DataProto:
            return DataProto.from_dict(tensors={"i": d.tensor("i") + e.tensor("i")})

    consumer: Any = LocalWorkerGroup(Both, 4)
    future = group.batch_later.options(uneven="balanced")(batch(6))
    assert rows_of(consumer.both(batch(6, auto_padding=True), future)) == [0, 2, 4, 6, 8, 10]
    label = r"argument 1 \('e'\) of method 'both'"
    for options in ({"auto_padding": True}, {"uneven": "balanced"}):
        both = consumer.both.options(**options)
        assert rows_of(both(batch(6), future)) == [0, 2, 4, 6, 8, 10]
        with pytest.raises(WorkerGroupError, match=f"RowCountError.* another batch: 7 rows, {label}: 6 rows"):
            both(batch(7), future)
        other = group.batch_later(batch(8))
        with pytest.raises(WorkerGroupError, match=f"argument 0 .*: 8 rows, {label}: 6 rows"):
            both(other, future)


def test_pieces_that_a_worker_hands_on_need_not_have_equal_rows(group: Any) -> None:
    class Inner(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def rows_of_both(self, d: DataProto, e: DataProto) -> tuple[int, int]:
            return len(d), len(e)

    class Outer(Worker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, materialize_futures=False)
        def keep(self, d: Any) -> None:
            self.kept = d

        @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, materialize_futures=False)
        def hand_on(self, e: Any) -> Any:
            inner: Any = LocalWorkerGroup(Inner, 1)
            return inner.rows_of_both(self.kept, e)[0]

    outer: Any = LocalWorkerGroup(Outer, 2)
    outer.keep.options(uneven="balanced")(group.batch_later(batch(8)))
    assert outer.hand_on.options(uneven="balanced")(group.batch_later(batch(4))) == [(4, 2), (4, 2)]


def test_a_future_cannot_be_balanced(group: Any) -> None:
    with pytest.raises(CallOptionError, match=r"balance='w' .* is a future whose rows are not here yet"):
        group.batch.options(balance="w")(group.batch_later(batch(8)))


# --- submit and stream ------------------------------------------------------------------------------------


def test_submit_gives_a_future_of_the_whole_result(group: Any) -> None:
    future = group.all.submit("x")
    assert future.result(timeout=10) == group.all("x")
    assert future.done()
    assert future.result() is future.result()
    assert rows_of(group.batch.submit(batch(5, auto_padding=True)).result()) == list(range(5))


def test_a_submitted_call_can_be_awaited(group: Any) -> None:
    async def main() -> Any:
        return await asyncio.gather(group.all.submit(1), group.submit("batch", batch(8)))

    first, second = asyncio.run(main())
    assert first == group.all(1)
    assert rows_of(second) == list(range(8))


def test_a_submitted_call_fails_when_asked(group: Any) -> None:
    future = group.fail.submit()
    with pytest.raises(WorkerGroupError, match="boom"):
        future.result()
    with pytest.raises(WorkerGroupError, match="boom"):
        future.result()


def test_stream_gives_answers_with_their_ranks_and_without_padding(group: Any) -> None:
    assert sorted(group.all.stream("x")) == [(rank, (rank, "x")) for rank in range(4)]
    parts = dict(group.batch.stream(batch(5, auto_padding=True)))
    assert {rank: rows_of(part) for rank, part in parts.items()} == {0: [0, 1], 1: [2, 3], 2: [4], 3: []}
    assert sorted(group.stream(Echo.rows, batch(5, auto_padding=True))) == [(0, 2), (1, 2), (2, 2), (3, 2)]


# --- options ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["w", "mask", "jagged", "cost"])
@pytest.mark.parametrize("equal_size", [False, True])
def test_balanced_rows_come_back_in_input_order(group: Any, key: str, equal_size: bool) -> None:
    lengths = [9, 1, 1, 1, 8, 1, 1, 1]
    data = DataProto.from_dict(
        tensors={
            "i": torch.arange(8),
            "w": torch.tensor(lengths),
            "mask": torch.arange(9).unsqueeze(0) < torch.tensor(lengths).unsqueeze(1),
            "jagged": torch.nested.as_nested_tensor([torch.ones(n) for n in lengths], layout=torch.jagged),
        },
        non_tensors={"cost": lengths},
    )
    method = group.batch.options(balance=key, equal_size=equal_size)
    assert rows_of(method(data)) == list(range(8))
    assert rows_of(group.batch_later.options(balance=key, equal_size=equal_size)(data).get()) == list(
        range(8)
    )
    plan = method.plan(data)
    sums = [sum(call.args[0].tensor("w").tolist()) for call in plan]
    assert max(sums) <= (10 if equal_size else 9)
    assert sorted(plan.order or ()) == list(range(8))
    if equal_size:
        assert [call.rows for call in plan] == [2] * 4


def test_balance_of_equal_sizes_may_be_padded(group: Any) -> None:
    method = group.batch.options(balance="w", equal_size=True)
    assert rows_of(method(batch(6, auto_padding=True))) == list(range(6))
    with pytest.raises(ValueError, match=r"6 rows .* 4 workers"):
        method(batch(6))
    assert rows_of(group.batch.options(balance="w")(batch(2, auto_padding=True))) == [0, 1]
    assert rows_of(group.batch.options(balance="w")(batch(0))) == []


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"uneven": "yes"}, 'expected "balanced" or None'),
        ({"timeout_s": 0}, "seconds above 0"),
        ({"equal_size": True}, "no balance column"),
        ({"uneven": "balanced", "balance": "w"}, "choose one"),
        ({"uneven": "balanced", "auto_padding": True}, "choose one"),
        ({"timeout": 3}, "no such option; did you mean 'timeout_s'.; known options: timeout_s"),
    ],
)
def test_options_that_mean_nothing_are_refused(group: Any, options: dict[str, Any], problem: str) -> None:
    with pytest.raises(CallOptionError, match=problem):
        group.batch.options(**options)


def test_options_that_the_call_cannot_honour_are_refused(group: Any) -> None:
    with pytest.raises(CallOptionError, match="none of the call's batches has this column"):
        group.batch.options(balance="nope")(batch(4))
    named = DataProto.from_dict(non_tensors={"name": ["a", "b", "c", "d"]})
    with pytest.raises(CallOptionError, match=r"balance='name' .* holds no numbers"):
        group.batch.options(balance="name")(named)
    with pytest.raises(CallOptionError, match="no input order to restore"):
        group.each_later.options(balance="w")(batch(4))
    with pytest.raises(InvalidModeError, match=r"RANK_ZERO .* DP_COMPUTE_PROTO"):
        group.batch.options(execute_mode=Execute.RANK_ZERO)


def test_options_leave_the_method_itself_alone_and_add_up(group: Any) -> None:
    changed = group.all.options(execute_mode=Execute.RANK_ZERO).options(timeout_s=60)
    assert changed("x") == (0, "x")
    assert changed.execute_mode is Execute.RANK_ZERO
    assert group.all.execute_mode is Execute.ALL
    assert CallOptions().changed(timeout_s=2) == CallOptions(timeout_s=2)


def test_metrics_stay_per_rank_whatever_the_layout(group: Any) -> None:
    assert group.rows(batch(5, auto_padding=True)) == [2, 2, 2, 2]
    assert group.rows.options(uneven="balanced")(batch(5)) == [2, 1, 1, 1]
    assert sum(group.rows.options(balance="w")(batch(9))) == 9


# --- meshes -----------------------------------------------------------------------------------------------

nd = make_nd_compute_dataproto_dispatch_fn


class Meshed(Worker):
    dp_ranks = (1, 1, 0, 0)
    collects = (False, True, True, False)
    asked = 0

    def __init__(self) -> None:
        super().__init__()
        self._register_dispatch_collect_info("m", self.dp_ranks[self.rank], self.collects[self.rank])

    @register(dispatch_mode=nd("m"))
    def f(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(
            tensors={"i": data.tensor("i"), "rank": torch.full((len(data),), self.rank)}
        )

    @register(dispatch_mode=nd("m"), blocking=False)
    def later(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=nd("nope"))
    def unknown(self, data: DataProto) -> DataProto:
        return data


@pytest.fixture(scope="module")
def meshed() -> Any:
    return LocalWorkerGroup(Meshed, 4)


def test_a_mesh_call_answers_in_dp_order(meshed: Any) -> None:
    for answer in (meshed.f(batch(4)), meshed.f(data=batch(4))):
        assert rows_of(answer) == [0, 1, 2, 3]
        assert answer.tensor("rank").tolist() == [2, 2, 1, 1]
    assert rows_of(meshed.later(batch(4)).get()) == [0, 1, 2, 3]


def test_a_mesh_call_undoes_padding_and_order(meshed: Any) -> None:
    data = batch(5, auto_padding=True)
    assert rows_of(meshed.f(data)) == rows_of(meshed.later(data).get()) == list(range(5))
    assert rows_of(meshed.f.options(uneven="balanced")(batch(5))) == list(range(5))
    assert rows_of(meshed.f.options(balance="w")(batch(7))) == list(range(7))


def test_replicas_share_one_object_and_only_answering_ranks_are_fetched(meshed: Any) -> None:
    plan = meshed.f.plan(batch(4))
    parts = [call.args[0] for call in plan]
    assert parts[0] is parts[1]
    assert parts[2] is parts[3]
    assert rows_of(parts[2]) == [0, 1]
    assert plan.fetched_ranks == (2, 1)
    assert {entry.ranks for entry in plan.shared.values()} == {(0, 1), (2, 3)}
    noted = with_worker_trims(meshed.f.plan(batch(5, auto_padding=True)))
    assert any(isinstance(call.args[0], PaddedPart) for call in noted)
    assert {entry.ranks for entry in noted.shared.values()} == {(0, 1), (2, 3)}


def test_a_mesh_call_without_a_batch_is_refused(meshed: Any) -> None:
    with pytest.raises(InvalidTypeError, match=r"'f' splits batches over mesh 'm' .* at least one batch"):
        meshed.f(Broadcast(1))
    with pytest.raises(TypeError, match="missing a required argument: 'data'"):
        meshed.f()
    with pytest.raises(UnknownMeshError, match=r"'nope'.*registered meshes: m"):
        meshed.unknown(batch(2))


def test_mesh_tables_are_asked_once_checked_once_and_can_be_dropped(meshed: Any) -> None:
    assert meshed.mesh("m").answering_ranks == (2, 1)
    assert meshed.mesh("m") is meshed.mesh("m")
    meshed.forget_meshes("m")
    assert "m" not in meshed._dispatch_info
    meshed._dispatch_info["m"] = [0, 1, 2, 3]
    meshed._collect_info["m"] = [True] * 4
    assert meshed.f(batch(4)).tensor("rank").tolist() == [0, 1, 2, 3]
    meshed._collect_info["m"] = [True, True, True, False]
    with pytest.raises(ValueError, match="mesh 'm': dp rank 3 must have exactly one answering rank"):
        meshed.f(batch(4))
    meshed.forget_meshes()
    assert rows_of(meshed.f(batch(4))) == [0, 1, 2, 3]


def test_a_mesh_may_be_added_by_hand(group: Any) -> None:
    from verl_dispatch import Mesh

    class Plain:
        @register(dispatch_mode=nd("mine"))
        def f(self, data: DataProto) -> DataProto:
            return data

    plain: Any = LocalWorkerGroup(Plain, 4)
    with pytest.raises(UnknownMeshError, match="registered meshes: none"):
        plain.f(batch(4))
    plain.add_mesh(Mesh.from_sizes("mine", {"dp": 2, "tp": 2}))
    assert [call.rows for call in plain.f.plan(batch(4))] == [2, 2, 2, 2]
    assert rows_of(plain.f(batch(4))) == [0, 1, 2, 3]
