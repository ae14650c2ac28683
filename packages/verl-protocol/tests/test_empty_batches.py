"""Every method is defined for no tensors, no columns, no rows, one row and no width."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tensordict import TensorDict
from verl_protocol import (
    DataProto,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unfold_batch_dim,
    unpad_dataproto,
)
from verl_protocol.columns.checks import jagged_of

BATCHES: dict[str, Callable[[], DataProto]] = {
    "nothing": lambda: DataProto(),
    "meta only": lambda: DataProto(meta_info={"k": 1}),
    "no tensors": lambda: DataProto.from_dict(non_tensors={"s": list("abcd")}),
    "no columns but rows": lambda: DataProto(TensorDict({}, [4])),
    "no rows": lambda: DataProto.from_dict({"a": torch.zeros(0, 3)}, {"s": []}),
    "no rows of jagged": lambda: DataProto.from_dict({"a": jagged_of([torch.ones(2)], 1)})[:0],
    "one row": lambda: DataProto.from_dict({"a": torch.zeros(1, 3)}, {"s": ["x"]}),
    "no width": lambda: DataProto.from_dict({"a": torch.zeros(4, 0)}),
    "rows left after pop": lambda: popped(),
}


def popped() -> DataProto:
    data = DataProto.from_dict(non_tensors={"s": list("abcd")})
    data.pop(non_tensor_batch_keys="s")
    return data


CALLS: dict[str, Callable[[DataProto], Any]] = {
    "slice": lambda d: d[:],
    "index": lambda d: d[list(range(len(d)))],
    "mask": lambda d: d[torch.ones(len(d), dtype=torch.bool)],
    "select": lambda d: d.select(),
    "chunk": lambda d: DataProto.concat(d.chunk(3, uneven=True)),
    "split": lambda d: DataProto.concat(d.split(3)),
    "concat": lambda d: DataProto.concat([d, d[:0]]),
    "repeat": lambda d: d.repeat(1),
    "tile": lambda d: d.repeat(1, interleave=False),
    "sample repeat": lambda d: d.sample_level_repeat([1] * len(d)),
    "unfold columns": lambda d: d.unfold_column_chunks(1),
    "pad": lambda d: unpad_dataproto(*pad_dataproto_to_divisor(d, 8)),
    "pad zeros": lambda d: unpad_dataproto(*pad_dataproto_to_divisor(d, 8, "zeros")),
    "union": lambda d: d.union(copy.deepcopy(d)),
    "union with meta": lambda d: d.union(DataProto()),
    "to": lambda d: d.to("cpu", objects=True),
    "TensorDict": lambda d: DataProto.from_tensordict(d.to_tensordict()),
    "pickle": lambda d: pickle.loads(pickle.dumps(d)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "rename": lambda d: d.rename([], []),
    "unfold": lambda d: unfold_batch_dim(d, 1),
}


FOLDABLE = ["no tensors", "no rows", "one row", "no width"]


@pytest.mark.parametrize("name", FOLDABLE)
def test_folding_and_unfolding_cancel(name: str) -> None:
    data = BATCHES[name]()
    assert unfold_batch_dim(fold_batch_dim(data, len(data) or 1)) == data


@pytest.mark.parametrize("name", BATCHES)
@pytest.mark.parametrize("call", CALLS)
def test_what_should_change_nothing_changes_nothing(name: str, call: str) -> None:
    data = BATCHES[name]()
    result = CALLS[call](data)
    assert result == BATCHES[name]()
    assert len(result) == len(BATCHES[name]())


@pytest.mark.parametrize("name", BATCHES)
def test_rows_are_multiplied_and_counted(name: str) -> None:
    data = BATCHES[name]()
    assert len(data.repeat(3)) == 3 * len(data)
    assert len(DataProto.concat([data] * 3)) == 3 * len(data)
    assert len(list(data)) == len(data.to_rows()) == len(data)
    assert sum(len(part) for part in data.make_iterator(2, 1, drop_last=False)) == len(data)
    assert [len(piece) for piece in data.chunk(2, uneven=True)] == [-(-len(data) // 2), len(data) // 2]


@pytest.mark.parametrize("name", BATCHES)
def test_in_place_methods_and_descriptions_work(name: str) -> None:
    data = BATCHES[name]()
    data.reorder(range(len(data)))
    data.padding(0)
    assert data == BATCHES[name]()
    assert data.nbytes() >= 0
    assert data.unique_nbytes() >= 0
    assert repr(data).startswith("DataProto(")
    assert data.get_data_info().startswith("batch:")
    assert len(data.pop()) == len(data)
    data.check_consistency()
    with pytest.raises(KeyError, match="no tensor column 'nope'"):
        data.pop("nope")


def test_a_tensorless_batch_is_reordered() -> None:
    data = DataProto.from_dict(non_tensors={"s": list("abcd")})
    data.reorder(torch.tensor([3, 2, 1, 0]))
    assert data.non_tensor_batch["s"].tolist() == list("dcba")
    data.padding(1, "first")
    assert data.non_tensor_batch["s"].tolist() == list("dcbad")


def test_pieces_without_rows_keep_columns_dtypes_and_widths() -> None:
    pieces = DataProto.from_dict({"a": torch.zeros(2, 3, dtype=torch.bfloat16)}, {"s": ["x", "y"]}).chunk(
        4, uneven=True
    )
    assert [len(piece) for piece in pieces] == [1, 1, 0, 0]
    assert tuple(pieces[3].batch["a"].shape) == (0, 3)
    assert pieces[3].batch["a"].dtype == torch.bfloat16
    assert pieces[3].non_tensor_batch["s"].dtype == object
