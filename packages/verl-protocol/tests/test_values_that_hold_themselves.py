"""Values that hold themselves are compared, measured, shown, copied and sent; nothing runs for ever."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import DataProto, equal, wire
from verl_protocol.columns.walk import leaves


def endless_list() -> Any:
    made: list[Any] = [1, torch.ones(2)]
    made.append(made)
    return made


def endless_dict() -> Any:
    made: dict[str, Any] = {"a": torch.ones(2)}
    made["me"] = made
    return made


def endless_array() -> Any:
    made = np.array([None, torch.ones(2), "x"], dtype=object)
    made[0] = made
    return made


def endless_deep_in_an_array() -> Any:
    made = np.array([None, torch.ones(2)], dtype=object)
    made[0] = [({"k": made},)]
    return made


def endless_tuple() -> Any:
    made: tuple[list[Any], torch.Tensor] = ([], torch.ones(2))
    made[0].append(made)
    return made


def batch() -> DataProto:
    return DataProto.from_dict({"a": torch.ones(2)}, {"o": [None, "x"]}, {"step": 1})


def endless_meta() -> Any:
    made = batch()
    made.meta_info["me"] = made.meta_info
    return made


def endless_column() -> Any:
    made = batch()
    made.non_tensor_batch["o"][0] = made.non_tensor_batch["o"]
    return made


def batch_in_its_own_meta() -> Any:
    made = batch()
    made.meta_info["me"] = made
    return made


def batch_in_its_own_column() -> Any:
    made = batch()
    made.non_tensor_batch["o"][0] = {"me": made}
    return made


# How each is made, and two ways to the one object in it.
VALUES: list[tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = [
    (endless_list, lambda value: value, lambda value: value[2]),
    (endless_dict, lambda value: value, lambda value: value["me"]),
    (endless_array, lambda value: value, lambda value: value[0]),
    (endless_deep_in_an_array, lambda value: value, lambda value: value[0][0][0]["k"]),
    (endless_tuple, lambda value: value[0], lambda value: value[0][0][0]),
    (endless_meta, lambda data: data.meta_info, lambda data: data.meta_info["me"]),
    (endless_column, lambda data: data.column("o"), lambda data: data.column("o")[0]),
    (batch_in_its_own_meta, lambda data: data, lambda data: data.meta_info["me"]),
    (batch_in_its_own_column, lambda data: data, lambda data: data.column("o")[0]["me"]),
]
every_value = pytest.mark.parametrize("make", [make for make, *_ in VALUES])


def tensor_in(value: Any) -> torch.Tensor:
    """The one tensor in the value."""
    [(_, tensor)] = leaves(value)
    assert isinstance(tensor, torch.Tensor)
    return tensor


@every_value
def test_it_equals_its_like_and_nothing_else(make: Callable[[], Any]) -> None:
    value, other = make(), make()
    assert equal(value, other)
    tensor_in(other)[0] = 5
    assert not equal(value, other)


@every_value
def test_it_is_measured_once_and_shown(make: Callable[[], Any]) -> None:
    assert wire.nbytes_of(make()) == 8
    assert len(repr(make())) < 1000


@pytest.mark.parametrize(("make", "one", "other"), VALUES)
@pytest.mark.parametrize(
    "sent",
    [
        lambda value: wire.loads(*wire.dumps(value)),
        lambda value: pickle.loads(pickle.dumps(wire.pack(value), 5)),
        lambda value: pickle.loads(pickle.dumps(wire.pack(value), 2)),
    ],
    ids=["dumps", "packed", "protocol 2"],
)
def test_it_arrives_as_it_was(
    make: Callable[[], Any],
    one: Callable[[Any], Any],
    other: Callable[[Any], Any],
    sent: Callable[[Any], Any],
) -> None:
    arrived = sent(make())
    assert equal(arrived, make())
    assert one(arrived) is other(arrived)


@pytest.mark.parametrize(
    "make", [endless_meta, endless_column, batch_in_its_own_meta, batch_in_its_own_column]
)
@pytest.mark.parametrize(
    "operation",
    [
        copy.copy,
        copy.deepcopy,
        lambda data: pickle.loads(pickle.dumps(data, 5)),
        lambda data: data.slice(),
        lambda data: data.select(deepcopy=True),
        lambda data: data.slice().to("cpu", objects=True),
        lambda data: data.slice().union(data),
        lambda data: DataProto.concat([data, data])[:2],
    ],
)
def test_a_batch_goes_through_every_operation(
    make: Callable[[], DataProto], operation: Callable[[DataProto], DataProto]
) -> None:
    data = make()
    made = operation(data)
    assert equal(made.tensor("a"), data.tensor("a"))
    assert made.meta_info.keys() == data.meta_info.keys()
    assert "o: object[2]" in repr(made)
    assert copy.deepcopy(data[0]) == data[0]


@pytest.mark.parametrize(("make", "one", "other"), VALUES[5:])
def test_a_deep_copy_leads_back_to_the_copy(
    make: Callable[[], Any], one: Callable[[Any], Any], other: Callable[[Any], Any]
) -> None:
    data = make()
    copied = copy.deepcopy(data)
    assert one(copied) is other(copied)
    assert one(copied) is not one(data)


def test_the_meta_info_of_a_slice_leads_back_to_itself() -> None:
    data = endless_meta()
    piece = data[:1]
    assert piece.meta_info["me"] is piece.meta_info
    assert piece.meta_info is not data.meta_info


def test_a_parameter_may_lead_back_to_itself() -> None:
    weight: Any = torch.nn.Parameter(torch.ones(2))
    weight.owner = [weight]
    arrived = wire.loads(*wire.dumps(weight))
    assert arrived.owner[0] is arrived
    assert arrived.requires_grad


@pytest.mark.parametrize("place", ["column", "meta_info", "nested"])
def test_a_deep_copy_takes_tensors_of_a_computation_wherever_they_lie(place: str) -> None:
    computed = torch.ones(2, requires_grad=True) * 2
    data = {
        "column": DataProto.from_dict(non_tensors={"o": [computed, computed]}),
        "meta_info": DataProto.from_dict({"a": torch.ones(2)}, meta_info={"loss": computed}),
        "nested": DataProto.from_dict(non_tensors={"o": [{"kept": [computed]}, 1]}),
    }[place]
    for made in (copy.deepcopy(data), data.select(deepcopy=True)):
        assert made.equals(data)
        copied = tensor_in([made.non_tensor_batch, made.meta_info])
        assert copied is not computed
        assert copied.grad_fn is not None
