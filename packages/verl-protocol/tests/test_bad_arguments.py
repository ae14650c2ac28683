"""Arguments of the wrong kind: an error that says which and why, and operands that are as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from verl_protocol import (
    DataProto,
    collate_fn,
    even_sizes,
    fold_batch_dim,
    list_of_dict_to_dict_of_list,
    pad_dataproto_to_divisor,
    serialize_tensordict,
    unfold_batch_dim,
    unpad_dataproto,
)
from verl_protocol import errors as e
from verl_protocol import tensordict_ops as ops
from verl_protocol.columns import jagged_of


def batch(**meta: Any) -> DataProto:
    return DataProto.from_dict({"a": torch.arange(12).view(4, 3)}, {"s": list("wxyz")}, meta)


def wrong(value: Any) -> Any:
    return value


CONSTRUCTIONS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: DataProto.from_dict(wrong([torch.ones(2)])),
        e.NotADictError,
        "tensors must be a dict, got list",
    ),
    (lambda: DataProto.from_dict(None, wrong([1])), e.NotADictError, "non_tensors must be a dict, got list"),
    (lambda: DataProto.from_dict(meta_info=wrong(3)), e.NotADictError, "meta_info must be a dict, got int"),
    (lambda: DataProto(None, wrong([1])), e.NotADictError, "non_tensor_batch must be a dict, got list"),
    (lambda: DataProto(meta_info=wrong([1])), e.NotADictError, "meta_info must be a dict, got list"),
    (lambda: DataProto.from_single_dict(wrong(None)), e.NotADictError, "data must be a dict, got NoneType"),
    (lambda: DataProto.from_tensordict(wrong({"a": 1})), e.NotATensorDictError, "got dict"),
    (lambda: DataProto.from_dict(wrong({5: torch.ones(2)})), e.KeyTypeError, "named by a string .* got 5"),
    (lambda: DataProto.from_dict(None, wrong({5: [1]})), e.KeyTypeError, "named by a string .* got 5"),
    (lambda: DataProto.from_dict({"a": torch.eye(2).to_sparse()}), e.ColumnTypeError, "'a': rows of layout"),
    (lambda: DataProto.from_rows(wrong({"x": 1})), e.NotADictError, r"rows\[0\] must be a dict, got str"),
    (lambda: DataProto.from_rows([{"x": torch.ones(2)}], ragged={"x": 5}), e.RaggedDimError, "'x' .* got 5"),
    (
        lambda: DataProto.from_rows([{"x": torch.tensor(1)}], ragged=["x"]),
        e.RaggedDimError,
        "'x' counts from",
    ),
    (lambda: list_of_dict_to_dict_of_list(wrong([1])), e.NotADictError, "number 0 must be a dict, got int"),
    (lambda: serialize_tensordict(wrong({"a": 1})), e.NotATensorDictError, "td must be a TensorDict"),
    (lambda: ops.contiguous(wrong({"a": 1})), e.NotATensorDictError, "data must be a TensorDict"),
    (lambda: ops.maybe_fix_3d_position_ids(wrong({})), e.NotATensorDictError, "data must be a TensorDict"),
    (
        lambda: ops.concat_tensordict(wrong(batch().to_tensordict())),
        e.LoneTensorDictError,
        "put it in a list",
    ),
    (lambda: even_sizes(-3, 2), e.InvalidCountError, "num_rows must be a whole number of at least 0, got -3"),
    (lambda: collate_fn(wrong([1])), e.NotBatchesError, "'int'"),
    (lambda: pad_dataproto_to_divisor(wrong(None), 2), e.NotBatchesError, "'NoneType'"),
    (lambda: unpad_dataproto(wrong([1]), 1), e.NotBatchesError, "'list'"),
    (lambda: fold_batch_dim(wrong([1]), 1), e.NotBatchesError, "'list'"),
    (lambda: unfold_batch_dim(wrong([1])), e.NotBatchesError, "'list'"),
    (lambda: DataProto.concat(wrong(None)), e.NotBatchesError, "'NoneType'"),
]


@pytest.mark.parametrize(("call", "error", "message"), CONSTRUCTIONS)
def test_nothing_is_made_of_the_wrong_kind(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


SHUFFLE = {"shuffle": True}

CALLS: list[tuple[Callable[[DataProto], object], type[Exception], str]] = [
    (lambda d: d.select(wrong(5)), e.KeyTypeError, "got 5"),
    (lambda d: d.pop(wrong([["a"]])), e.KeyTypeError, r"got \['a'\]"),
    (lambda d: d.rename("a", wrong(5)), e.KeyTypeError, "got 5"),
    (lambda d: d.rename(["a"], wrong([5])), e.KeyTypeError, "got 5"),
    (lambda d: d.rename(["a", "a"], ["b", "c"]), e.KeyListError, "each old key needs one new key"),
    (lambda d: d.to("nodevice"), e.DeviceNameError, "got 'nodevice'"),
    (lambda d: d.to(wrong(None)), e.DeviceNameError, "got None"),
    (lambda d: d.make_iterator(2, 1, wrong("x"), SHUFFLE), e.ShuffleSourceError, "seed='x'"),
    (lambda d: d.make_iterator(2, 1, None, {**SHUFFLE, "generator": 5}), e.ShuffleSourceError, "generator=5"),
    (
        lambda d: d.make_iterator(2, 1, 1, {**SHUFFLE, "generator": torch.Generator()}),
        e.ShuffleSourceError,
        "not both",
    ),
    (lambda d: d.make_iterator(2, 1, None, wrong([1])), e.NotADictError, "dataloader_kwargs must be a dict"),
    (lambda d: d.sample_level_repeat(wrong(3)), e.RepeatCountsError, "4 rows, 1 count"),
    (
        lambda d: d.union(DataProto.from_dict({"q": torch.ones(4, device="meta")})),
        e.DeviceMixError,
        "'q' on meta",
    ),
    (
        lambda d: DataProto.concat([d, d], merge=wrong({"no": "median"})),
        e.UnknownRuleError,
        "'median' for 'no'",
    ),
    (lambda d: DataProto.concat([d, d], pad=wrong({"a": "x"})), e.PadValueError, "must be a number, got 'x'"),
    (lambda d: DataProto.concat([d, d], pad={"a": 0}, pad_side=wrong("middle")), e.PadValueError, "'middle'"),
    (
        lambda d: DataProto.from_dict(None, {"g": [([1],)]}).group_by("g"),
        e.FoldError,
        "'g': cannot group by tuple",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), CALLS)
@pytest.mark.parametrize("built", [False, True], ids=["columns", "TensorDict"])
def test_a_refused_call_changes_nothing(
    call: Callable[[DataProto], object], error: type[Exception], message: str, built: bool
) -> None:
    data = batch(step=1)
    held = data.batch if built else None
    with pytest.raises(error, match=message):
        call(data)
    assert data.equals(batch(step=1))
    assert not built or data.batch is held


def test_jagged_columns_are_not_widened() -> None:
    data = DataProto.from_dict({"x": jagged_of([torch.ones(2), torch.ones(3)], 1)})
    with pytest.raises(e.PadValueError, match="jagged ones need no padding"):
        DataProto.concat([data, data], pad={"x": 0})


def test_rows_of_different_dtypes_are_not_converted() -> None:
    rows = [{"x": torch.ones(2)}, {"x": torch.ones(2, dtype=torch.int64)}]
    with pytest.raises(e.ColumnMismatchError, match="'x' differs in its dtype: row 0"):
        DataProto.from_rows(rows)
    with pytest.raises(e.ColumnMismatchError, match="dtype"):
        ops.nested_tensor_from_tensor_list([row["x"] for row in rows])


def test_the_keys_of_fill_are_columns() -> None:
    data = DataProto.from_rows([{"x": 1}], fill={"y": torch.zeros(2)})
    assert data.tensor("y").tolist() == [[0.0, 0.0]]
    assert DataProto.from_rows([], fill={"y": torch.zeros(2)}).batch is None


def test_a_list_put_in_the_place_of_a_column_is_named() -> None:
    data = batch()
    data.non_tensor_batch["bad"] = wrong([1, 2, 3, 4])
    for call in (lambda: data[[0]], lambda: data.chunk(2), data.to_tensordict):
        with pytest.raises(e.ColumnTypeError, match="'bad': a non-tensor column must be an array"):
            call()
