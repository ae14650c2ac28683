"""Visits the tensors and arrays inside a value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from verl_protocol.columns.objects import tensordict_entries
from verl_protocol.kinds import is_jagged, is_tensor, is_tensordict

if TYPE_CHECKING:
    import torch


_PLAIN = frozenset([str, int, float, bool, bytes, complex, type(None)])


Leaf: TypeAlias = "torch.Tensor | NDArray[Any]"


def leaves(value: object, name: str = "") -> Iterator[tuple[str, Leaf]]:
    """Every tensor and array in batches, TensorDicts, dicts, lists, tuples, dataclasses and object arrays.

    Each comes once, with a name such as `a` or `batch[a]` that says where it was found first. Of a jagged
    tensor come the tensors that it consists of.
    """
    return _leaves(value, name, {})


def _leaves(value: Any, name: str, seen: dict[int, Any]) -> Iterator[tuple[str, Leaf]]:
    if type(value) in _PLAIN or id(value) in seen:
        return
    seen[id(value)] = value
    if is_leaf(value):
        yield name, value
    for key, child in _children(value):
        yield from _leaves(child, f"{name}[{key}]" if name else str(key), seen)


def is_leaf(value: object) -> bool:
    """Whether `value` is a tensor or array that holds bytes of its own."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    return is_tensor(value) and not is_jagged(value)


def _children(value: Any) -> Iterable[tuple[object, Any]]:
    """The values directly inside another one, each with its key."""
    if isinstance(value, Mapping) or is_tensordict(value):
        return tensordict_entries(value) if is_tensordict(value) else value.items()
    if isinstance(value, np.ndarray):
        # Of an array without dimensions `tolist` gives the object itself.
        return _items(np.atleast_1d(value).tolist()) if value.dtype == object else ()
    if isinstance(value, (list, tuple)):
        return _items(value)
    if is_jagged(value):
        return _parts_of_jagged(value)
    if hasattr(value, "_held"):
        return [*value._held().items(), *value.non_tensor_batch.items(), ("meta_info", value.meta_info)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return ()


def _parts_of_jagged(value: torch.Tensor) -> Iterable[tuple[object, Any]]:
    from verl_protocol.columns.jagged import jagged_parts

    values, offsets, lengths, _ = jagged_parts(value)
    return [("values", values), ("offsets", offsets), ("lengths", lengths)]


def _items(items: Sequence[Any]) -> Iterable[tuple[object, Any]]:
    return () if _PLAIN.issuperset(map(type, items)) else enumerate(items)


def nbytes_of(value: object) -> int:
    """The bytes of all tensors and arrays in `value`; those that are one object count once.

    >>> import torch
    >>> weight = torch.zeros(10)
    >>> nbytes_of({"a": weight, "again": [weight]})
    40
    """
    return sum(_nbytes(leaf) for _, leaf in leaves(value))


def _nbytes(leaf: Leaf) -> int:
    return leaf.nbytes if isinstance(leaf, np.ndarray) else leaf.numel() * leaf.element_size()
