"""What goes wrong in a worker is read in the driver: every error crosses a process border as it is."""

from __future__ import annotations

import copy
import pickle
import pkgutil
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import verl_protocol
from verl_protocol import DataProto
from verl_protocol.errors import PortableError

MODULES = [
    import_module(module.name) for module in pkgutil.walk_packages(verl_protocol.__path__, "verl_protocol.")
]
ERRORS = sorted(
    {
        found
        for module in MODULES
        for found in vars(module).values()
        if isinstance(found, type) and issubclass(found, Exception) and found.__module__ == module.__name__
    },
    key=lambda error: error.__name__,
)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.__name__)
def test_every_error_class_can_travel(kind: type[Exception]) -> None:
    assert issubclass(kind, PortableError)
    error = kind.__new__(kind)
    error.args, error.__dict__["fact"] = ("what happened, and 'why'",), 1
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is kind
        assert str(again) == "what happened, and 'why'"
        assert vars(again) == {"fact": 1}


@pytest.mark.parametrize(
    "wrong",
    [
        lambda data: data.tensor("missing"),
        lambda data: data.chunk(3),
        lambda data: data[9],
        lambda data: data.rename(["a"], ["s"]),
        lambda data: data.union(DataProto.from_dict({"a": torch.ones(4)})),
    ],
)
def test_an_error_says_the_same_wherever_it_is_read(wrong: Callable[[Any], object]) -> None:
    data = DataProto.from_dict({"a": torch.arange(4)}, non_tensors={"s": ["x"] * 4})
    with pytest.raises(PortableError) as caught:
        wrong(data)
    arrived = pickle.loads(pickle.dumps(caught.value))
    assert type(arrived) is type(caught.value)
    assert str(arrived) == str(caught.value)
    assert vars(arrived) == vars(caught.value)
