"""Arguments of the wrong kind: an error that says which and why, and operands that are as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import (
    DataProto,
    all_gather_data_proto,
    balanced_partition,
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
from verl_protocol.columns.checks import jagged_of


def batch(**meta: Any) -> DataProto:
    return DataProto.from_dict({"a": torch.arange(12).view(4, 3)}, {"s": list("wxyz")}, meta)


def wrong(value: Any) -> Any:
    return value


CONSTRUCTIONS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: DataProto.from_dict(wrong([torch.ones(2)])),
        e.InvalidTypeError,
        "tensors must be a dict, got list",
    ),
    (
        lambda: DataProto.from_dict(None, wrong([1])),
        e.InvalidTypeError,
        "non_tensors must be a dict, got list",
    ),
    (
        lambda: DataProto.from_dict(meta_info=wrong(3)),
        e.InvalidTypeError,
        "meta_info must be a dict, got int",
    ),
    (lambda: DataProto(None, wrong([1])), e.InvalidTypeError, "non_tensor_batch must be a dict, got list"),
    (lambda: DataProto(meta_info=wrong([1])), e.InvalidTypeError, "meta_info must be a dict, got list"),
    (
        lambda: DataProto.from_single_dict(wrong(None)),
        e.InvalidTypeError,
        "data must be a dict, got NoneType",
    ),
    (lambda: DataProto.from_tensordict(wrong({"a": 1})), e.InvalidTypeError, "got dict"),
    (
        lambda: DataProto.from_dict(wrong({5: torch.ones(2)})),
        e.InvalidTypeError,
        "named by a string .* got 5",
    ),
    (lambda: DataProto.from_dict(None, wrong({5: [1]})), e.InvalidTypeError, "named by a string .* got 5"),
    (lambda: DataProto.from_dict({"a": torch.eye(2).to_sparse()}), e.ColumnError, "'a': rows of layout"),
    (lambda: DataProto.from_rows(wrong({"x": 1})), e.InvalidTypeError, "one per row, got dict"),
    (lambda: DataProto.from_rows(wrong([{5: 1}])), e.InvalidTypeError, "got 5"),
    (
        lambda: DataProto.from_rows(wrong(None)),
        e.InvalidTypeError,
        "a list of dicts, one per row, got NoneType",
    ),
    (
        lambda: DataProto.from_rows([{"xy": 1}], ragged="xy"),
        e.ColumnError,
        "'xy': only rows that",
    ),
    (lambda: DataProto.from_rows([{"x": torch.ones(2)}], ragged={"x": 5}), e.ColumnError, "'x' .* got 5"),
    (
        lambda: DataProto.from_rows([{"x": torch.tensor(1)}], ragged=["x"]),
        e.ColumnError,
        "'x' counts from",
    ),
    (
        lambda: list_of_dict_to_dict_of_list(wrong([1])),
        e.InvalidTypeError,
        "number 0 must be a dict, got int",
    ),
    (lambda: serialize_tensordict(wrong({"a": 1})), e.InvalidTypeError, "td must be a TensorDict"),
    (lambda: ops.get_tensordict(wrong([1])), e.InvalidTypeError, "tensor_dict must be a dict, got list"),
    (lambda: ops.get_tensordict(wrong({5: [1]})), e.InvalidTypeError, "got 5"),
    (lambda: ops.assert_tensordict_eq(wrong(None), wrong(None)), e.InvalidTypeError, "td1 must be"),
    (
        lambda: ops.concat_tensordict(wrong(None)),
        e.InvalidTypeError,
        "data must be a list of TensorDicts, got",
    ),
    (lambda: ops.contiguous(wrong({"a": 1})), e.InvalidTypeError, "data must be a TensorDict"),
    (lambda: ops.maybe_fix_3d_position_ids(wrong({})), e.InvalidTypeError, "data must be a TensorDict"),
    (
        lambda: ops.concat_tensordict(wrong(batch().to_tensordict())),
        e.InvalidTypeError,
        "put it in a list",
    ),
    (lambda: even_sizes(-3, 2), e.InvalidValueError, "num_rows must be a whole number of at least 0, got -3"),
    (lambda: collate_fn(wrong([1])), e.InvalidTypeError, "'int'"),
    (lambda: pad_dataproto_to_divisor(wrong(None), 2), e.InvalidTypeError, "'NoneType'"),
    (lambda: unpad_dataproto(wrong([1]), 1), e.InvalidTypeError, "'list'"),
    (lambda: fold_batch_dim(wrong([1]), 1), e.InvalidTypeError, "'list'"),
    (lambda: unfold_batch_dim(wrong([1])), e.InvalidTypeError, "'list'"),
    (lambda: DataProto.concat(wrong(None)), e.InvalidTypeError, "'NoneType'"),
    (lambda: collate_fn(wrong([batch()])), e.InvalidTypeError, r"got \['DataProto'\]; concat joins batches"),
]

ITEMS: dict[str, Callable[[Any], object]] = {
    "concat": lambda item: DataProto.concat([batch(), item]),
    "concat of one": lambda item: DataProto.concat(item),
    "union": lambda item: batch().union(item),
    "pad": lambda item: pad_dataproto_to_divisor(item, 2),
    "unpad": lambda item: unpad_dataproto(item, 0),
    "fold": lambda item: fold_batch_dim(item, 1),
    "unfold": lambda item: unfold_batch_dim(item),
    "gather": lambda item: all_gather_data_proto(item),
}


@pytest.mark.parametrize("use", ITEMS)
def test_a_row_where_a_batch_is_wanted_says_how_to_get_a_batch_of_it(use: str) -> None:
    with pytest.raises(e.InvalidTypeError, match=r"got \[.*'DataProtoItem'\]; .* batch\[i : i \+ 1\]"):
        ITEMS[use](batch()[0])


ONES: list[tuple[Callable[[DataProto], object], str]] = [
    (lambda one: one[1], "the batch has 1 row$"),
    (lambda one: one[[True, False]], "2 entries for 1 row:"),
    (lambda one: batch()[[True]], "1 entry for 4 rows:"),
    (lambda one: one.chunk(2), "1 row cannot be cut into 2 equal chunks"),
    (lambda one: balanced_partition([1], 2, equal_size=True), "1 row cannot be spread over 2 parts"),
    (lambda one: one.make_iterator(2, 1), "1 row cannot be cut into mini-batches .* leave 1 row out"),
    (lambda one: fold_batch_dim(one, 2), "1 row cannot be cut into 2 groups"),
    (lambda one: one.sample_level_repeat([1, 1]), "1 row, 2 counts$"),
    (lambda one: batch().union(one), "4 rows and 1;"),
    (lambda one: unpad_dataproto(one, 2), "2 pad rows off a batch of 1 row$"),
    (lambda one: one[:0].padding(1), "add 1 pad row to"),
]


@pytest.mark.parametrize(("use", "message"), ONES)
def test_one_row_is_one_row_in_messages(use: Callable[[DataProto], object], message: str) -> None:
    with pytest.raises(e.PortableError, match=message):
        use(batch()[:1])


FLAGS: dict[str, Callable[[DataProto, Any], object]] = {
    "auto_padding": lambda d, no: DataProto.from_dict({"a": torch.ones(2)}, auto_padding=no),
    "uneven": lambda d, no: d.chunk(2, uneven=no),
    "interleave": lambda d, no: d.repeat(2, interleave=no),
    "copy_objects": lambda d, no: d.repeat(2, copy_objects=no),
    "deepcopy": lambda d, no: d.select(deepcopy=no),
    "missing_ok": lambda d, no: d.select(missing_ok=no),
    "objects": lambda d, no: d.to("cpu", objects=no),
    "drop_last": lambda d, no: d.make_iterator(2, 1, drop_last=no),
    "shuffle": lambda d, no: d.make_iterator(2, 1, dataloader_kwargs={"shuffle": no}),
    "equal_size": lambda d, no: balanced_partition([1, 2], 2, equal_size=no),
    "allow_pickle": lambda d, no: d.save_to_disk("never written", allow_pickle=no),
}


@pytest.mark.parametrize("value", ["no", 0, None], ids=repr)
@pytest.mark.parametrize("argument", FLAGS)
def test_a_flag_is_a_bool(argument: str, value: Any) -> None:
    if argument == "drop_last" and value is None:
        value = "None"
    with pytest.raises(e.InvalidTypeError, match=f"^{argument} must be True or False, got {value!r}$"):
        FLAGS[argument](batch(), value)


def test_flags_of_numpy_are_bools() -> None:
    data = DataProto.from_dict({"a": torch.arange(3)}, auto_padding=wrong(np.True_))
    assert [len(piece) for piece in data.chunk(2, uneven=wrong(np.False_))] == [2, 1]
    assert data.is_padding_enabled() is True


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        (torch.uint8, -1),
        (torch.uint8, 256),
        (torch.int64, 0.5),
        (torch.int64, float("nan")),
        (torch.int32, float("inf")),
        (torch.int32, 2**31),
        (torch.bool, 2),
    ],
    ids=str,
)
def test_pad_values_that_the_dtype_cannot_hold_are_an_error(dtype: torch.dtype, value: float) -> None:
    parts = [DataProto.from_dict({"a": torch.zeros(1, width, dtype=dtype)}) for width in (2, 3)]
    with pytest.raises(e.ColumnError, match=rf"'a'.* {str(dtype)[6:]} cannot hold {value!r}"):
        DataProto.concat(parts, pad={"a": value})


@pytest.mark.parametrize("name", ["non_tensor_batch", "meta_info"])
def test_containers_set_later_are_checked_as_those_given_first(name: str) -> None:
    for holder in (batch(k=1), batch(k=1)[0]):
        setattr(holder, name, None)
        assert getattr(holder, name) == {}
        with pytest.raises(e.InvalidTypeError, match=f"{name} must be a dict, got list"):
            setattr(holder, name, [1])
        assert getattr(holder, name) == {}
    data = batch(k=1)
    setattr(data, name, None)
    assert len(DataProto.concat(data.chunk(2))) == 4


@pytest.mark.parametrize(("call", "error", "message"), CONSTRUCTIONS)
def test_nothing_is_made_of_the_wrong_kind(
    call: Callable[[], object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


SHUFFLE = {"shuffle": True}

CALLS: list[tuple[Callable[[DataProto], object], type[Exception], str]] = [
    (lambda d: d.select(wrong(5)), e.InvalidTypeError, "got 5"),
    (lambda d: d.pop(wrong([["a"]])), e.InvalidTypeError, r"got \['a'\]"),
    (lambda d: d.rename("a", wrong(5)), e.InvalidTypeError, "got 5"),
    (lambda d: d.rename(["a"], wrong([5])), e.InvalidTypeError, "got 5"),
    (lambda d: d.rename(["a", "a"], ["b", "c"]), e.InvalidValueError, "each old key needs one new key"),
    (lambda d: d.to("nodevice"), e.DeviceNameError, "got 'nodevice'"),
    (lambda d: d.to(wrong(None)), e.DeviceNameError, "got None"),
    (lambda d: d.make_iterator(2, 1, wrong("x"), SHUFFLE), e.InvalidArgumentError, "seed='x'"),
    (
        lambda d: d.make_iterator(2, 1, None, {**SHUFFLE, "generator": 5}),
        e.InvalidArgumentError,
        "generator=5",
    ),
    (
        lambda d: d.make_iterator(2, 1, 1, {**SHUFFLE, "generator": torch.Generator()}),
        e.InvalidArgumentError,
        "not both",
    ),
    (
        lambda d: d.make_iterator(2, 1, None, wrong([1])),
        e.InvalidTypeError,
        "dataloader_kwargs must be a dict",
    ),
    (lambda d: d.sample_level_repeat(wrong(3)), e.InvalidValueError, "4 rows, 1 count"),
    (
        lambda d: d.union(DataProto.from_dict({"q": torch.ones(4, device="meta")})),
        e.ColumnError,
        "'q' on meta",
    ),
    (
        lambda d: DataProto.concat([d, d], merge=wrong({"no": "median"})),
        e.InvalidValueError,
        "'median' for 'no'",
    ),
    (
        lambda d: DataProto.concat([batch(k="x")] * 2, merge={"k": "mean"}),
        e.InvalidValueError,
        "rule 'mean' does not fit the values .* got {'k'",
    ),
    (lambda d: d.union(batch(step=2)), e.MetaConflictError, "the other has 2; drop the key from one$"),
    (lambda d: DataProto.concat([d, batch(step=2)]), e.MetaConflictError, "drop the key, or declare how to"),
    (
        lambda d: DataProto.concat([DataProto.from_dict({"q": torch.ones(2, *more)}) for more in ((), (3,))]),
        e.SchemaError,
        r"part 1 has \(3,\)$",
    ),
    (lambda d: d.group_by(wrong(["a"])), e.InvalidTypeError, r"got \['a'\]"),
    (lambda d: d.make_iterator(2, 1, 2**70, SHUFFLE), e.InvalidArgumentError, "at most 64 bits"),
    (lambda d: d[[2**70]], e.RowOutOfRangeError, "does not exist"),
    (lambda d: d[2**70], e.RowOutOfRangeError, "does not exist"),
    (lambda d: d[[-(2**70)]], e.RowOutOfRangeError, "row -9.* does not exist"),
    (lambda d: d[np.array([2**64 - 1], np.uint64)], e.RowOutOfRangeError, "row 9.* does not exist"),
    (lambda d: d[torch.tensor([2**64 - 1], dtype=torch.uint64)], e.RowOutOfRangeError, "row 9.* does not"),
    (lambda d: DataProto.concat([d, d], pad=wrong({"a": "x"})), e.ColumnError, "must be a number, got 'x'"),
    (lambda d: DataProto.concat([d, d], pad={"a": 0}, pad_side=wrong("middle")), e.ColumnError, "'middle'"),
    (
        lambda d: DataProto.from_dict(None, {"g": [([1],)]}).group_by("g"),
        e.ColumnError,
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
    with pytest.raises(e.ColumnError, match="jagged ones need no padding"):
        DataProto.concat([data, data], pad={"x": 0})


def test_rows_of_different_dtypes_are_not_converted() -> None:
    rows = [{"x": torch.ones(2)}, {"x": torch.ones(2, dtype=torch.int64)}]
    with pytest.raises(e.SchemaError, match="'x' differs in its dtype: row 0"):
        DataProto.from_rows(rows)
    with pytest.raises(e.SchemaError, match="dtype"):
        ops.nested_tensor_from_tensor_list([row["x"] for row in rows])


def test_the_keys_of_fill_are_columns() -> None:
    data = DataProto.from_rows([{"x": 1}], fill={"y": torch.zeros(2)})
    assert data.tensor("y").tolist() == [[0.0, 0.0]]
    assert DataProto.from_rows([], fill={"y": torch.zeros(2)}).batch is None


def test_what_is_no_list_in_the_place_of_a_column_is_named() -> None:
    data = batch()
    data.non_tensor_batch["bad"] = wrong("abcd")
    for call in (lambda: data[[0]], lambda: data.chunk(2), data.to_tensordict):
        with pytest.raises(e.ColumnError, match="'bad': a non-tensor column is an array or a list"):
            call()


# --- ways out: what a message names can be done -----------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "way"), [(np.arange(2), r"torch\.from_numpy\("), ([1, 2], r"torch\.tensor\(")]
)
def test_rows_that_are_no_tensor_are_told_how_to_become_one(value: Any, way: str) -> None:
    with pytest.raises(e.ColumnError, match=f"column 'a': a tensor column must be .* {way}"):
        DataProto.from_dict(tensors={"a": value})


def test_a_column_of_the_other_kind_is_told_with_its_accessor() -> None:
    with pytest.raises(e.UnknownKeyError, match=r"it is a non-tensor column: \.column\('s'\)"):
        batch().tensor("s")
    with pytest.raises(e.UnknownKeyError, match=r"it is a tensor column: \.tensor\('a'\)"):
        batch().column("a")
    for read in (batch().tensor, batch().column):
        with pytest.raises(e.UnknownKeyError, match=r"there are \['[as]'\]$"):
            read("none")


def test_widths_that_differ_are_told_every_way_out() -> None:
    other = DataProto.from_dict({"a": torch.ones(1, 5, dtype=torch.int64)}, {"s": ["v"]})
    with pytest.raises(e.SchemaError, match=r"row shape.*pad it .* where it is made.*jagged.*pad=\{'a': 0\}"):
        DataProto.concat([batch(), other])


def test_an_item_is_not_assigned_and_the_message_says_where_columns_are() -> None:
    data: Any = batch()
    with pytest.raises(TypeError, match=r"data\.batch\['z'\] = .*data\.non_tensor_batch\['z'\] = .*union"):
        data["z"] = torch.ones(4)
    assert "z" not in data
