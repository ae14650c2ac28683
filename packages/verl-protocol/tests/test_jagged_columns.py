"""Jagged columns keep values, offsets and ragged dimension through every operation."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from verl_protocol import DataProto, collate_fn, equal, pad_dataproto_to_divisor
from verl_protocol.columns.checks import jagged_of
from verl_protocol.columns.jagged import build_jagged, concat_jagged, jagged_parts, ragged_dim, take_jagged

LENGTHS = {"equal": [3, 3, 3, 3], "unequal": [3, 0, 2, 5], "all empty": [0, 0, 0, 0]}

OPERATIONS: dict[str, tuple[Callable[[DataProto], DataProto], list[int]]] = {
    "pickle": (lambda d: pickle.loads(pickle.dumps(d)), [0, 1, 2, 3]),
    "deepcopy": (copy.deepcopy, [0, 1, 2, 3]),
    "first chunk": (lambda d: d.chunk(2)[0], [0, 1]),
    "second chunk": (lambda d: d.chunk(2)[1], [2, 3]),
    "concat": (lambda d: DataProto.concat(d.chunk(2)), [0, 1, 2, 3]),
    "concat after index": (lambda d: DataProto.concat([d[[3, 1]], d[2:]]), [3, 1, 2, 3]),
    "one row": (lambda d: d[[0]], [0]),
    "list": (lambda d: d[[2, 0]], [2, 0]),
    "mask": (lambda d: d[torch.tensor([True, False, True, False])], [0, 2]),
    "stride": (lambda d: d[::2], [0, 2]),
    "backwards": (lambda d: d[::-1], [3, 2, 1, 0]),
    "nothing": (lambda d: d[:0], []),
    "repeat": (lambda d: d.repeat(2), [0, 0, 1, 1, 2, 2, 3, 3]),
    "tile": (lambda d: d.repeat(2, interleave=False), [0, 1, 2, 3, 0, 1, 2, 3]),
    "repeat by row": (lambda d: d.sample_level_repeat([0, 2, 0, 1]), [1, 1, 3]),
    "pad": (lambda d: pad_dataproto_to_divisor(d, 3)[0], [0, 1, 2, 3, 0, 1]),
    "pad with the last": (lambda d: pad_dataproto_to_divisor(d, 3, "last")[0], [0, 1, 2, 3, 3, 3]),
    "iterator": (lambda d: list(d.make_iterator(1, 1))[2], [2]),
    "TensorDict": (lambda d: DataProto.from_tensordict(d.to_tensordict()), [0, 1, 2, 3]),
    "collate": (lambda d: collate_fn([d[3], d[0]]), [3, 0]),
    "union": (lambda d: d.select([]).union(d), [0, 1, 2, 3]),
    "equal union": (lambda d: d.select().union(copy.deepcopy(d)), [0, 1, 2, 3]),
    "unfold": (lambda d: d.unfold_column_chunks(2), [0, 0, 1, 1, 2, 2, 3, 3]),
}


def rows_of(lengths: list[int], dim: int) -> list[torch.Tensor]:
    shapes = [[2, 3] for _ in lengths]
    for shape, length in zip(shapes, lengths, strict=True):
        shape[dim - 1] = length
    return [torch.arange(shape[0] * shape[1]).view(shape) + 100 * at for at, shape in enumerate(shapes)]


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_and_ragged_dim_stay(name: str, lengths: list[int], dim: int) -> None:
    rows = rows_of(lengths, dim)
    data = DataProto.from_dict({"x": jagged_of(rows, dim)})
    operation, expected = OPERATIONS[name]
    result = operation(data).batch["x"]
    assert jagged_parts(result).dim == dim
    assert len(result.offsets()) == len(expected) + 1
    found = result.unbind() if expected else []
    assert len(found) == len(expected)
    for row, source in zip(found, expected, strict=True):
        assert torch.equal(row, rows[source])


def test_a_row_of_a_batch_is_a_dense_tensor() -> None:
    rows = rows_of([3, 0, 2, 5], 2)
    data = DataProto.from_dict({"x": jagged_of(rows, 2)})
    assert all(torch.equal(data[at].batch["x"], rows[at]) for at in range(4))
    assert [tuple(row["x"].shape) for row in data.to_rows()] == [(2, 3), (2, 0), (2, 2), (2, 5)]


def test_rows_with_gaps_between_them_are_read_and_closed_up() -> None:
    values = torch.arange(10)
    gappy = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 4, 10]), torch.tensor([2, 3]))
    data = DataProto.from_dict({"x": gappy})
    expected = [[0, 1], [4, 5, 6]]
    for result in (data, data[:], data[[0, 1]], DataProto.concat(data.chunk(2)), collate_fn(list(data))):
        assert [row.tolist() for row in result.batch["x"].unbind()] == expected
    assert concat_jagged([gappy, gappy]).values().numel() == 10
    assert data.equals(data[[0, 1]])


def test_columns_over_the_same_offsets_can_still_be_added() -> None:
    first = jagged_of([torch.ones(2), torch.ones(3), torch.ones(1)], 1)
    data = DataProto.from_dict({"a": first, "b": first * 2})
    results = [
        data[[2, 0]],
        data.repeat(2),
        data.chunk(3)[1],
        DataProto.concat(data.chunk(3)),
        pad_dataproto_to_divisor(data, 2)[0],
        pad_dataproto_to_divisor(data, 2, "zeros")[0],
        pickle.loads(pickle.dumps(data)),
        copy.deepcopy(data),
        data.select(deepcopy=True),
        data.select().to("cpu"),
    ]
    for result in results:
        total = result.batch["a"] + result.batch["b"]
        assert total.values().unique().tolist() == [3.0]


def test_gathering_is_differentiable() -> None:
    values = torch.arange(6.0, requires_grad=True)
    x = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 2, 3, 6]))
    total = take_jagged(x, torch.tensor([2, 0, 2])).values().sum()
    (gradient,) = torch.autograd.grad(total, values)
    assert gradient.tolist() == [1.0, 1.0, 0.0, 2.0, 2.0, 2.0]


def test_slices_share_the_values_of_their_source() -> None:
    x = jagged_of([torch.zeros(2), torch.zeros(3)], 1)
    data = DataProto.from_dict({"x": x})
    data[1:].batch["x"].values().fill_(7)
    assert x.values().tolist() == [0, 0, 7, 7, 7]


def test_parts_with_other_ragged_dims_do_not_fit() -> None:
    first = DataProto.from_dict({"x": jagged_of(rows_of([2, 2], 1), 1)})
    second = DataProto.from_dict({"x": jagged_of(rows_of([3, 3], 2), 2)})
    with pytest.raises(ValueError, match="'x' differs in its ragged dim: part 0 has 1, part 1 has 2"):
        DataProto.concat([first, second])
    dense = DataProto.from_dict({"x": torch.zeros(2, 2, 3, dtype=torch.int64)})
    with pytest.raises(ValueError, match="part 0 has jagged tensor, part 1 has dense tensor"):
        DataProto.concat([first, dense])


def test_whether_a_column_is_jagged_is_declared_and_not_seen_from_lengths() -> None:
    equal, unequal = [{"x": torch.arange(3)}] * 2, [{"x": torch.arange(3)}, {"x": torch.arange(4)}]
    assert DataProto.from_rows(equal, ragged={"x"}).batch["x"].is_nested
    assert DataProto.from_rows(equal[:1], ragged={"x"}).batch["x"].is_nested
    assert not DataProto.from_rows(equal).batch["x"].is_nested
    assert DataProto.from_rows(unequal, ragged={"x"}).batch["x"].offsets().tolist() == [0, 3, 7]
    with pytest.raises(ValueError, match=r"rows of 'x' have different shapes.*declare ragged=\{'x'\}"):
        DataProto.from_rows(unequal)


DTYPES = [torch.int64, torch.bool, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.complex128]


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1, 200])
def test_long_rows_are_gathered_as_short_ones_are(scale: int, dim: int, dtype: torch.dtype) -> None:
    lengths = [4 * scale, 0, 5 * scale, 1]
    rows = [torch.arange(4 * length).view(-1, 4).to(torch.float32) for length in lengths]
    rows = [(row if dim == 1 else row.T.contiguous()).to(dtype) for row in rows]
    data = DataProto.from_dict({"x": jagged_of(rows, dim)})[1:]
    for index in ([2, 0, 0], [1], [], [-1, -3]):
        got = data[index].tensor("x")
        assert ragged_dim(got) == dim
        wanted = [rows[1:][row] for row in index]
        assert equal([row.clone() for row in got.unbind()] if index else [], wanted)


@pytest.mark.parametrize("scale", [1, 200])
@pytest.mark.parametrize("kind", ["gaps", "strided", "int32 offsets", "conjugated"])
def test_rows_are_gathered_from_any_memory(kind: str, scale: int) -> None:
    values = torch.arange(20 * scale, dtype=torch.float32)
    starts, lengths = torch.tensor([0, 8, 10, 20]) * scale, None
    if kind == "gaps":
        lengths = torch.tensor([3, 1, 0]) * scale
    elif kind == "strided":
        values = values.repeat_interleave(2)[::2]
    elif kind == "int32 offsets":
        starts = starts.int()
    else:
        values = torch.complex(values, values + 1).conj()
    x = build_jagged(values, starts, 1, lengths)
    sizes = starts.diff().tolist() if lengths is None else lengths.tolist()
    rows = [values[start : start + size] for start, size in zip(starts.tolist(), sizes, strict=False)]
    taken = take_jagged(x, torch.tensor([2, 0, 0, 1]))
    assert jagged_parts(taken).offsets.dtype == starts.dtype
    assert torch.equal(jagged_parts(taken).values, torch.cat([rows[at] for at in (2, 0, 0, 1)]))
