"""Whether parts fit together: checked over all parts and columns before any of them is touched."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from verl_protocol import jagged
from verl_protocol.errors import ColumnMismatchError, MissingColumnsError
from verl_protocol.kinds import is_jagged, is_tensordict

Part = tuple[int, Mapping[str, Any]]
"""The place of a part in the list that the user gave, and its columns."""


def check_schema(parts: Sequence[Part], kind: str, padded: frozenset[str] = frozenset()) -> None:
    """Check that the columns of all parts can be put one after the other.

    Args:
        kind: what the columns are called in messages.
        padded: tensor columns whose widths may differ.

    Raises:
        MissingColumnsError: parts have different columns.
        ColumnMismatchError: a column has not the same type, dtype, device or row shape everywhere.
    """
    keys = {place: set(columns) for place, columns in parts}
    everywhere = set.intersection(*keys.values())
    if any(found != everywhere for found in keys.values()):
        raise MissingColumnsError(kind, {place: sorted(map(str, found)) for place, found in keys.items()})
    for key in parts[0][1]:
        if key in padded or not _plainly_alike([columns[key] for _, columns in parts]):
            _check_column(key, [(place, columns[key]) for place, columns in parts], key in padded)


def _plainly_alike(column: Sequence[Any]) -> bool:
    """Whether all parts are dense tensors or arrays of one form, seen fast as there may be thousands."""
    if all(type(part) is torch.Tensor for part in column):
        forms = {(part.dtype, part.shape[1:], part.device, part.layout) for part in column}
        return len(forms) == 1 and column[0].layout is torch.strided and not column[0].is_nested
    if all(type(part) is np.ndarray for part in column):
        return len({(part.dtype, part.shape[1:]) for part in column}) == 1
    return False


def _check_column(key: str, column: Sequence[tuple[int, Any]], padded: bool) -> None:
    if isinstance(column[0][1], np.ndarray):
        # An array without rows says nothing about its dtype: numpy makes float64 of an empty list.
        column = [(place, part) for place, part in column if len(part)] or column[:1]
    first_place, first = column[0]
    expected = dict(_facts(first, padded))
    for place, part in column[1:]:
        found = dict(_facts(part, padded))
        differing = {name for name in expected | found if expected.get(name) != found.get(name)}
        if (
            isinstance(first, np.ndarray)
            and isinstance(part, np.ndarray)
            and object in (first.dtype, part.dtype)
        ):
            # Objects may be of any kind, so an array of objects takes the rows of any other array.
            differing.discard("kind")
        if differing:
            name = min(differing, key=[*expected, *found].index)
            raise ColumnMismatchError(
                key, name, {first_place: _shown(expected, name), place: _shown(found, name)}
            )


def _shown(facts: Mapping[str, Any], name: str) -> Any:
    return facts.get(name, facts["type"])


def _facts(column: Any, padded: bool) -> Iterator[tuple[str, Any]]:
    """What must be the same in all parts, the most telling first."""
    if isinstance(column, np.ndarray):
        yield from {"type": "array", "kind": column.dtype.kind, "row shape": column.shape[1:]}.items()
    elif is_jagged(column):
        parts = jagged.jagged_parts(column)
        shape = tuple("*" if dim == parts.dim - 1 else size for dim, size in enumerate(parts.values.shape))
        yield from {"type": "jagged tensor", "ragged dim": parts.dim, "row shape": shape}.items()
        yield from {"dtype": column.dtype, "device": column.device}.items()
    elif isinstance(column, torch.Tensor):
        shape = ("*",) * (column.ndim - 1) if padded else tuple(column.shape[1:])
        yield from {"type": "dense tensor", "row shape": shape}.items()
        yield from {"dtype": column.dtype, "device": column.device}.items()
    elif is_tensordict(column):
        yield from {"type": "nested TensorDict", "keys": sorted(map(str, column.keys()))}.items()
        yield "batch dims", column.batch_size[1:]
    else:
        yield "type", type(column).__name__
