"""Results are the same whoever copies them: torch, torch into memory from elsewhere, or numpy."""

from __future__ import annotations

import pytest
import torch
from verl_protocol import DataProto, equal
from verl_protocol.columns import dense
from verl_protocol.columns.checks import jagged_of


@pytest.fixture(params=["large", "small", "on one thread"], autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """All results are of one kind."""
    monkeypatch.setattr(dense, "LARGE_BYTES", 1 if request.param == "large" else 2**40)
    if request.param == "on one thread":
        monkeypatch.setattr(dense, "THREADED_ELEMENTS", 0)
    else:
        monkeypatch.setattr(dense, "THREADED_BYTES", 0)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.complex64]
)
def test_rows_are_the_same_wherever_they_lie(dtype: torch.dtype) -> None:
    wide = torch.arange(12).view(3, 2, 2).to(dtype)
    data = DataProto.from_dict({"a": wide, "j": jagged_of([wide[0], wide[1, :1], wide[2]], 1)})
    results = [
        (data.repeat(2), [0, 0, 1, 1, 2, 2]),
        (data.repeat(2, interleave=False), [0, 1, 2, 0, 1, 2]),
        (data.repeat(1), [0, 1, 2]),
        (data[[2, 0]], [2, 0]),
        (DataProto.concat(data.chunk(3)), [0, 1, 2]),
    ]
    for result, expected in results:
        assert result.equals(DataProto.concat([data[row : row + 1] for row in expected]))
        result.tensor("a").view(torch.uint8).fill_(0)
    assert equal(data.tensor("a"), wide)


def test_rows_that_do_not_lie_back_to_back_are_copied_in_order() -> None:
    columns = torch.arange(12).view(4, 3).T
    data = DataProto.from_dict(
        {"a": columns, "n": columns[:, 0] * torch.ones((), dtype=torch.complex64).conj()}
    )
    joined = DataProto.concat([data[[2, 0]], data.repeat(2), data[::2]])
    assert joined.tensor("a").tolist() == [columns.tolist()[row] for row in (2, 0, 0, 0, 1, 1, 2, 2, 0, 2)]
    assert joined.tensor("n").real.tolist() == [2, 0, 0, 0, 1, 1, 2, 2, 0, 2]
    assert joined.tensor("a").is_contiguous()


def test_gradients_flow_through_large_results() -> None:
    weights = torch.arange(4.0, requires_grad=True)
    data = DataProto.from_dict({"w": weights})
    joined = DataProto.concat([data[[0, 3]], data.repeat(2), data])
    (gradient,) = torch.autograd.grad(joined.tensor("w").sum(), weights)
    assert gradient.tolist() == [4.0, 3.0, 3.0, 4.0]


def test_results_of_no_size_are_results() -> None:
    data = DataProto.from_dict({"a": torch.zeros(2, 0)})
    assert tuple(data.repeat(3).batch["a"].shape) == (6, 0)
    assert tuple(data[[1]].batch["a"].shape) == (1, 0)
    assert len(DataProto.concat([data[:0], data[:0]])) == 0


def test_shapes_that_do_not_fit_are_told_alike() -> None:
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        dense.concat_dense([torch.zeros(2, 3), torch.zeros(2, 4)])
