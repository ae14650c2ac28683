"""Two workers make the very step that one makes on the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register
from verl_examples.toy.gradients import data_parallel_step
from verl_protocol import DataProto


class Regressor(Worker):
    """Fits a line; tokens without mask carry values that would spoil it."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(3, 1)
        nn.init.constant_(self.line.weight, 0.5)
        nn.init.zeros_(self.line.bias)
        self.sgd = torch.optim.SGD(self.line.parameters(), lr=0.1)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def fit(self, batch: DataProto) -> float:
        errors = self.line(batch.tensor("x")).squeeze(-1) - batch.tensor("y")
        return data_parallel_step(
            self.sgd, errors**2, batch.tensor("mask"), self.process_group().all_reduce, 1e9
        )

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def weight(self) -> Tensor:
        return self.line.weight.detach()


def _batch() -> DataProto:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(8, 5, 3, generator=generator), torch.randn(8, 5, generator=generator)
    # The first rows hold far more tokens, so that a mean of the workers' means would be wrong.
    mask = (torch.arange(5) < torch.tensor([5, 5, 5, 5, 1, 1, 0, 2])[:, None]).float()
    return DataProto.from_dict({"x": x, "y": y.masked_fill(mask == 0, 1e3), "mask": mask})


def _fitted(world_size: int) -> tuple[list[Tensor], list[float]]:
    with LocalWorkerGroup(Regressor, world_size, concurrent=True) as group:
        losses = [sum(group.fit(_batch())) for _ in range(3)]
        return group.weight(), losses


@pytest.mark.parametrize("world_size", [2, 4])
def test_many_workers_step_as_one(world_size: int) -> None:
    [alone], losses_alone = _fitted(1)
    together, losses_together = _fitted(world_size)
    for weight in together:
        torch.testing.assert_close(weight, alone, atol=1e-6, rtol=1e-6)
    assert losses_together == pytest.approx(losses_alone, rel=1e-5)
    assert losses_alone[0] > losses_alone[-1]


def test_a_batch_without_tokens_changes_nothing() -> None:
    batch = _batch()
    empty = DataProto.from_dict({"x": batch.tensor("x"), "y": batch.tensor("y"), "mask": torch.zeros(8, 5)})
    with LocalWorkerGroup(Regressor, 2, concurrent=True) as group:
        assert group.fit(empty) == [0.0, 0.0]
        assert group.weight()[0].tolist() == [[0.5, 0.5, 0.5]]
