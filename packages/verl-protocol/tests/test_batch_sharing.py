"""No argument is changed, and no result shares meta_info or column dicts with another batch."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import torch
from tensordict import TensorDict
from verl_protocol import (
    DataProto,
    DataProtoItem,
    collate_fn,
    fold_batch_dim,
    pad_dataproto_to_divisor,
    unpad_dataproto,
)
from verl_protocol.columns.jagged import build_jagged


def batch() -> DataProto:
    return DataProto.from_dict(
        {"a": torch.arange(8).view(4, 2)},
        {"s": list("abcd")},
        {"k": 1, "nested": {"list": [1]}, "metrics": {"loss": 0.5}},
    )


DERIVE: dict[str, Callable[[DataProto], DataProto]] = {
    "slice": lambda d: d[1:3],
    "index": lambda d: d[[0, 1]],
    "mask": lambda d: d[torch.tensor([True, False, True, False])],
    "select": lambda d: d.select(),
    "select some": lambda d: d.select(["a"], [], ["nested", "k"]),
    "first chunk": lambda d: d.chunk(2)[0],
    "later chunk": lambda d: d.chunk(2)[1],
    "split": lambda d: d.split(3)[0],
    "whole split": lambda d: d.split(9)[0],
    "concat of one": lambda d: DataProto.concat([d]),
    "concat": lambda d: DataProto.concat([d, d]),
    "repeat": lambda d: d.repeat(2),
    "repeat once": lambda d: d.repeat(1),
    "sample repeat": lambda d: d.sample_level_repeat([1, 1, 1, 1]),
    "iterator": lambda d: next(d.make_iterator(2, 1)),
    "shuffled iterator": lambda d: next(d.make_iterator(2, 1, seed=1, dataloader_kwargs={"shuffle": True})),
    "pad": lambda d: pad_dataproto_to_divisor(d, 3)[0],
    "pad by nothing": lambda d: pad_dataproto_to_divisor(d, 2)[0],
    "unpad by nothing": lambda d: unpad_dataproto(d, 0),
    "fold": lambda d: fold_batch_dim(d, 2),
    "unfold columns": lambda d: d.unfold_column_chunks(1),
    "group": lambda d: d.group_by("s")["a"],
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda d: pickle.loads(pickle.dumps(d)),
    "TensorDict": lambda d: DataProto.from_tensordict(d.to_tensordict()),
    "collate": lambda d: collate_fn(list(d)),
}


@pytest.mark.parametrize("touched", [False, True], ids=["dict of tensors", "TensorDict"])
@pytest.mark.parametrize("name", DERIVE)
def test_results_share_no_containers(name: str, touched: bool) -> None:
    data = batch()
    if touched:
        assert len(data.batch) == 4
    before = copy.deepcopy(data)
    result = DERIVE[name](data)
    assert data.equals(before)
    result.meta_info["k"] = 99
    result.meta_info["nested"]["list"].append(2)
    result.meta_info["nested"]["new"] = 1
    result.meta_info.get("metrics", {})["loss"] = -1
    result.batch["new"] = torch.zeros(len(result))
    result.non_tensor_batch["new"] = result.non_tensor_batch.pop("s", np.arange(1))
    assert data.equals(before)


def test_pieces_do_not_share_with_each_other() -> None:
    data = batch()
    for pieces in (data.chunk(2), data.split(2), list(data.make_iterator(2, 1))):
        pieces[0].meta_info["nested"]["list"].append(5)
        assert pieces[1].meta_info["nested"]["list"] == [1]


def test_an_item_has_its_own_meta_info() -> None:
    data = batch()
    item = data[0]
    assert isinstance(item, DataProtoItem)
    item.meta_info["nested"]["list"].append(5)
    item.batch["new"] = torch.tensor(1)
    assert data.meta_info["nested"]["list"] == [1]
    assert "new" not in data


def test_slices_are_views_and_index_lists_are_copies() -> None:
    data = batch()
    data[1:2].batch["a"][0, 0] = 77
    assert data.batch["a"][1, 0] == 77
    data[[1]].batch["a"][0, 0] = -1
    assert data.batch["a"][1, 0] == 77


def test_deep_copies_share_nothing() -> None:
    data = batch()
    data.non_tensor_batch["s"][0] = {"x": [1]}
    for other in (data.select(deepcopy=True), copy.deepcopy(data)):
        other.batch["a"][0, 0] = 77
        other.non_tensor_batch["s"][0]["x"].append(2)
    assert data.batch["a"][0, 0] == 0
    assert data.non_tensor_batch["s"][0] == {"x": [1]}


def test_repeated_rows_share_their_object_unless_copies_are_asked_for() -> None:
    data = DataProto.from_dict({"a": torch.zeros(1)}, {"m": [{"x": 1}]})
    shared = data.repeat(2)
    shared.non_tensor_batch["m"][0]["x"] = 5
    assert shared.non_tensor_batch["m"][1]["x"] == data.non_tensor_batch["m"][0]["x"] == 5
    copies = data.repeat(2, copy_objects=True)
    copies.non_tensor_batch["m"][0]["x"] = 7
    assert copies.non_tensor_batch["m"][1]["x"] == data.non_tensor_batch["m"][0]["x"] == 5


def test_pickling_leaves_the_batch_alone() -> None:
    data = batch()
    assert pickle.dumps(data)
    data.batch["new"] = torch.ones(4)
    assert data.to("cpu").batch["new"].sum() == 4


def test_a_locked_tensordict_stays_as_it_is_while_results_can_be_written() -> None:
    locked = TensorDict({"a": torch.zeros(2)}, [2]).lock_()
    data = DataProto(locked)
    for piece in (data[:1], data[[0]], *data.chunk(2), pickle.loads(pickle.dumps(data))):
        piece.batch["b"] = torch.zeros(1) if len(piece) == 1 else torch.zeros(2)
    data.union(DataProto.from_dict({"b": torch.zeros(2)})).rename("a", "c").pop("b")
    assert set(data.batch.keys()) == {"c"}
    assert set(locked.keys()) == {"a"}
    assert locked.is_locked


@pytest.mark.parametrize("num_rows", [0, 1, 4])
def test_the_tensordict_that_batch_built_follows_the_batch(num_rows: int) -> None:
    data = batch()[:num_rows]
    held = data.batch
    data.union(DataProto.from_dict({"b": torch.ones(num_rows)})).rename(["a", "b"], ["b", "a"])
    assert data.batch is held
    assert held["a"].tolist() == [1.0] * num_rows
    assert held["b"].shape == (num_rows, 2)
    assert set(data.pop("a").batch.keys()) == {"a"}
    assert set(held.keys()) == {"b"}
    data.batch["c"] = torch.zeros(num_rows)
    assert "c" in data
    held.lock_()
    data.pop("c")
    assert set(held.keys()) == {"b", "c"}
    assert set(data.batch.keys()) == {"b"}


def test_derived_batches_do_not_follow() -> None:
    data = batch()
    derived = [data.select(), data[:], copy.copy(data), data.chunk(1)[0]]
    held = [other.batch for other in (data, *derived)]
    data.union(DataProto.from_dict({"b": torch.ones(4)}))
    assert ["b" in set(tensordict.keys()) for tensordict in held] == [True, False, False, False, False]


def test_in_place_methods_change_self_only() -> None:
    tensordict = TensorDict({"a": torch.zeros(2), "b": torch.ones(2)}, [2])
    meta = {"k": 1}
    data, other = DataProto(tensordict, None, meta), DataProto(tensordict)
    assert data.pop("b", meta_info_keys="k").meta_info == {"k": 1}
    assert data.rename("a", "c") is data
    assert data.union(DataProto.from_dict({"d": torch.zeros(2)}, meta_info={"m": 2})) is data
    data.reorder([1, 0])
    data.padding(1)
    assert set(data.batch.keys()) == {"c", "d"}
    assert set(other.batch.keys()) == set(tensordict.keys()) == {"a", "b"}
    assert meta == {"k": 1}


def test_copies_of_computed_tensors_keep_their_gradient() -> None:
    weight = torch.ones(3, requires_grad=True)
    data = DataProto.from_dict(
        {"a": weight * 2, "j": build_jagged(weight * 3, torch.tensor([0, 1, 2, 3]), 1)}
    )
    for copied in (copy.deepcopy(data), data.select(deepcopy=True)):
        assert copied.tensor("a") is not data.tensor("a")
        (gradient,) = torch.autograd.grad(copied.tensor("a").sum(), weight, retain_graph=True)
        assert gradient.tolist() == [2.0, 2.0, 2.0]
        (gradient,) = torch.autograd.grad(copied.tensor("j").values().sum(), weight, retain_graph=True)
        assert gradient.tolist() == [3.0, 3.0, 3.0]
