"""Copies that share nothing which could be written to, of everything that passes to a worker and back."""

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from verl_dispatch.local.copies import PrivateFuture, private_arguments, private_copy
from verl_protocol import DataProto, DataProtoFuture


@dataclass
class Config:
    name: str = "config"
    weights: torch.Tensor = field(default_factory=lambda: torch.ones(3))
    nested: dict[str, Any] = field(default_factory=lambda: {"list": [1]})


class Extended(DataProto):
    pass


def function() -> int:
    return 1


@pytest.mark.parametrize(
    "value",
    [1, 2.5, "text", b"bytes", None, True, ..., 1 + 2j, range(3), function, Config, np, torch.float16],
)
def test_what_cannot_change_passes_as_it_is(value: Any) -> None:
    assert private_copy(value) is value


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.arange(6).reshape(2, 3).t(),
        torch.arange(1000)[3:5],
        torch.tensor(3.5, dtype=torch.bfloat16),
        torch.zeros(0, 4),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.complex64),
    ],
)
def test_tensors(tensor: torch.Tensor) -> None:
    made = private_copy(tensor)
    assert torch.equal(made, tensor)
    assert made.dtype == tensor.dtype
    assert made.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    made.zero_()
    if tensor.numel():
        assert torch.count_nonzero(tensor)


def test_gradients_and_their_history_stay_behind() -> None:
    leaf = torch.ones(2, requires_grad=True)
    computed = leaf * 2
    made_leaf, made_computed = private_copy([leaf, computed])
    assert made_leaf.requires_grad
    assert made_leaf.is_leaf
    assert not made_computed.requires_grad
    parameter = private_copy(torch.nn.Parameter(torch.ones(2), requires_grad=False))
    assert isinstance(parameter, torch.nn.Parameter)
    assert not parameter.requires_grad


def test_jagged_tensors() -> None:
    tensor: Any = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    made = private_copy(tensor)
    made.values().zero_()
    assert [int(part.sum()) for part in tensor.unbind()] == [2, 3]
    assert torch.equal(made.offsets(), tensor.offsets())


def test_containers_keep_their_shape_and_share_nothing() -> None:
    inner: list[Any] = [torch.ones(2), {"a": np.zeros(2)}]
    value: dict[str, Any] = {"x": inner, "again": inner, "pair": (inner, 3), "empty": ()}
    made = private_copy(value)
    assert made["x"] is made["again"] is made["pair"][0]
    made["x"][0].zero_()
    made["x"][1]["a"][0] = 5
    made["x"].append(1)
    assert (float(inner[0].sum()), float(inner[1]["a"][0]), len(inner)) == (2.0, 0.0, 2)


def test_cycles_end() -> None:
    value: dict[str, Any] = {"list": []}
    value["list"].append(value)
    value["pair"] = (value["list"],)
    made = private_copy(value)
    assert made is not value
    assert made["list"][0] is made
    assert made["pair"][0] is made["list"]


def endless_array() -> Any:
    rows = np.empty((2, 1), dtype=object)
    rows[0, 0], rows[1, 0] = {"rows": [rows]}, torch.ones(1)
    return rows


def batch_in_itself() -> DataProto:
    data = DataProto.from_dict({"i": torch.ones(1)}, {"s": [None]}, {"kept": [1]})
    data.column("s")[0] = (data,)
    data.meta_info["all"] = data.meta_info
    return data


def test_object_arrays_and_batches_may_hold_themselves() -> None:
    rows, data = endless_array(), batch_in_itself()
    made, [also] = private_copy((rows, [data]))
    assert made.shape == (2, 1)
    assert made[0, 0]["rows"][0] is made
    made[1, 0].zero_()
    assert float(rows[1, 0]) == 1.0
    assert also.column("s")[0][0] is also
    assert also.meta_info["all"] is also.meta_info
    assert also.meta_info is not data.meta_info
    also.tensor("i").zero_()
    also.meta_info["kept"].append(2)
    assert (float(data.tensor("i")), data.meta_info["kept"]) == (1.0, [1])


def test_objects_of_the_users_may_hold_arrays_that_hold_themselves_and_tensors_of_a_computation() -> None:
    value, again = Config(nested={"rows": endless_array()}), Config()
    value.weights = again.weights = torch.ones(3, requires_grad=True) * 2
    made, other = private_copy([value, again])
    assert made.nested["rows"][0, 0]["rows"][0] is made.nested["rows"]
    assert made.weights is other.weights
    assert made.weights is not value.weights
    assert made.weights.tolist() == [2, 2, 2]


def test_arrays_of_objects_hold_copies() -> None:
    rows = np.empty(3, dtype=object)
    rows[:] = [[1], {"t": torch.ones(1)}, "text"]
    made = private_copy(rows)
    made[0].append(2)
    made[1]["t"].zero_()
    assert rows[0] == [1]
    assert float(rows[1]["t"]) == 1.0
    table = np.array([[[1], [2]], [[3], [4]]], dtype=object)
    assert private_copy(table).shape == table.shape


def test_objects_of_the_users() -> None:
    value = Config()
    made = private_copy(value)
    made.weights.zero_()
    made.nested["list"].append(2)
    assert (float(value.weights.sum()), value.nested) == (3.0, {"list": [1]})


def test_batches_keep_class_flags_and_extra_attributes() -> None:
    data: Any = Extended.from_dict(
        {"i": torch.arange(3)},
        {"s": np.array([[1], [2], [3]], dtype=object)[:, 0]},
        {"m": [1]},
        auto_padding=True,
    )
    data.extra = [1]
    made: Any = private_copy(data)
    assert type(made).__name__ == "Extended"
    assert made.is_padding_enabled()
    made.tensor("i").zero_()
    made.column("s")[0] = "changed"
    made.meta_info["m"].append(2)
    made.extra.append(2)
    assert data.tensor("i").tolist() == [0, 1, 2]
    assert data.column("s")[0] == 1
    assert (data.meta_info, data.extra) == ({"m": [1]}, [1])


def test_batches_without_tensors() -> None:
    assert len(private_copy(DataProto())) == 0
    assert private_copy(DataProto(meta_info={"a": 1})).meta_info == {"a": 1}
    named = DataProto.from_dict(non_tensors={"s": np.array(["a", "b"], dtype=object)})
    assert private_copy(named).column("s").tolist() == ["a", "b"]


def test_tensordicts() -> None:
    from tensordict import TensorDict

    value = TensorDict({"i": torch.arange(2), "deep": {"x": torch.ones(2, 1)}}, batch_size=[2])
    made = private_copy(value)
    made["i"].zero_()
    made["deep", "x"].zero_()
    assert value["i"].tolist() == [0, 1]
    assert float(value["deep", "x"].sum()) == 2.0


def test_futures_among_the_arguments_arrive_as_values() -> None:
    shared = [1]
    future: Future[Any] = Future()
    future.set_result(shared)
    [got], named = private_arguments((future,), {"y": future})
    got.append(2)
    assert shared == [1]
    assert named == {"y": [1]}


def test_private_futures_give_each_reader_a_copy() -> None:
    future = PrivateFuture()
    future.set_result([1])
    future.result().append(2)
    assert future.result() == [1]
    assert future.shared_result() is future.shared_result()


@pytest.mark.parametrize("part", ["batch", "future", "chunk"])
def test_future_batches_give_each_worker_a_copy(part: str) -> None:
    data = DataProto.from_dict({"i": torch.arange(4)})
    ready: Future[Any] = Future()
    ready.set_result(data)
    future: DataProtoFuture[Any] = DataProtoFuture.concat([data if part == "batch" else ready])
    if part == "chunk":
        future = future.chunk(1)[0]
    [[mine], [yours]] = (private_arguments((future,), {})[0] for _ in range(2))
    mine.get().tensor("i").zero_()
    assert yours.get().tensor("i").tolist() == future.get().tensor("i").tolist() == [0, 1, 2, 3]


def test_ranks_that_share_a_memo_share_the_copies() -> None:
    value = torch.ones(2)
    memo: dict[int, object] = {}
    [[one], [other]] = (private_arguments((value,), {}, memo)[0] for _ in range(2))
    assert one is other
    assert one is not value


def test_what_cannot_be_copied_is_an_error() -> None:
    with pytest.raises(TypeError, match="lock"):
        private_copy([threading.Lock()])
