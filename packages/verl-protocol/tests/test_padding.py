"""Padding is known, reversible, and reaches neither metrics nor meta_info nor the caller's batch."""

from __future__ import annotations

import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto, DataProtoConfig, pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol.columns.checks import jagged_of


def batch(num_rows: int = 3) -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(1, num_rows + 1)},
        {
            "s": list("abcdefgh")[:num_rows],
            "n": np.arange(1.0, num_rows + 1),
            "u": np.array(["x"] * num_rows),
        },
        {"metrics": {"loss": 1.0}, "t": np.arange(2), "x": float("nan")},
    )


def test_rows_are_repeated_from_the_start_and_marked() -> None:
    data = batch()
    padded, pad_size = pad_dataproto_to_divisor(data, 8)
    assert pad_size == 5
    assert padded.batch["a"].tolist() == [1, 2, 3, 1, 2, 3, 1, 2]
    assert padded.non_tensor_batch["s"].tolist() == list("abcabcab")
    assert padded.pad_mask.tolist() == [False] * 3 + [True] * 5
    assert padded.meta_info is not data.meta_info
    assert padded.meta_info["metrics"] == {"loss": 1.0}
    assert set(padded.meta_info) == {"metrics", "t", "x"}
    assert unpad_dataproto(padded, pad_size).equals(data)
    assert len(data) == 3


@pytest.mark.parametrize(
    ("policy", "tensor", "objects", "numbers", "strings"),
    [
        ("repeat", [1, 2, 3, 1, 2], ["a", "b"], [1.0, 2.0], ["x", "x"]),
        ("last", [1, 2, 3, 3, 3], ["c", "c"], [3.0, 3.0], ["x", "x"]),
        ("zeros", [1, 2, 3, 0, 0], [None, None], [0.0, 0.0], ["", ""]),
    ],
)
def test_pad_rows_follow_the_policy(
    policy: Any, tensor: Any, objects: Any, numbers: Any, strings: Any
) -> None:
    padded, _ = pad_dataproto_to_divisor(batch(), 5, policy)
    assert padded.batch["a"].tolist() == tensor
    assert padded.batch["a"].dtype == torch.int64
    assert padded.non_tensor_batch["s"][3:].tolist() == objects
    assert padded.non_tensor_batch["n"][3:].tolist() == numbers
    assert padded.non_tensor_batch["u"][3:].tolist() == strings


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.uint16, torch.complex64]
)
def test_zero_rows_have_the_dtype_of_their_column(dtype: torch.dtype) -> None:
    data = DataProto.from_dict(
        {"a": torch.ones(3, 2).to(dtype), "j": jagged_of([torch.ones(2, 1).to(dtype)] * 3, 1)}
    )
    padded, _ = pad_dataproto_to_divisor(data, 4, "zeros")
    assert padded.batch["a"].dtype == dtype
    assert padded.batch["a"][3].float().tolist() == [0.0, 0.0] if not dtype.is_complex else True
    assert padded.batch["j"].dtype == dtype
    assert padded.batch["j"].offsets().tolist() == [0, 2, 4, 6, 6]


def test_the_mask_can_be_a_column() -> None:
    padded, _ = pad_dataproto_to_divisor(batch(), 4, mask_key="is_pad")
    assert padded.batch["is_pad"].tolist() == [False, False, False, True]
    for key in ("a", "s"):
        with pytest.raises(ValueError, match=f"'{key}'.* cannot name both a column and the pad mask"):
            pad_dataproto_to_divisor(batch(), 4, mask_key=key)
    again, pad_size = pad_dataproto_to_divisor(padded.select(["a"]), 6)
    assert (pad_size, again.pad_mask.tolist()) == (2, [False, False, False, True, True, True])


def test_the_mask_goes_where_its_rows_go() -> None:
    padded, _ = pad_dataproto_to_divisor(batch(), 4)
    mask = [False, False, False, True]
    assert padded[::-1].pad_mask.tolist() == mask[::-1]
    assert [piece.pad_mask.tolist() for piece in padded.chunk(2)] == [mask[:2], mask[2:]]
    assert padded.repeat(2).pad_mask.tolist() == [False] * 6 + [True] * 2
    assert DataProto.concat([padded, batch()]).pad_mask.tolist() == [*mask, False, False, False]
    assert pickle.loads(pickle.dumps(padded)).pad_mask.tolist() == mask
    assert [b.pad_mask.tolist() for b in padded.make_iterator(2, 1)] == [mask[:2], mask[2:]]


def test_a_batch_that_divides_is_not_padded() -> None:
    data = batch(4)
    padded, pad_size = pad_dataproto_to_divisor(data, 2)
    assert pad_size == 0
    assert padded is not data
    assert padded.equals(data)
    assert (
        len(pad_dataproto_to_divisor(DataProto.from_dict({"a": torch.zeros(298)}), math.lcm(8, 128))[0])
        == 384
    )


def test_no_rows_need_no_padding_and_have_none_to_repeat() -> None:
    empty = DataProto.from_dict({"a": torch.zeros(0, 3)}, {"s": []})
    padded, pad_size = pad_dataproto_to_divisor(empty, 4)
    assert (len(padded), pad_size) == (0, 0)
    pieces = padded.chunk(4)
    assert [len(piece) for piece in pieces] == [0] * 4
    assert all(tuple(piece.batch["a"].shape) == (0, 3) for piece in pieces)
    empty.padding(0)
    with pytest.raises(ValueError, match="without rows"):
        empty.padding(2)


@pytest.mark.parametrize(("candidate", "expected"), [("", [1, 2, 3, 3, 3]), ("first", [1, 2, 3, 1, 1])])
def test_padding_in_place_adds_first_or_last_rows(candidate: str, expected: list[int]) -> None:
    data = batch()
    meta, columns = data.meta_info, data.non_tensor_batch
    data.padding(2, candidate)
    assert data.batch["a"].tolist() == expected
    assert data.meta_info["metrics"] == {"loss": 1.0}
    assert meta["metrics"] == {"loss": 1.0}
    assert len(columns["s"]) == 3


def test_wrong_sizes_and_policies_are_errors() -> None:
    data = batch()
    with pytest.raises(ValueError, match="cannot take 4 pad rows off a batch of 3 rows"):
        unpad_dataproto(data, 4)
    with pytest.raises(ValueError, match="pad_size must be a whole number of at least 0"):
        unpad_dataproto(data, -1)
    with pytest.raises(ValueError, match="'repeat', 'last' or 'zeros', got 'mirror'"):
        pad_dataproto_to_divisor(data, 2, "mirror")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="padding_size"):
        data.padding(-1)


def test_auto_padding_is_a_private_flag() -> None:
    data = DataProto.from_dict({"a": torch.arange(4)}, auto_padding=True)
    assert data.is_padding_enabled()
    assert data.meta_info == {}
    assert set(data.to_tensordict().keys()) == {"a"}
    kept = [
        data[1:],
        data[[0]],
        data.chunk(2)[1],
        data.repeat(2),
        data.select("a"),
        pickle.loads(pickle.dumps(data)),
    ]
    assert all(result.is_padding_enabled() for result in kept)


def test_auto_padding_for_all_batches_follows_class_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    data = DataProto.from_dict({"a": torch.arange(4)})
    for value, expected in {"1": True, "true": True, "TRUE": True, "0": False, "": False}.items():
        monkeypatch.setenv("VERL_AUTO_PADDING", value)
        assert DataProtoConfig.auto_padding is expected
        assert data.is_padding_enabled() is expected
    monkeypatch.setattr(type(DataProtoConfig), "_auto_padding", None)
    DataProtoConfig.auto_padding = True
    try:
        assert [len(piece) for piece in data.chunk(3)] == [2, 1, 1]
    finally:
        DataProtoConfig._auto_padding = None
    with pytest.raises(TypeError, match="auto_padding must be True or False, got 'yes'"):
        DataProtoConfig.auto_padding = "yes"  # type: ignore[assignment]
