"""Values on their way: private copies, and results that are still being made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProtoFuture

from verl_dispatch.conformance.backend import Backend, SharedGroups, batch, later, ranks_of, said
from verl_dispatch.conformance.workers import ids_of
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


class TestFutures(SharedGroups):
    """Futures between a group of 4 and a group of 1."""

    @pytest.mark.parametrize("method", ["rows", "rows_async", "over_each"])
    def test_goes_into_the_next_call(self, group: Any, method: str) -> None:
        got = group.bind(method)(made_by(group))
        assert ids_of(got) == list(range(8))
        assert ranks_of(got) == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_goes_through_a_chain(self, group: Any) -> None:
        made = made_by(group)
        for _ in range(3):
            made = made_by(group, made)
        assert ids_of(made.get()) == list(range(8))

    def test_goes_to_fewer_and_to_more_workers(self, group: Any, single: Any) -> None:
        assert ids_of(single.rows(made_by(group))) == list(range(8))
        assert ids_of(group.rows(made_by(single))) == list(range(8))

    def test_goes_to_replicas(self, group: Any) -> None:
        assert ids_of(group.over_pairs(made_by(group))) == list(range(8))

    def test_is_padded_where_it_is_used(self, group: Any, single: Any) -> None:
        made = made_by(single, batch(6))
        assert ids_of(group.rows.options(auto_padding=True)(made)) == list(range(6))

    def test_padded_call_gives_a_future_without_padding(self, group: Any, single: Any) -> None:
        made = made_by(group, batch(5, auto_padding=True))
        assert ids_of(single.rows(made)) == ids_of(made.get()) == list(range(5))

    def test_balanced_call_gives_a_future_in_input_order(self, group: Any, single: Any) -> None:
        assert ids_of(single.rows(made_by(group, balance="x"))) == list(range(8))

    def test_several_are_joined(self, group: Any) -> None:
        joined = DataProtoFuture.concat([made_by(group), made_by(group, batch(4, first=8))])
        assert ids_of(group.rows(joined)) == list(range(12))

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
