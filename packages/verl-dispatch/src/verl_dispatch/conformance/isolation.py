"""A worker never sees an object of the caller's or of another worker."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verl_dispatch.conformance.backend import GroupCache
from verl_dispatch.conformance.batches import batch, ids_of
from verl_dispatch.conformance.workers import ModesWorker
from verl_dispatch.errors import WorkerGroupError


class TestIsolation:
    """Writes stay where they are made, on a group of 4."""

    @pytest.fixture
    def group(self, groups: GroupCache) -> Any:
        return groups.get(ModesWorker, 4)

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
        made = group.rows.options(blocking=False)(batch(4))
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
        assert group.read_read_only({"w": torch.ones(numel)}) == [float(numel)] * 4

    @pytest.mark.parametrize("numel", [1 << 18])
    def test_a_write_into_a_read_only_argument_is_noticed(self, group: Any, numel: int) -> None:
        weights: dict[str, torch.Tensor] = {"w": torch.ones(numel)}
        with pytest.raises(WorkerGroupError, match="read-only"):
            group.write_read_only(weights)
        assert float(weights["w"].sum()) == float(numel)

    def test_one_object_stays_one_object(self, group: Any) -> None:
        shared = [1]
        for _, x, y in group.one_to_all({"a": shared, "b": shared}):
            assert x["a"] is x["b"]
            assert y is None
