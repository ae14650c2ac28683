"""Row operations on a plain TensorDict: the same answers as DataProto gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_samples import full_tensordict, jagged, rows_of
from tensordict import NonTensorData, NonTensorStack, TensorDict
from verl_protocol import errors
from verl_protocol import tensordict_ops as ops
from verl_protocol.batch.proto import DataProto
from verl_protocol.errors import InvalidTypeError
from verl_protocol.futures.any_batch import BatchData


def proto(data: TensorDict) -> DataProto:
    return DataProto.from_tensordict(data)


def same(one: TensorDict, other: DataProto | TensorDict) -> bool:
    return proto(one).equals(other if isinstance(other, DataProto) else proto(other))


@pytest.mark.parametrize("num_rows", [1, 2, 4])
def test_concat_of_chunks_is_the_same(num_rows: int) -> None:
    data = full_tensordict(num_rows, k=1)
    ops.assert_tensordict_eq(ops.concat_tensordict(ops.chunk_tensordict(data, num_rows)), data)


def test_parts_may_come_from_a_generator() -> None:
    data = full_tensordict(4, k=1)
    whole = ops.concat_tensordict(part for part in ops.chunk_tensordict(data, 2))  # type: ignore[arg-type]
    ops.assert_tensordict_eq(whole, data)


def test_equal_entries_stay_a_column() -> None:
    data = ops.get_tensordict({"a": torch.zeros(4), "s": ["a", "a", "b", "c"]})
    for parts in (ops.chunk_tensordict(data, 2), [data[:2], data[2:]], ops.chunk_tensordict(data, 4)):
        whole = ops.concat_tensordict(parts)
        assert ops.get(whole, "s") == ["a", "a", "b", "c"]
        assert isinstance(whole.get("s"), NonTensorStack)
        assert proto(whole).non_tensor_batch["s"].tolist() == ["a", "a", "b", "c"]


def test_data_that_collapsed_in_one_part_is_a_column_again() -> None:
    one = TensorDict({"a": torch.zeros(2), "s": NonTensorData("x", batch_size=[2])}, [2])
    two = TensorDict({"a": torch.zeros(2), "s": NonTensorStack("y", "z")}, [2])
    assert ops.get(ops.concat_tensordict([one, two]), "s") == ["x", "x", "y", "z"]


def test_concat_keeps_the_first_part_s_entries_without_rows() -> None:
    whole = ops.concat_tensordict([full_tensordict(1, k=7, metrics={"loss": 1.0}), full_tensordict(1, k=8)])
    assert (ops.get(whole, "k"), ops.get(whole, "metrics")) == (7, {"loss": 1.0})


def test_parts_without_rows_keep_all_metrics() -> None:
    parts = [ops.get_tensordict({}, {"k": rank, "metrics": {"loss": float(rank)}}) for rank in range(2)]
    for function in (ops.concat_tensordict, ops.concat_tensordict_with_none_bsz):
        whole = function(parts)
        assert whole.batch_size == ()
        assert (ops.get(whole, "k"), ops.get(whole, "metrics")) == (0, {"loss": [0.0, 1.0]})
    alone = ops.concat_tensordict_with_none_bsz(parts[:1])
    assert ops.get(alone, "metrics") == {"loss": 0.0}


def test_concat_checks_all_parts_first() -> None:
    with pytest.raises(errors.NothingToConcatError):
        ops.concat_tensordict([])
    with pytest.raises(errors.SchemaError, match="b"):
        ops.concat_tensordict([full_tensordict(1), ops.get_tensordict({"b": torch.zeros(1)})])
    with pytest.raises(InvalidTypeError, match=r"data\[1\] must be a TensorDict, got DataProto"):
        ops.concat_tensordict([full_tensordict(1), proto(full_tensordict(1))])  # type: ignore[list-item]


def test_chunks_are_writable_and_their_own() -> None:
    data = full_tensordict(4, k={"x": 1}).lock_()
    first, second = ops.chunk_tensordict(data, 2)
    first["new"] = torch.zeros(2)
    ops.get(first, "k")["x"] = 5
    assert "new" not in set(second.keys())
    assert ops.get(second, "k") == ops.get(data, "k") == {"x": 1}
    assert first["a"].data_ptr() == data["a"].data_ptr()


def test_uneven_chunks_are_asked_for() -> None:
    data = full_tensordict(2)
    with pytest.raises(errors.UnevenRowsError, match=r"2 rows .* 4 equal chunks"):
        ops.chunk_tensordict(data, 4)
    assert [piece.batch_size[0] for piece in ops.chunk_tensordict(data, 4, uneven=True)] == [1, 1, 0, 0]
    for wrong in (0, -1):
        with pytest.raises(errors.InvalidValueError, match="chunks"):
            ops.chunk_tensordict(data, wrong)


def test_metrics_stay_with_the_first_chunk() -> None:
    pieces = ops.chunk_tensordict(full_tensordict(2, metrics={"loss": 1.0}), 2)
    assert [ops.get(piece, "metrics") for piece in pieces] == [{"loss": 1.0}, None]


def test_chunks_of_data_without_rows() -> None:
    pieces = ops.chunk_tensordict(ops.get_tensordict({}, {"k": 1}), 2)
    assert [(piece.batch_size, ops.get(piece, "k")) for piece in pieces] == [((), 1), ((), 1)]


@pytest.mark.parametrize(
    "index",
    [
        [2, 0],
        (1, 1),
        range(2, -1, -1),
        np.array([0, 2]),
        torch.tensor([True, False, True]),
        slice(1, None),
        [],
    ],
    ids=str,
)
def test_index_select_is_that_of_a_batch(index: Any) -> None:
    data = full_tensordict(3, k=1)
    assert same(ops.index_select_tensor_dict(data, index), proto(data)[index])


def test_wrong_indices_are_named() -> None:
    with pytest.raises(IndexError, match="row 3"):
        ops.index_select_tensor_dict(full_tensordict(3), [3])


def test_union_adds_to_the_first() -> None:
    data = full_tensordict(2, k=1)
    other = ops.get_tensordict({"b": torch.ones(2), "t": ["x", "y"], "s": ["s0", "s1"]}, {"m": [1]})
    assert ops.union_tensor_dict(data, other) is data
    assert (ops.get(data, "t"), ops.get(data, "m"), data["b"].sum()) == (["x", "y"], [1], 2)


def test_union_onto_a_locked_one_gives_another() -> None:
    locked = full_tensordict(2).lock_()
    united = ops.union_tensor_dict(locked, ops.get_tensordict({"b": torch.ones(2)}))
    united["c"] = torch.zeros(2)
    assert "b" in set(united.keys())
    assert "b" not in set(locked.keys())


@pytest.mark.parametrize(
    ("other", "error"),
    [
        (ops.get_tensordict({"new": torch.zeros(4)}), errors.RowCountError),
        (ops.get_tensordict({"new": torch.zeros(2), "a": torch.tensor([0, 5])}), errors.SchemaError),
        (ops.get_tensordict({"new": torch.zeros(2), "s": ["s0", "other"]}), errors.SchemaError),
        (ops.get_tensordict({"new": torch.zeros(2)}, {"k": 2}), errors.MetaConflictError),
    ],
)
def test_union_of_what_differs_adds_nothing(other: TensorDict, error: type[Exception]) -> None:
    data = full_tensordict(2, k=1)
    with pytest.raises(error):
        ops.union_tensor_dict(data, other)
    ops.assert_tensordict_eq(data, full_tensordict(2, k=1))


@pytest.mark.parametrize(
    "value",
    [torch.tensor([1.0, float("nan")]), jagged([3, 5]), [{"p": np.zeros(3)}, {"p": torch.ones(3)}]],
    ids=str,
)
def test_union_with_an_equal_entry_is_fine(value: Any) -> None:
    data = ops.get_tensordict({"v": value})
    again = ops.get_tensordict({"v": value.clone() if isinstance(value, torch.Tensor) else list(value)})
    assert set(ops.union_tensor_dict(data, again).keys()) == {"v"}


def test_iterator_is_that_of_a_batch() -> None:
    data = full_tensordict(4, k=1)
    got = [ops.get(piece, "s") for piece in ops.make_iterator(data, 2, 2)]
    assert got == [["s0", "s1"], ["s2", "s3"]] * 2
    shuffled: dict[str, Any] = {"seed": 3, "dataloader_kwargs": {"shuffle": True}}
    ours = [piece["a"].tolist() for piece in ops.make_iterator(data, 2, 2, **shuffled)]
    theirs = [piece.batch["a"].tolist() for piece in proto(data).make_iterator(2, 2, **shuffled)]
    assert ours == theirs
    with pytest.raises(errors.UnevenRowsError):
        ops.make_iterator(data, 3, 1)
    assert [len(piece) for piece in ops.make_iterator(data, 3, 1, drop_last=False)] == [3, 1]


@pytest.mark.parametrize(("num_rows", "divisor", "expected"), [(3, 4, 1), (3, 8, 5), (4, 4, 0), (0, 4, 0)])
def test_padding_is_known_and_undone(num_rows: int, divisor: int, expected: int) -> None:
    data = full_tensordict(num_rows, metrics={"loss": 1.0})
    padded, pad_size = ops.pad_to_divisor(data, divisor)
    assert pad_size == expected
    assert padded["a"].tolist() == [row % max(num_rows, 1) for row in range(num_rows + expected)]
    assert ops.get(padded, "metrics") == {"loss": 1.0}
    assert ops.get(padded, "s")[:num_rows] == ops.get(data, "s")
    ops.assert_tensordict_eq(ops.unpad(padded, pad_size), data)
    assert data.batch_size == (num_rows,)


def test_contiguous_makes_every_tensor_so() -> None:
    inner = TensorDict({"t": torch.arange(6).view(2, 3).t()}, [3])
    data = TensorDict({"t": torch.arange(6).view(2, 3).t(), "n": inner, "s": NonTensorStack(*"abc")}, [3])
    got = ops.contiguous(data)
    assert got["t"].is_contiguous()
    assert got["n", "t"].is_contiguous()
    ops.assert_tensordict_eq(got, data)


def test_rows_become_columns_by_a_fixed_rule() -> None:
    one = ops.list_of_dict_to_tensordict(
        [{"x": torch.arange(3), "r": torch.tensor(1.0), "s": "a", "n": np.int64(3)}]
    )
    two = ops.list_of_dict_to_tensordict([{"x": torch.arange(3)}, {"x": torch.arange(4)}])
    assert (one["x"].is_nested, two["x"].is_nested, one["r"].is_nested) == (True, True, False)
    assert rows_of(two["x"]) == [[0, 1, 2], [0, 1, 2, 3]]
    assert (ops.get(one, "s"), ops.get(one, "n")) == (["a"], [3])
    dense = ops.list_of_dict_to_tensordict([{"x": torch.arange(3)}] * 2, ragged=())
    assert dense["x"].shape == (2, 3)


@pytest.mark.parametrize(
    ("rows", "options", "error"),
    [
        ([], {}, errors.NothingToConcatError),
        ([{"x": 1}, {"y": 1}], {}, errors.KeyConflictError),
        ([{"x": torch.zeros(1)}, {"x": None}], {}, errors.ColumnError),
        ([{"x": torch.zeros(1)}, {"x": torch.zeros(2)}], {"ragged": ()}, errors.ColumnError),
        ([{"x": torch.zeros(1, 2)}, {"x": torch.zeros(2, 2)}], {}, errors.ColumnError),
    ],
)
def test_rows_that_make_no_column(rows: list[Any], options: dict[str, Any], error: type[Exception]) -> None:
    with pytest.raises(error):
        ops.list_of_dict_to_tensordict(rows, **options)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (full_tensordict(3, k=1), "batch sizes"),
        (ops.get_keys(full_tensordict(2, k=1), ["a", "s", "o", "k"]), r"only one of them has: \['j'\]"),
        (full_tensordict(2, k=2), "entry 'k' differs: 1 and 2"),
        (full_tensordict(2), "only one of them has"),
        (
            ops.assign_non_tensor(full_tensordict(2, k=1), s=["s0", "x"]),
            "column 's' differs first in row 1: 's1' and 'x'",
        ),
        (full_tensordict(2, k=1).set("a", torch.zeros(2)), "column 'a' differs"),
    ],
)
def test_differences_are_named(other: TensorDict, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        ops.assert_tensordict_eq(full_tensordict(2, k=1), other)


def test_every_name_is_there() -> None:
    assert all(callable(getattr(ops, name)) for name in ops.__all__)


@settings(deadline=None, max_examples=40)
@given(
    num_rows=st.integers(1, 6),
    chunks=st.integers(1, 4),
    divisor=st.integers(1, 5),
    index=st.lists(st.integers(0, 5), max_size=6),
)
def test_a_batch_and_a_tensordict_agree(num_rows: int, chunks: int, divisor: int, index: list[int]) -> None:
    data = full_tensordict(num_rows, k={"x": 1}, metrics={"loss": 1.0})
    batch = proto(data)
    pieces, expected = ops.chunk_tensordict(data, chunks, uneven=True), batch.chunk(chunks, uneven=True)
    assert all(map(same, pieces, expected))
    padded, pad_size = ops.pad_to_divisor(data, divisor)
    assert pad_size == -num_rows % divisor
    assert same(
        ops.index_select_tensor_dict(padded, [row % num_rows for row in index]),
        batch[[row % num_rows for row in index]],
    )
    assert BatchData(pieces).concat().batch_size == (num_rows,)
    assert same(BatchData(pieces).concat(), DataProto.concat(expected))
