"""What a user's program looks like to a type checker: it needs no ignore and no cast.

Nothing here runs; `test_protocol_types.py` has mypy read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from tensordict import TensorDict
from verl_protocol import (
    DataProto,
    DataProtoConfig,
    DataProtoFuture,
    DataProtoItem,
    Partition,
    WeightedMean,
    balanced_partition,
    collate_fn,
    equal,
    fold_batch_dim,
    list_of_dict_to_dict_of_list,
    merge_meta,
    pad_dataproto_to_divisor,
    reduce_metrics,
    unfold_batch_dim,
    union_numpy_dict,
    unpad_dataproto,
)


def rollout(prompts: DataProto) -> DataProto:
    tokens = prompts.batch["input_ids"]
    scores = torch.as_tensor(tokens).float().mean(-1)
    prompts.batch["scores"] = scores
    prompts.batch = TensorDict({"scores": scores}, batch_size=[len(prompts)])
    prompts.batch = None
    prompts.meta_info["step"] = 1
    prompts.non_tensor_batch["uid"] = np.arange(len(prompts))
    return DataProto.from_dict(
        tensors={"scores": scores},
        non_tensors={"uid": ["a", "b"], "n": np.arange(2)},
        meta_info={"metrics": {"loss": 1.0}},
    )


def constructors(tensordict: TensorDict) -> None:
    assert_type(DataProto(), DataProto)
    assert_type(DataProto(tensordict), DataProto)
    assert_type(DataProto(batch=None, non_tensor_batch=None, meta_info={"k": 1}), DataProto)
    assert_type(DataProto.from_single_dict({"a": torch.zeros(2), "s": ["x", "y"]}), DataProto)
    assert_type(DataProto.from_tensordict(tensordict), DataProto)
    assert_type(DataProto.from_rows([{"a": torch.zeros(2)}], ragged={"a": 1}), DataProto)
    assert_type(DataProto().to_tensordict(), TensorDict)


def rows(data: DataProto, mask: NDArray[np.bool_], order: torch.Tensor) -> None:
    assert_type(data[0], DataProtoItem)
    assert_type(data[np.int64(0)], DataProtoItem)
    assert_type(data[1:2], DataProto)
    assert_type(data[[0, 1]], DataProto)
    assert_type(data[mask], DataProto)
    assert_type(data[order], DataProto)
    assert_type(data[range(2)], DataProto)
    assert_type(data.select_idxs((0, 1)), DataProto)
    assert_type(data.slice(0, np.int64(2)), DataProto)
    assert_type(data.chunk(2), list[DataProto])
    assert_type(data.chunk(2, uneven=True), list[DataProto])
    assert_type(data.split(np.int64(3)), list[DataProto])
    assert_type(data.repeat(2, interleave=False), DataProto)
    assert_type(data.sample_level_repeat([1, 2]), DataProto)
    assert_type(data.unfold_column_chunks(2, split_keys=["a"]), DataProto)
    assert_type(data.group_by("uid"), dict[Any, DataProto])
    assert_type(data.make_iterator(2, 1, dataloader_kwargs={"shuffle": True}), Iterator[DataProto])
    assert_type(data.reorder(order), None)
    assert_type(data.padding(2), None)
    assert_type([item.batch for item in data], list[TensorDict])
    assert_type(data.to_rows(), list[dict[str, Any]])


def columns(data: DataProto) -> None:
    assert_type(data.batch, TensorDict)
    assert_type(data.tensor("a"), torch.Tensor)
    assert_type(data.column("s"), NDArray[Any])
    assert_type("a" in data, bool)
    assert_type(data.select("a", deepcopy=True), DataProto)
    assert_type(data.pop(["a"], ["s"]), DataProto)
    assert_type(data.rename("a", "b"), DataProto)
    assert_type(data.to("cpu"), DataProto)
    assert_type(data.pad_mask, torch.Tensor)
    assert_type(data.equals(data), bool)
    assert_type(data.nbytes(), int)
    assert_type(len(data), int)


def together(data: DataProto, future: DataProtoFuture[DataProto]) -> None:
    assert_type(DataProto.concat(data.chunk(2)), DataProto)
    assert_type(DataProto.concat([data], merge={"timing": "mean", "x": max}, pad={"ids": 0}), DataProto)
    assert_type(data.union(data), DataProto)
    assert_type(collate_fn([data[0]]), DataProto)
    assert_type(pad_dataproto_to_divisor(data, 8, policy="zeros"), tuple[DataProto, int])
    assert_type(unpad_dataproto(data, 2), DataProto)
    assert_type(unfold_batch_dim(fold_batch_dim(data, 2)), DataProto)
    assert_type(future.get(), DataProto)
    assert_type(union_numpy_dict({"a": np.zeros(1)}, {}), dict[str, NDArray[Any]])


def plain_functions() -> None:
    assert_type(balanced_partition([1.0, 2.0], 2), Partition)
    assert_type(equal({}, []), bool)
    assert_type(merge_meta([{}], {"k": "first"}), dict[str, Any])
    assert_type(reduce_metrics({"loss": [1.0]}, {"loss": WeightedMean("tokens")}), dict[str, Any])
    assert_type(list_of_dict_to_dict_of_list([{"a": 1}]), dict[str, list[Any]])
    assert_type(DataProtoConfig.auto_padding, bool)
    DataProtoConfig.auto_padding = True


@dataclass(eq=False, repr=False)
class Tagged(DataProto):
    """A batch with a field of its own."""

    tag: str = ""


def subclasses(tagged: Tagged) -> None:
    assert_type(tagged.chunk(2), list[Tagged])
    assert_type(tagged[1:], Tagged)
    assert_type(Tagged.from_dict({"a": torch.zeros(1)}), Tagged)
    assert_type(Tagged.concat([tagged]), Tagged)
    assert_type(pad_dataproto_to_divisor(tagged, 2), tuple[Tagged, int])
    assert_type(Tagged(tag="x").tag, str)
