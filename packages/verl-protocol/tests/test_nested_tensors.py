"""Jagged tensors made from rows, put together, and repaired."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from protocol_samples import jagged, rows_of
from tensordict import TensorDict
from verl_protocol import errors
from verl_protocol import tensordict_ops as ops
from verl_protocol.columns.jagged import ragged_dim
from verl_protocol.errors import ColumnError


@pytest.mark.parametrize("lengths", [[3, 3], [3, 5], [3], [0, 2]])
@pytest.mark.parametrize("ragged_idx", [None, 2])
def test_the_last_dimension_is_ragged(lengths: list[int], ragged_idx: int | None) -> None:
    rows = [torch.arange(4.0 * length).view(4, length) for length in lengths]
    got = ops.nested_tensor_from_tensor_list(rows, ragged_idx)
    assert ragged_dim(got) == 2
    assert rows_of(got) == [row.tolist() for row in rows]


def test_another_ragged_dimension_is_asked_for() -> None:
    rows = [torch.zeros(2, 3), torch.zeros(4, 3)]
    assert ragged_dim(ops.nested_tensor_from_tensor_list(rows, 1)) == 1
    with pytest.raises(errors.ColumnError):
        ops.nested_tensor_from_tensor_list(rows)
    for wrong in (0, 3):
        with pytest.raises(ColumnError, match=f"got {wrong}"):
            ops.nested_tensor_from_tensor_list(rows, wrong)


def test_jagged_tensors_are_put_together() -> None:
    got = ops.concat_nested_tensors([jagged([1, 2]), jagged([3], start=3.0)])
    assert rows_of(got) == [[0.0], [1.0, 2.0], [3.0, 4.0, 5.0]]
    flat = ops.nested_tensor_from_tensor_list([torch.zeros(3, 2)] * 2)
    both = ops.concat_nested_tensors([flat, flat])
    assert (ragged_dim(both), both.shape[0]) == (2, 4)
    with pytest.raises(errors.SchemaError):
        ops.concat_nested_tensors([flat, jagged([1])])
    with pytest.raises(errors.NothingToConcatError):
        ops.concat_nested_tensors([])


def equal_rows_first_dim_ragged() -> torch.Tensor:
    return torch.nested.nested_tensor_from_jagged(torch.arange(24).view(8, 3), torch.tensor([0, 4, 8]))


def forgotten_ragged_dim() -> torch.Tensor:
    tensor = ops.nested_tensor_from_tensor_list([torch.arange(12).view(4, 3), torch.arange(20).view(4, 5)])
    tensor._ragged_idx = 1  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize(
    ("make_ids", "rows"),
    [
        (equal_rows_first_dim_ragged, [torch.arange(12).view(4, 3), torch.arange(12, 24).view(4, 3)]),
        (forgotten_ragged_dim, [torch.arange(12).view(4, 3), torch.arange(20).view(4, 5)]),
    ],
)
def test_position_ids_are_repaired(make_ids: Callable[[], torch.Tensor], rows: list[torch.Tensor]) -> None:
    data = TensorDict({}, [2])
    data.set("position_ids", make_ids())
    ops.maybe_fix_3d_position_ids(data)
    assert ragged_dim(data["position_ids"]) == 2
    assert rows_of(data["position_ids"]) == [row.tolist() for row in rows]
    ops.maybe_fix_3d_position_ids(data)
    assert rows_of(data["position_ids"]) == [row.tolist() for row in rows]


@pytest.mark.parametrize("ids", [torch.zeros(2, 3, 4), jagged([2, 3]), None], ids=["dense", "flat", "none"])
def test_other_position_ids_stay_as_they_are(ids: torch.Tensor | None) -> None:
    data = TensorDict({} if ids is None else {"position_ids": ids}, [2])
    ops.maybe_fix_3d_position_ids(data)
    assert data.get("position_ids", None) is ids
