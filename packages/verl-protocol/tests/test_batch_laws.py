"""Row operations against a model: a batch does to its rows what a plain list would do to its items."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from protocol_samples import remote
from verl_protocol import DataProto, collate_fn, pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol.columns.checks import jagged_of

settings.register_profile(
    "protocol", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("protocol")

KINDS = ("dense", "wide", "fp8", "jagged", "jagged2", "numbers", "strings", "objects")


def column(kind: str, num_rows: int) -> Any:
    """A column whose rows all differ."""
    rows = range(num_rows)
    match kind:
        case "dense":
            return torch.arange(num_rows)
        case "wide":
            return torch.arange(num_rows * 6, dtype=torch.bfloat16).view(num_rows, 2, 3)
        case "fp8":
            return torch.arange(num_rows, dtype=torch.uint8).view(torch.float8_e4m3fn).view(num_rows, 1)
        case "jagged":
            return jagged_of([torch.full((row % 3, 2), float(row)) for row in rows] or [torch.ones(0, 2)], 1)
        case "jagged2":
            return jagged_of([torch.full((2, row % 4), row) for row in rows] or [torch.ones(2, 0)], 2)
        case "numbers":
            return np.arange(num_rows * 2).reshape(num_rows, 2)
        case "strings":
            return np.array([f"s{row}" for row in rows], dtype=str)
        case _:
            return [{"row": row} for row in rows]


def batch(kinds: list[str], num_rows: int) -> DataProto:
    """A batch of columns of these kinds, with meta_info."""
    tensors = {kind: column(kind, num_rows) for kind in kinds if kind in KINDS[:5]}
    others = {kind: column(kind, num_rows) for kind in kinds if kind in KINDS[5:]}
    data = DataProto.from_dict(tensors, others, {"step": 3, "nan": float("nan"), "array": np.arange(2)})
    return data[:num_rows]


def somewhere(kinds: list[str], num_rows: int, pieces: int) -> DataProto:
    """The same batch, whose tensor columns lie in a store in so many pieces; here where there are none."""
    data = batch(kinds, num_rows)
    return data if not pieces else remote(data, pieces)


batches = st.builds(
    somewhere,
    st.lists(st.sampled_from(KINDS), unique=True, min_size=1),
    st.integers(1, 9),
    st.integers(0, 3),
)


def listed(data: DataProto) -> list[Any]:
    """The rows of a batch as plain comparable values."""
    rows = [
        {
            key: value.float().tolist() if isinstance(value, torch.Tensor) else value
            for key, value in row.items()
        }
        for row in data.to_rows()
    ]
    return [repr(row) for row in rows]


@st.composite
def batch_and_index(draw: st.DrawFn) -> tuple[DataProto, Any, list[int]]:
    """A batch, an index in some form, and the rows that a list would give for it."""
    data = draw(batches)
    count = len(data)
    rows = list(range(count))
    forms_of_rows = ["slice", "range", "list", "tuple", "array", "tensor", "unsigned"]
    form = draw(st.sampled_from([*forms_of_rows, "mask", "bools", "backwards"]))
    if form == "slice":
        index = draw(st.slices(count))
        return data, index, rows[index]
    if form == "range":
        given_range = range(*sorted(draw(st.tuples(st.integers(-count, count), st.integers(-count, count)))))
        return data, given_range, [rows[at] for at in given_range]
    if form in ("mask", "bools", "backwards"):
        mask = draw(st.lists(st.booleans(), min_size=count, max_size=count))
        picked = [row for row, kept in zip(rows, mask, strict=True) if kept]
        given_mask: Any = {
            "mask": torch.tensor(mask),
            "bools": mask,
            "backwards": np.array(mask[::-1], dtype=bool)[::-1],
        }
        return data, given_mask[form], picked
    places = draw(st.lists(st.integers(0 if form == "unsigned" else -count, count - 1), max_size=12))
    forms: dict[str, Callable[[list[int]], Any]] = {
        "list": list,
        "tuple": tuple,
        "array": lambda found: np.array(found, dtype=np.int32),
        "tensor": lambda found: torch.tensor(found, dtype=torch.int16),
        "unsigned": lambda found: np.array(found, dtype=np.uint8),
    }
    return data, forms[form](places), [rows[at] for at in places]


@given(batch_and_index())
def test_indexing_is_that_of_a_list(case: tuple[DataProto, Any, list[int]]) -> None:
    data, index, expected = case
    rows = listed(data)
    result = data[index]
    assert listed(result) == [rows[at] for at in expected]
    assert result.meta_info.keys() == data.meta_info.keys()


@given(batches, st.integers(-9, 8))
def test_one_row_is_that_of_a_list(data: DataProto, row: int) -> None:
    if not -len(data) <= row < len(data):
        with pytest.raises(IndexError, match=f"row {row} does not exist: the batch has {len(data)} rows?$"):
            data[row]
        return
    item = data[row]
    again = collate_fn([item])
    assert again.equals(data[[row]])
    assert collate_fn([data[np.int64(row)]]).equals(again)
    place: Any = torch.tensor(row)
    assert collate_fn([data[place]]).equals(again)


@given(batches, st.integers(1, 12))
def test_concat_of_chunk_is_the_identity(data: DataProto, chunks: int) -> None:
    pieces = data.chunk(chunks, uneven=True)
    sizes = [len(piece) for piece in pieces]
    assert len(pieces) == chunks
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)
    assert DataProto.concat(pieces).equals(data)


@given(batches, st.integers(1, 12))
def test_concat_of_split_is_the_identity(data: DataProto, size: int) -> None:
    pieces = data.split(size)
    assert all(len(piece) == size for piece in pieces[:-1])
    assert DataProto.concat(pieces).equals(data)


@given(batches, st.lists(st.integers(0, 9), min_size=2, max_size=2))
def test_concat_is_associative(data: DataProto, cuts: list[int]) -> None:
    first, second = sorted(cuts)
    parts = [data[:first], data[first:second], data[second:]]
    for rank, part in enumerate(parts):
        part.meta_info["metrics"] = {"loss": float(rank)} if rank else [{"loss": 0.5}, {"loss": 1.5}]
    left = DataProto.concat([DataProto.concat(parts[:2]), parts[2]])
    right = DataProto.concat([parts[0], DataProto.concat(parts[1:])])
    assert left.equals(right)
    assert left.equals(DataProto.concat(parts))
    assert left.meta_info["metrics"] == {"loss": [0.5, 1.5, 1.0, 2.0]}


@given(batches, st.integers(0, 4), st.booleans())
def test_repeat_is_that_of_a_list(data: DataProto, times: int, interleave: bool) -> None:
    rows = listed(data)
    expected = [row for row in rows for _ in range(times)] if interleave else rows * times
    assert listed(data.repeat(times, interleave)) == expected
    assert listed(data.sample_level_repeat([times] * len(data))) == [
        row for row in rows for _ in range(times)
    ]


@given(batches, st.integers(1, 12), st.sampled_from(["repeat", "last", "zeros"]))
def test_unpad_of_pad_is_the_identity(data: DataProto, divisor: int, policy: Any) -> None:
    padded, pad_size = pad_dataproto_to_divisor(data, divisor, policy)
    assert len(padded) % divisor == 0
    assert len(padded) == len(data) + pad_size
    assert pad_size < divisor
    assert padded.pad_mask.tolist() == [False] * len(data) + [True] * pad_size
    assert unpad_dataproto(padded, pad_size).equals(data)
    assert padded.meta_info.keys() == data.meta_info.keys()


@given(batches)
def test_copies_are_equal(data: DataProto) -> None:
    assert pickle.loads(pickle.dumps(data)).equals(data)
    assert copy.copy(data).equals(data)
    assert copy.deepcopy(data).equals(data)
    assert DataProto.from_tensordict(data.to_tensordict()).equals(data)
    assert collate_fn(list(data)).equals(data)


@given(batches)
def test_rows_lead_back_to_the_batch(data: DataProto) -> None:
    # Rows do not tell that an array had two dimensions or strings of one width.
    arrays = [key for key in data.non_tensor_batch if key == "objects"]
    data = data.select(non_tensor_batch_keys=arrays)
    again = DataProto.from_rows(data.to_rows(), ragged={"jagged": 1, "jagged2": 2}, meta_info=data.meta_info)
    assert len(again) == len(data)
    assert again.equals(data)


@given(batches, st.integers(0, 2**31))
def test_reordering_and_its_inverse_cancel(data: DataProto, seed: int) -> None:
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    shuffled = data[order]
    shuffled.reorder(order.argsort())
    assert shuffled.equals(data)


@given(batches)
def test_equality_sees_a_changed_row(data: DataProto) -> None:
    if len(data) > 1:
        assert not data.equals(data[::-1])
    assert not data.equals(data[:-1])
    assert data == data.select()


@pytest.mark.parametrize(
    ("index", "error", "words"),
    [
        ("ab", TypeError, r"a column is read with .batch\[key\]"),
        ({1, 2}, TypeError, "rows are named by"),
        ([0.5], TypeError, "whole numbers"),
        (torch.tensor([0.5]), TypeError, "whole numbers"),
        ([True, 1, 0], TypeError, "mixed"),
        ([True, False], IndexError, "the mask has 2 entries for 3 rows"),
        ([3], IndexError, "row 3 does not exist: the batch has 3 rows"),
        (range(-4, 0), IndexError, "row -4"),
        (torch.zeros(2, 2, dtype=torch.int64), IndexError, "2 dimensions"),
        (True, TypeError, "rows are named by"),
        (None, TypeError, "rows are named by"),
        (slice(0, 2, 0), TypeError, "step other than 0"),
        (slice(0.5, 2), TypeError, "whole numbers"),
    ],
)
def test_an_index_that_names_no_rows_is_an_error(index: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        batch(["dense", "objects"], 3)[index]


@pytest.mark.parametrize("value", [0, -1, 1.5, "2", True, None])
def test_sizes_are_whole_numbers_of_at_least_one(value: Any) -> None:
    data = batch(["dense"], 4)
    calls: dict[str, Callable[[Any], object]] = {
        "chunks": data.chunk,
        "split_size": data.split,
        "size_divisor": lambda size: pad_dataproto_to_divisor(data, size),
        "mini_batch_size": lambda size: data.make_iterator(size, 1),
        "n_split": data.unfold_column_chunks,
    }
    for argument, call in calls.items():
        with pytest.raises(ValueError, match=f"{argument} must be a whole number of at least 1"):
            call(value)


def test_numpy_integers_are_sizes() -> None:
    data = batch(["dense"], 4)
    assert [len(piece) for piece in data.chunk(np.int64(2))] == [2, 2]
    assert len(data.repeat(np.int32(3))) == 12


def test_chunks_are_equal_unless_asked_otherwise() -> None:
    data = batch(["dense", "objects"], 5)
    with pytest.raises(
        ValueError, match=r"5 rows cannot be cut into 4 equal chunks.*uneven=True.*pad_dataproto_to_div"
    ):
        data.chunk(4)
    assert [len(piece) for piece in data.chunk(4, uneven=True)] == [2, 1, 1, 1]
    padded = DataProto.from_dict({"a": torch.arange(5)}, {"s": list(range(5))}, auto_padding=True)
    pieces = padded.chunk(4)
    assert [len(piece) for piece in pieces] == [2, 1, 1, 1]
    for piece in pieces:
        assert piece.batch["a"].tolist() == piece.non_tensor_batch["s"].tolist()
        assert piece.is_padding_enabled()


def test_later_pieces_have_no_metrics() -> None:
    data = DataProto.from_dict({"a": torch.arange(4)}, meta_info={"metrics": {"loss": 1.0}, "k": 1})
    for pieces in (data.chunk(2), data.split(2)):
        assert [piece.meta_info for piece in pieces] == [{"metrics": {"loss": 1.0}, "k": 1}, {"k": 1}]
        assert DataProto.concat(pieces).meta_info == {"metrics": {"loss": [1.0]}, "k": 1}
    groups = list(data.group_by("a").values())
    assert DataProto.concat(groups).meta_info == {"metrics": {"loss": [1.0]}, "k": 1}


def test_meta_info_is_never_split() -> None:
    data = DataProto.from_dict({"a": torch.arange(4)}, meta_info={"token_num": [1, 2, 3, 4]})
    assert all(piece.meta_info["token_num"] == [1, 2, 3, 4] for piece in data.chunk(2))


def test_an_index_may_be_memory_that_must_not_be_written_to() -> None:
    data = DataProto.from_dict({"a": torch.arange(3)})
    for index in (np.array([2, 0]), np.array([True, False, True])):
        index.flags.writeable = False
        assert sorted(data[index].batch["a"].tolist()) == [0, 2]
