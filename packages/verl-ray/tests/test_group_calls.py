"""Calls on one group of four, in every mode, blocking and not."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from verl_dispatch import (
    Broadcast,
    CallTimeout,
    Dispatch,
    Execute,
    Worker,
    WorkerGroupError,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_dispatch.local.replay import RecordedCall
from verl_protocol import DataProto, DataProtoFuture
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl_ray.calls import makers
from verl_ray.errors import StaleFutureError

WORLD = 4


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Hides the signature of a method, as a decorator without functools.wraps does."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


class Echo(Worker):
    """Says what it gets, and who it is."""

    def __init__(self, word: str = "word", *, scale: Any = 1) -> None:
        super().__init__()
        self.word, self.scale = word, scale
        self.environment = dict(os.environ)
        self._register_dispatch_collect_info("pairs", self.rank // 2, self.rank % 2 == 0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> tuple[int, int, str, str, str]:
        env = self.environment
        return self.rank, self.world_size, env["RANK"], env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def arguments(self) -> tuple[str, float]:
        return self.word, float(torch.as_tensor(self.scale).sum())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def same(self, x: Any, y: Any = None) -> Any:
        """Give `x` back."""
        return x

    def lock(self) -> Any:
        return threading.Lock()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def stored(self, x: Any) -> Any:
        return [ray.put(x)]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def identical(self, x: Any, y: Any) -> bool:
        return x is y

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def spoil(self, weights: dict[str, torch.Tensor]) -> float:
        weights["w"].add_(self.rank + 1)
        return float(weights["w"][0])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    def save(self, path: str, step: int = 0) -> Any:
        return self.rank, path, step

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def each(self, x: Any) -> Any:
        return x

    @register(dispatch_mode=Dispatch.RANK_ZERO)
    def first(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def first_too(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.ONE_TO_ONE)
    def some(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def lists(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def batch(self, data: DataProto) -> DataProto:
        return self._marked(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def batch_later(self, data: DataProto) -> DataProto:
        return self._marked(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("pairs"))
    def over_pairs(self, data: DataProto) -> DataProto:
        return self._marked(data)

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("pairs"), blocking=False)
    def refused_by_rank_1(self, data: DataProto) -> DataProto:
        if self.rank == 1:
            while not Path(data.meta_info["gate"]).exists():
                time.sleep(0.01)
            raise ValueError("refused by a rank that nobody reads")
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def die(self, data: DataProto) -> DataProto:
        os._exit(1)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def metric(self, data: DataProto) -> dict[str, int]:
        return {"rows": len(data), "rank": self.rank}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def with_function(self, function: Callable[[DataProto], DataProto], data: DataProto) -> DataProto:
        return function(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def later(self, x: Any) -> Any:
        return self.rank, x

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def summed(self) -> float:
        return float(self.process_group().all_reduce(torch.tensor([self.rank + 1.0])))

    def unregistered(self, x: int) -> tuple[int, int]:
        return self.rank, x

    def _marked(self, data: DataProto) -> DataProto:
        marked = DataProto.from_dict(
            tensors={"i": data.tensor("i"), "rank": torch.full((len(data),), self.rank)},
            non_tensors=dict(data.non_tensor_batch),
        )
        marked.meta_info = {"metrics": {"rank": self.rank}}
        return marked


@pytest.fixture(scope="module")
def group(running_ray: None) -> Iterator[RayWorkerGroup[Echo]]:
    with (
        RayResourcePool([WORLD], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Echo, "hello", scale=torch.ones(1 << 16))) as started,
    ):
        yield started


def rows(count: int, *, auto_padding: bool = False) -> DataProto:
    names = np.array([f"row{index}" for index in range(count)], dtype=object)
    tensors = {"i": torch.arange(count)}
    return DataProto.from_dict(tensors=tensors, non_tensors={"name": names}, auto_padding=auto_padding)


def test_every_worker_knows_its_place_before_its_constructor_runs(group: RayWorkerGroup[Echo]) -> None:
    assert group.who() == [(rank, WORLD, str(rank), str(rank), str(WORLD)) for rank in range(WORLD)]


def test_constructors_get_their_arguments(group: RayWorkerGroup[Echo]) -> None:
    assert group.arguments() == [("hello", float(1 << 16))] * WORLD


def test_ranks_meet_at_the_groups_address(group: RayWorkerGroup[Echo]) -> None:
    assert group.summed() == [10.0] * WORLD
    assert int(group.master_port) > 0
    assert group.master_address


def test_list_modes(group: RayWorkerGroup[Echo]) -> None:
    assert group.same("x") == ["x"] * WORLD
    assert group.each([1, 2, 3, 4]) == [1, 2, 3, 4]
    assert group.each(Broadcast(5)) == [5] * WORLD
    assert group.lists(["a", "b", "c", "d"]) == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert group.first("x") == group.first_too("x") == (0, "x")
    assert group.some({2: "x", 0: "y"}) == {0: (0, "y"), 2: (2, "x")}


def test_a_list_of_any_other_length_is_an_error(group: RayWorkerGroup[Echo]) -> None:
    with pytest.raises(ValueError, match=r"4 workers .* got 3"):
        group.each([1, 2, 3])


def test_the_low_level_sends_the_same_to_all(group: RayWorkerGroup[Echo]) -> None:
    assert group.execute_all_sync("same", [7, 8, 9, 10]) == [[7, 8, 9, 10]] * WORLD
    assert group.execute_all_sync("unregistered", 3) == [(rank, 3) for rank in range(WORLD)]
    assert group.execute_rank_zero_sync("unregistered", x=3) == (0, 3)
    assert ray.get(group.execute_all("same", 1) + group.execute_all_async("same", 2)) == [1] * 4 + [2] * 4
    assert ray.get(group.execute_rank_zero("unregistered", 4)) == (0, 4)
    assert ray.get(group.execute_rank_zero_async("same", 4)) == 4


def test_batches_are_split_and_joined_in_order(group: RayWorkerGroup[Echo]) -> None:
    answer = group.batch(rows(8))
    assert answer.tensor("i").tolist() == list(range(8))
    assert answer.tensor("rank").tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert answer.non_tensor_batch["name"].tolist() == [f"row{index}" for index in range(8)]
    assert answer.meta_info == {"metrics": {"rank": [0, 1, 2, 3]}}


def test_padding_is_taken_off_in_every_mode(group: RayWorkerGroup[Echo]) -> None:
    data = rows(6, auto_padding=True)
    assert group.batch(data).tensor("i").tolist() == list(range(6))
    assert group.batch_later(data).get().tensor("i").tolist() == list(range(6))
    assert group.batch(group.batch_later(data)).tensor("i").tolist() == list(range(6))
    assert [metric["rank"] for metric in group.metric(data)] == [0, 1, 2, 3]
    assert len(data) == 6


def test_uneven_and_balanced_rows_come_back_in_order(group: RayWorkerGroup[Echo]) -> None:
    data = rows(10)
    assert group.batch.options(uneven="balanced")(data).tensor("i").tolist() == list(range(10))
    assert group.batch.options(balance="i")(data).tensor("i").tolist() == list(range(10))
    assert group.batch_later.options(balance="i")(data).get().tensor("i").tolist() == list(range(10))


def test_only_collecting_ranks_of_a_mesh_answer(group: RayWorkerGroup[Echo]) -> None:
    answer = group.over_pairs(data=rows(6))
    assert answer.tensor("i").tolist() == list(range(6))
    assert answer.tensor("rank").tolist() == [0, 0, 0, 2, 2, 2]
    assert group._query_dispatch_info("pairs") == [0, 0, 1, 1]
    assert group._query_collect_info("pairs") == [True, False, True, False]


def test_functions_travel_with_batches(group: RayWorkerGroup[Echo]) -> None:
    answer = group.with_function(lambda part: part.select_idxs([0]), rows(8))
    assert answer.tensor("i").tolist() == [0, 2, 4, 6]


def test_non_blocking_list_modes_give_references(group: RayWorkerGroup[Echo]) -> None:
    refs = group.later(1)
    assert all(isinstance(ref, ray.ObjectRef) for ref in refs)
    assert ray.get(refs + group.later(2)) == [(rank, x) for x in (1, 2) for rank in range(WORLD)]
    assert ray.get(group.first.options(blocking=False)(3)) == (0, 3)


def test_references_among_the_arguments_arrive_as_values(group: RayWorkerGroup[Echo]) -> None:
    big, small = ray.put(torch.arange(1 << 16)), ray.put("small")
    assert [int(answer.sum()) for answer in group.same(big)] == [int(torch.arange(1 << 16).sum())] * WORLD
    assert group.same(x=small) == ["small"] * WORLD
    assert group.each([small, 1, small, 2]) == ["small", 1, "small", 2]
    assert group.each(group.later("x")) == [(rank, "x") for rank in range(WORLD)]
    assert group.identical(big, big) == [True] * WORLD


def test_futures_are_handed_on_and_fetched(group: RayWorkerGroup[Echo]) -> None:
    future = group.batch_later(rows(8))
    assert isinstance(future, DataProtoFuture)
    assert group.batch(future).tensor("rank").tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert group.over_pairs(future).tensor("i").tolist() == list(range(8))
    assert group.batch(group.batch_later(future)).tensor("i").tolist() == list(range(8))
    assert future.get().tensor("i").tolist() == list(range(8))
    assert future.row_count() == 8


def test_joined_futures_are_handed_on(group: RayWorkerGroup[Echo]) -> None:
    joined = DataProtoFuture.concat([group.batch_later(rows(4)), group.batch_later(rows(8))])
    assert group.batch(joined).tensor("i").tolist() == [*range(4), *range(8)]


def test_workers_own_what_they_get(group: RayWorkerGroup[Echo]) -> None:
    weights = {"w": torch.zeros(1 << 16)}
    assert group.spoil(weights) == [1.0, 2.0, 3.0, 4.0]
    assert group.spoil({"w": torch.zeros(2)}) == [1.0, 2.0, 3.0, 4.0]
    assert float(weights["w"].sum()) == 0.0


def test_answers_are_writable(group: RayWorkerGroup[Echo]) -> None:
    answers = group.same(torch.zeros(1 << 16))
    answers[0].add_(1)
    assert [float(answer[0]) for answer in answers] == [1.0, 0.0, 0.0, 0.0]
    later = group.same.options(blocking=False)(torch.zeros(1 << 16))
    ray.get(later[0]).add_(1)
    assert float(ray.get(later[0])[0]) == 0.0


def test_read_only_arguments_are_shared_and_guarded(group: RayWorkerGroup[Echo]) -> None:
    weights = {"w": torch.ones(1 << 16)}
    answers = group.same.options(read_only=True)(weights)
    assert [float(answer["w"].sum()) for answer in answers] == [float(1 << 16)] * WORLD
    with pytest.raises(WorkerGroupError, match=r"'spoil'[\s\S]*w.*was written to in place"):
        group.spoil.options(read_only=True)(weights)


def test_submit_and_stream(group: RayWorkerGroup[Echo]) -> None:
    future = group.batch.submit(rows(4))
    assert future.result(30).tensor("i").tolist() == [0, 1, 2, 3]
    assert future.done()
    assert sorted(group.same.stream("x")) == [(rank, "x") for rank in range(WORLD)]
    assert sorted(rank for rank, _ in group.over_pairs.stream(rows(4))) == [0, 2]


def test_a_first_wait_is_no_longer_than_asked(
    group: RayWorkerGroup[Echo], monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_soon(refs: object, left_s: float) -> dict[int, Any]:
        time.sleep(left_s)
        return {}

    future = group.same.submit("x")
    monkeypatch.setattr("verl_ray.calls.call.soon_here", nothing_soon)
    monkeypatch.setattr("verl_ray.calls.call.hear", lambda ref, take: None)
    begin = time.monotonic()
    with pytest.raises(CallTimeout, match=r"within 0\.5 s"):
        future.result(0.5)
    assert time.monotonic() - begin < 0.9


@pytest.mark.parametrize("value", [b"small", b"large" * 200_000])
def test_references_in_an_answer_outlive_the_answer(group: RayWorkerGroup[Echo], value: bytes) -> None:
    blocking = group.stored(value)
    later = group.stored.submit(value)
    refs = [*blocking, *later.result()]
    del blocking, later
    gc.collect()
    group.same(1)
    time.sleep(0.5)
    assert ray.get([ref for [ref] in refs], timeout=30) == [value] * (2 * WORLD)


def test_real_handles_reach_the_users_object(group: RayWorkerGroup[Echo]) -> None:
    assert ray.get([handle.unregistered.remote(1) for handle in group.workers]) == [
        (r, 1) for r in range(WORLD)
    ]
    word = ray.get(group.workers[0].__ray_call__.remote(lambda worker: (type(worker).__name__, worker.word)))
    assert word == ("Echo", "hello")


def test_a_decorator_that_hides_the_signature_changes_nothing(group: RayWorkerGroup[Echo]) -> None:
    assert group.save("p", step=2) == [(rank, "p", 2) for rank in range(WORLD)]
    assert ray.get(group.workers[1].save.remote("p", step=2)) == (1, "p", 2)


def test_lines_of_a_worker_are_marked_with_group_class_and_rank(group: RayWorkerGroup[Echo]) -> None:
    marks = ray.get([worker.__ray_call__.remote(repr) for worker in group.workers])
    assert marks == [f"{group.name_prefix} Echo rank {rank}" for rank in range(WORLD)]


def test_calls_are_timed_by_rank(group: RayWorkerGroup[Echo], tmp_path: Path) -> None:
    # That calls are recorded is no call of its own.
    with group.trace() as trace, group.record(tmp_path):
        group.batch(rows(4))
    [record] = trace.calls
    assert record.method == "batch"
    assert {stage.rank for stage in record.stages()} == {None, *range(WORLD)}
    assert record.bytes_in > 0


def test_a_recorded_call_runs_again_without_ray(group: RayWorkerGroup[Echo], tmp_path: Path) -> None:
    with group.record(tmp_path, on="all"):
        group.batch(rows(4))
        group.arguments()
    calls = [RecordedCall.read(path) for path in sorted(tmp_path.iterdir())]
    answers = []
    for call in calls:
        with closing(call):
            answers.append(call.run())
    assert [call.facts["method"] for call in calls] == ["arguments"] * WORLD + ["batch"] * WORLD
    assert answers[0] == group.arguments()[0]
    assert [len(answer) for answer in answers[WORLD:]] == [1] * WORLD


def test_the_bound_method_looks_like_the_workers(group: RayWorkerGroup[Echo]) -> None:
    assert group.same.__doc__ == "Give `x` back."
    assert list(group.same.signature.parameters) == ["x", "y"]
    with pytest.raises(AttributeError, match="maybe 'same'"):
        group.sam(1)  # type: ignore[attr-defined]


def test_what_cannot_be_pickled_is_named_and_leaves_the_group_usable(group: RayWorkerGroup[Echo]) -> None:
    within = DataProto.from_dict(tensors={"i": torch.arange(4)}, meta_info={"lock": threading.Lock()})
    for argument in (threading.Lock(), within):
        with pytest.raises(TypeError, match=r"^argument 0 \('x'\) of method 'same' cannot be pickled.*lock"):
            group.same(argument)
    with pytest.raises(TypeError, match=r"^argument 'y' of method 'same' cannot be pickled.*generator"):
        group.same(1, y=(each for each in range(2)))
    with pytest.raises(WorkerGroupError, match="the answer of method 'lock' cannot be pickled"):
        group.execute_all_sync("lock")
    assert group.same(1) == [1] * WORLD


def test_the_start_up_report_has_its_stages(group: RayWorkerGroup[Echo]) -> None:
    report = group.startup_report()
    assert set(report) >= {"placement_s", "processes_s", "imports_s", "actors_s", "init_s", "slowest_rank"}
    assert report["slowest_rank"] in range(WORLD)
    assert len(report["constructors_s"]) == WORLD


def test_calls_end_with_the_ranks_that_nobody_reads_behind_their_futures(
    group: RayWorkerGroup[Echo], tmp_path: Path
) -> None:
    data = rows(4)
    data.meta_info["gate"] = str(tmp_path / "gate")
    submitted = group.some.submit({0: group.refused_by_rank_1(data)})
    sent: Any = submitted._call
    ray.wait([sent.refs[0]], timeout=60)
    assert not submitted.done()
    (tmp_path / "gate").touch()
    with pytest.raises(WorkerGroupError, match="'refused_by_rank_1'"):
        submitted.result(60)
    with pytest.raises(WorkerGroupError, match="'refused_by_rank_1'"):
        list(group.some.stream({0: group.refused_by_rank_1(data)}))


def test_a_group_outlives_the_workers_whose_results_it_waits_for(group: RayWorkerGroup[Echo]) -> None:
    with (
        RayResourcePool([1], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Echo)) as dying,
    ):
        with pytest.raises(WorkerGroupError, match=r"'die'.*\n.*ActorDiedError"):
            group.batch.submit(dying.die(rows(4))).result(60)
        assert group.same(1) == [1] * WORLD
        with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'die' on rank 0"):
            dying.same(1)


@pytest.fixture
def retired_ref(group: RayWorkerGroup[Echo], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A reference to a result of rank 0, which counts as ended."""
    monkeypatch.setattr(makers, "_RETIRED", set())
    makers.retire(group.workers[:1])
    return group.later("x")[0]


def ring(*values: Any) -> list[Any]:
    """A list that contains itself."""
    made = list(values)
    made.append(made)
    return made


def nest(value: Any) -> Any:
    """The value at the bottom of more lists than Python allows calls."""
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize(
    "hide",
    [
        lambda ref: [1, ref],
        lambda ref: {"a": ({ref},)},
        lambda ref: np.array([1, ref], dtype=object),
        lambda ref: DataProto.from_dict(non_tensors={"o": [ref, 1]}),
        lambda ref: DataProto(meta_info={"m": [ref]}),
        ring,
        nest,
    ],
)
def test_references_of_retired_workers_are_refused_wherever_they_are(
    group: RayWorkerGroup[Echo], retired_ref: Any, hide: Callable[[Any], Any]
) -> None:
    with pytest.raises(StaleFutureError, match=r"method '\(an earlier call\)'"):
        group.same(hide(retired_ref))


def test_values_without_references_pass_also_where_they_contain_themselves(
    group: RayWorkerGroup[Echo], retired_ref: Any
) -> None:
    for answer in group.same(ring(1)):
        assert answer[1] is answer
