"""Values on their way: private copies, results still being made, columns that stay where they were made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.errors import SchemaError

from verl_dispatch.conformance.backend import Backend, SharedGroups, batch, failure_of, later, ranks_of, said
from verl_dispatch.conformance.workers import WIDTH, ModesWorker, ids_of
from verl_dispatch.errors import WorkerGroupError


class TestIsolation(SharedGroups):
    """Writes stay where they are made, on a group of 4."""

    @pytest.mark.parametrize("num_rows", [3, 1 << 16])
    def test_writes_into_a_broadcast_batch(self, group: Any, num_rows: int) -> None:
        data = batch(num_rows, seen=["driver"])
        got = group.write_into(data)
        assert got == [(rank + 1, f"rank {rank}", ["driver", rank]) for rank in range(4)]
        assert ids_of(data) == list(range(num_rows))
        assert data.column("s")[0] == "row 0"
        assert data.meta_info == {"seen": ["driver"]}

    @pytest.mark.parametrize("numel", [3, 1 << 18])
    def test_writes_into_tensors_and_lists(self, group: Any, numel: int) -> None:
        value: dict[str, Any] = {"tensor": torch.zeros(numel), "list": [9]}
        assert group.write_into(value) == [(rank + 1.0, [9, rank]) for rank in range(4)]
        assert value["list"] == [9]
        assert float(value["tensor"].sum()) == 0.0

    @pytest.mark.parametrize("num_rows", [4, 1 << 16])
    def test_writes_into_the_rows_of_a_part(self, group: Any, num_rows: int) -> None:
        data = batch(num_rows)
        assert ids_of(group.write_rows(data))[:2] == [100, 101]
        assert ids_of(data) == list(range(num_rows))

    def test_writes_into_a_future_that_others_read(self, group: Any) -> None:
        made = later(group.rows)(batch(4))
        assert ids_of(group.write_rows(made)) == ids_of(group.write_rows(made)) == [100, 101, 102, 103]
        assert ids_of(made.get()) == [0, 1, 2, 3]

    def test_answers_are_not_what_the_worker_keeps(self, group: Any) -> None:
        weights = {"w": torch.ones(8)}
        answers = group.keep(weights)
        assert group.change_kept() == [7.0, 8.0, 9.0, 10.0]
        assert [float(answer["w"][0]) for answer in answers] == [1.0] * 4
        answers[0]["w"].fill_(-1.0)
        weights["w"].fill_(-2.0)
        assert [float(kept["w"][0]) for kept in group.get_kept()] == [7.0, 8.0, 9.0, 10.0]

    @pytest.mark.parametrize("numel", [3, 1 << 18])
    def test_read_only_arguments_may_be_read(self, group: Any, numel: int) -> None:
        assert group.sum_read_only({"w": torch.ones(numel)}) == [float(numel)] * 4

    def test_a_write_into_a_read_only_argument_is_noticed(self, group: Any) -> None:
        weights = {"w": torch.ones(1 << 18)}
        with pytest.raises(WorkerGroupError, match="read-only"):
            group.sum_read_only(weights, written=1)
        assert float(weights["w"].sum()) == 1 << 18

    @pytest.mark.parametrize("length", [1, 200_000])
    def test_a_subclass_of_bytes_arrives_as_such(self, backend: Backend, group: Any, length: int) -> None:
        given = np.bytes_(b"x" * length)
        answers = [*group.keep(given), *backend.resolved(later(group.keep)(given))]
        assert list(map(type, answers)) == [np.bytes_] * 8

    def test_one_object_stays_one_object(self, group: Any) -> None:
        shared = [1]
        for _, x, y in group.one_to_all({"a": shared, "b": shared}):
            assert x["a"] is x["b"]
            assert y is None

    @pytest.mark.parametrize("numel", [3, 1 << 18])
    def test_values_that_hold_themselves_arrive_so(self, group: Any, numel: int) -> None:
        rows = np.empty(2, dtype=object)
        rows[:] = [[rows], torch.ones(numel)]
        data = batch(3, weights=torch.ones(numel))
        data.meta_info["all"] = [data.meta_info]
        for _, got, (again,) in group.one_to_all(rows, y=(data,)):
            assert got[0][0] is got
            assert float(got[1].sum()) == numel
            assert again.meta_info["all"][0] is again.meta_info
        assert [rank for rank, _, _ in group.one_to_all(data)] == [0, 1, 2, 3]


# --- Results that are still being made, handed on -----------------------------------------------------------


def made_by(group: Any, data: Any = None, **options: Any) -> Any:
    """The future of a batch, if none is given of eight rows."""
    made = later(group.rows, **options)(batch(8) if data is None else data)
    assert isinstance(made, DataProtoFuture)
    return made


HANDED_ON: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "through a chain": (
        8,
        lambda four, one: made_by(four, made_by(four, made_by(four, made_by(four)))).get(),
    ),
    "to fewer workers": (8, lambda four, one: one.rows(made_by(four))),
    "to more workers": (8, lambda four, one: four.rows(made_by(one))),
    "to replicas": (8, lambda four, one: four.over_pairs(made_by(four))),
    "padded there": (6, lambda four, one: four.rows.options(auto_padding=True)(made_by(one, batch(6)))),
    "of a balanced call": (8, lambda four, one: one.rows(made_by(four, balance="x"))),
}
"""What is done with a future -> the rows of the result, and what gives it of a group of 4 and one of 1."""


class TestFutures(SharedGroups):
    """Futures between a group of 4 and a group of 1."""

    @pytest.mark.parametrize("method", ["rows", "rows_async", "over_each"])
    def test_goes_into_the_next_call(self, group: Any, method: str) -> None:
        got = group.bind(method)(made_by(group))
        assert ids_of(got) == list(range(8))
        assert ranks_of(got) == [0, 0, 1, 1, 2, 2, 3, 3]

    @pytest.mark.parametrize("name", list(HANDED_ON))
    def test_is_handed_on(self, group: Any, single: Any, name: str) -> None:
        num_rows, use = HANDED_ON[name]
        assert ids_of(use(group, single)) == list(range(num_rows))

    def test_several_are_joined(self, group: Any) -> None:
        joined = DataProtoFuture.concat([made_by(group), made_by(group, batch(4, first=8))])
        assert ids_of(group.rows(joined)) == list(range(12))

    def test_padded_call_gives_a_future_without_padding(self, group: Any, single: Any) -> None:
        made = made_by(group, batch(5, auto_padding=True))
        assert ids_of(single.rows(made)) == ids_of(made.get()) == list(range(5))

    def test_goes_with_a_batch_that_is_there(self, group: Any) -> None:
        got = group.rows(made_by(group), batch(8, first=100))
        assert got.tensor("more").tolist() == list(range(100, 108))

    def test_may_be_read_again(self, group: Any) -> None:
        made = made_by(group)
        made.get().tensor("i").fill_(0)
        assert ids_of(made.get()) == list(range(8))

    def test_chunks_are_futures_of_their_rows(self, group: Any) -> None:
        assert [ids_of(piece.get()) for piece in made_by(group).chunk(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]

    def test_method_may_resolve_it_itself(self, group: Any) -> None:
        got = group.late(made_by(group))
        assert ids_of(got) == list(range(8))
        assert set(got.column("kind")) == {"future"}

    def test_references_arrive_as_values(self, backend: Backend, group: Any) -> None:
        references = later(group.one_to_all)("v")
        assert group.all_to_all(references) == [(rank, (rank, "v", None), None) for rank in range(4)]
        assert group.one_to_all(references[2], y=references[1]) == said((2, "v", None), (1, "v", None))
        assert backend.resolved(references) == said("v")

    def test_call_futures_keep_their_result(self, group: Any) -> None:
        made = group.rows.submit(batch(4))
        assert made.result() is made.result()
        assert made.done()


# --- Columns that stay where they were made: what a caller sees of them, and what a worker gets -------------


def wide_batch(num_rows: int) -> DataProto:
    """Rows with an id, and a wide column of it."""
    ids = torch.arange(num_rows)
    return DataProto.from_dict({"i": ids, "wide": ids[:, None].repeat(1, WIDTH)})


def made_apart(group: Any, data: Any = None, **options: Any) -> Any:
    """The ids of a batch, if none is given of eight rows, and a wide column that lies where it was made."""
    return group.widened.options(remote=True, **options)(batch(8) if data is None else data)


class TestRemote(SharedGroups):
    """A group of 4, and one of 1."""

    @pytest.fixture
    def made(self, group: Any) -> Any:
        """A batch whose wide column lies where the four ranks made it."""
        return made_apart(group)

    def test_large_columns_of_answers_stay_and_small_ones_come(self, made: Any) -> None:
        assert made.remote_keys == ["wide"]
        assert made.equals(wide_batch(8))

    def test_without_being_asked_all_comes_along(self, group: Any) -> None:
        assert group.widened(batch(8)).remote_keys == []

    def test_metrics_and_meta_info_come_along(self, group: Any) -> None:
        got = made_apart(group, batch(8, step=3, metrics={"loss": 1.0}))
        assert got.meta_info["step"] == 3
        assert got.remote_keys == ["wide"]

    def test_what_is_put_goes_into_any_number_of_calls(self, group: Any, single: Any) -> None:
        mine = wide_batch(8)
        stored = group.put(mine)
        mine.tensor("wide").zero_()
        assert stored.remote_keys == ["wide"]
        for caller in (group, single, group):
            assert ids_of(caller.narrowed(stored)) == list(range(8))

    def test_a_plan_counts_only_what_travels(self, group: Any, made: Any) -> None:
        assert sum(group.narrowed.plan(made).nbytes()) < 1000
        assert sum(group.narrowed.plan(made.local()).nbytes()) > 8 * WIDTH

    def test_a_plan_says_that_answers_stay(self, group: Any) -> None:
        assert "stay where they are made" in str(group.widened.options(remote=True).plan(batch(8)))
        assert "stay where they are made" not in str(group.widened.plan(batch(8)))

    @pytest.mark.parametrize("rows", [slice(None), slice(6, 1, -1), [7, 0, 0, 3], slice(2, 6)])
    def test_a_worker_gets_the_rows_that_the_caller_chose(self, group: Any, made: Any, rows: Any) -> None:
        chosen = made[rows]
        got = group.narrowed.options(uneven="balanced")(chosen)
        assert ids_of(got) == got.tensor("last").tolist() == wide_batch(8)[rows].tensor("i").tolist()
        assert set(got.column("remote")) == {"wide"}

    def test_a_worker_writes_into_a_copy_of_its_own(self, group: Any, made: Any) -> None:
        group.narrowed(made)
        assert made.equals(wide_batch(8))

    def test_a_read_only_method_reads_and_is_told_of_a_write(self, group: Any, made: Any) -> None:
        assert ids_of(group.narrowed_over_pairs.options(read_only=True)(made)) == list(range(8))
        error = failure_of(group.narrowed.options(read_only=True), made)
        assert "read-only" in str(error)
        assert "'wide'" in str(error)
        assert error.failed_ranks == [0, 1, 2, 3]

    def test_padding_and_balance_are_undone(self, group: Any, made: Any) -> None:
        assert ids_of(group.narrowed.options(auto_padding=True)(made[:5])) == list(range(5))
        assert ids_of(group.narrowed.options(balance="i")(made)) == list(range(8))
        twice = group.twice.options(balance="i", remote=True)(made)
        assert twice.tensor("wide")[:, 0].tolist() == [row for row in range(8) for _ in range(2)]

    def test_padding_is_taken_off_what_stays(self, group: Any) -> None:
        assert made_apart(group, batch(5), auto_padding=True).equals(wide_batch(5))

    def test_goes_to_replicas(self, group: Any, made: Any) -> None:
        got = group.narrowed_over_pairs(made)
        assert ids_of(got) == list(range(8))
        assert ranks_of(got) == [0] * 4 + [1] * 4

    def test_an_untouched_column_stays_where_it_is(self, group: Any, single: Any, made: Any) -> None:
        for caller in (group, single):
            got = caller.twice(made)
            assert got.remote_keys == ["wide"]
            assert got[::2].equals(made)

    def test_columns_of_the_driver_join_those_that_are_elsewhere(self, group: Any, made: Any) -> None:
        made.union(DataProto.from_dict({"x": torch.zeros(8, 2)}))
        assert made.remote_keys == ["wide"]
        both = DataProto.concat([made.select(["i", "wide"]), wide_batch(4)])
        assert ids_of(group.narrowed(both)) == [*range(8), *range(4)]

    def test_what_was_written_here_is_what_workers_get(self, group: Any, made: Any) -> None:
        made.batch["wide"] += 10
        assert ids_of(group.narrowed(made)) == list(range(10, 18))

    @pytest.mark.parametrize("rows", [8, 5])
    def test_is_handed_on_without_waiting(self, group: Any, single: Any, rows: int) -> None:
        made = made_apart(group, batch(rows), blocking=False, auto_padding=True)
        for caller in (group, single):
            assert ids_of(caller.narrowed.options(auto_padding=True)(made)) == list(range(rows))
        assert made.get().remote_keys == ["wide"]
        assert made.get().equals(wide_batch(rows))

    def test_futures_of_different_columns_are_refused_by_each_reader(self, group: Any) -> None:
        later_parts = [made_apart(group, blocking=False), made_by(group)]
        error = failure_of(group.metric, DataProtoFuture.concat(later_parts))
        assert "parts differ in their tensor columns" in str(error)
        assert error.failed_ranks == [0, 1, 2, 3]

    def test_every_verb_gives_it(self, group: Any) -> None:
        method = group.widened.options(remote=True)
        assert method.submit(batch(8)).result().remote_keys == ["wide"]
        streamed = dict(method.stream(batch(8)))
        assert [streamed[rank].remote_keys for rank in range(4)] == [["wide"]] * 4
        assert streamed[3].equals(wide_batch(8)[6:])

    def test_lists_of_references_hold_whole_answers(self, backend: Backend, group: Any) -> None:
        assert len(backend.resolved(later(group.metric, remote=True)(batch(8)))) == 4

    def test_a_restart_leaves_it_readable(self, backend: Backend) -> None:
        with backend.make_group(ModesWorker, 2) as group:
            made = made_apart(group)
            group.restart()
            assert ids_of(group.narrowed(made)) == list(range(8))
            assert made.equals(wide_batch(8))

    def test_a_batch_outlives_its_group(self, backend: Backend) -> None:
        with backend.make_group(ModesWorker, 1) as group:
            made = made_apart(group)
        assert made.equals(wide_batch(8))


class TestDeclaredColumns(SharedGroups):
    """Columns that a method is declared to read and to write."""

    @pytest.mark.parametrize("rows", [8, 5, 0])
    def test_a_method_gets_what_it_reads_and_answers_what_it_writes(self, group: Any, rows: int) -> None:
        data = batch(rows, step=3)
        got = group.declared.options(auto_padding=True)(data)
        assert got.select(["i"], ["s"]).equals(data.select(["i"], ["s"]))
        sent, read = group.declared.plan(batch(8)), group.rows.plan(batch(8).select(["i"], ["s"]))
        assert sent.nbytes() == read.nbytes()

    def test_a_worker_chooses_of_a_future(self, group: Any) -> None:
        assert ids_of(group.declared(later(group.rows)(batch(8)))) == list(range(8))

    def test_a_missing_column_is_said_before_anything_is_sent(self, group: Any) -> None:
        told = r"argument 0 \('data'\) of method 'declared' has no column 's'"
        with pytest.raises(SchemaError, match=told):
            group.declared(wide_batch(8))

    def test_of_a_future_it_is_said_by_the_worker(self, group: Any) -> None:
        error = failure_of(group.declared, later(group.widened)(batch(8)))
        assert "method 'declared' has no column 's'" in str(error)

    def test_a_wrong_answer_is_refused_by_its_worker(self, group: Any) -> None:
        error = failure_of(group.declared, batch(8, wrong=2))
        assert "writes of @register does not name: ['x']" in str(error)
        assert error.failed_ranks == [2]

    def test_columns_that_stay_elsewhere_are_chosen_by_parameter(self, group: Any, single: Any) -> None:
        made = made_apart(group)
        for caller in (group, single):
            assert caller.declared_to_all(made, y=made)[-1] == [["i", "wide"], ["i"]]
            assert caller.declared_to_all(made, batch(8))[-1] == [["i", "wide"], ["i", "s"]]
        assert "reads x: i, wide; y: i, s?" in str(group.declared_to_all.plan(made, made))
