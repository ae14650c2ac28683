"""Tensors and TensorDicts as plain values and bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tensordict import NonTensorStack, TensorDict
from verl_protocol import tensordict_ops as ops
from verl_protocol.errors import InvalidTypeError
from verl_protocol.serialize import (
    deserialize_single_tensor,
    deserialize_tensordict,
    serialize_single_tensor,
    serialize_tensordict,
)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16]
)
@pytest.mark.parametrize("shape", [(2, 3), (), (0, 4), (3, 0)])
def test_a_tensor_is_dtype_shape_and_data(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    sent = torch.ones(shape).to(dtype)
    name, size, data = serialize_single_tensor(sent)
    assert (name, size, len(data)) == (str(dtype).removeprefix("torch."), shape, sent.nbytes)
    got = deserialize_single_tensor((name, size, bytes(data)))
    assert (got.dtype, got.shape) == (dtype, shape)
    assert torch.equal(got.to(torch.float32), sent.to(torch.float32))


def test_the_data_is_a_view_and_the_result_is_not() -> None:
    sent = torch.zeros(100)
    serialized = serialize_single_tensor(sent)
    got = deserialize_single_tensor(serialized)
    sent[0] = 1
    assert (deserialize_single_tensor(serialized)[0].item(), got[0].item()) == (1, 0)


@pytest.mark.parametrize("value", ["text", torch.eye(2, device="meta"), None])
def test_what_is_no_dense_tensor_is_refused(value: Any) -> None:
    with pytest.raises(InvalidTypeError, match="only dense tensors"):
        serialize_single_tensor(value)


@pytest.mark.parametrize("device", [None, "cpu"])
def test_a_tensordict_is_batch_size_device_and_items(device: str | None) -> None:
    lengths = torch.tensor([1, 2])
    gaps = torch.nested.nested_tensor_from_jagged(torch.arange(6.0), torch.tensor([0, 3, 6]), lengths)
    ids = ops.nested_tensor_from_tensor_list([torch.arange(8).view(4, 2), torch.arange(4).view(4, 1)])
    inner = TensorDict({"x": torch.ones(2)}, [2])
    sent = TensorDict({"a": torch.arange(2), "ids": ids, "gaps": gaps, "inner": inner}, [2], device=device)
    sent.set("s", NonTensorStack("x", "x"))
    ops.assign_non_tensor_data(sent, "k", {"lr": 1})
    batch_size, named, items = serialize_tensordict(sent)
    assert (batch_size, named, list(items)) == ((2,), device, ["a", "ids", "gaps", "inner", "s", "k"])
    got = deserialize_tensordict((batch_size, named, items))
    ops.assert_tensordict_eq(got, sent)
    assert got.device == sent.device
    assert got["gaps"].lengths().tolist() == [1, 2]


def test_a_tensordict_without_rows_or_columns() -> None:
    for sent in (TensorDict({}, [3]), ops.get_tensordict({}, {"k": 1}), ops.get_tensordict({"s": []})):
        got = deserialize_tensordict(serialize_tensordict(sent))
        assert got.batch_size == sent.batch_size
        ops.assert_tensordict_eq(got, sent)
