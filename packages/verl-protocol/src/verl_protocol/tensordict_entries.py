"""Entries of a TensorDict: set, read and taken out, whatever form non-tensor data has in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from verl_protocol.columns import check_columns, checked_dict
from verl_protocol.errors import (
    ColumnTypeError,
    KeyCollisionError,
    RowCountError,
    ScalarColumnError,
    UnknownKeyError,
)
from verl_protocol.kinds import is_tensordict
from verl_protocol.metadata import copy_meta
from verl_protocol.nested import object_column, rows_of, set_stack
from verl_protocol.selecting import key_list
from verl_protocol.tensordict_batch import is_data, is_stack, set_data, set_entry

if TYPE_CHECKING:
    from tensordict import TensorDict


def get_tensordict(
    tensor_dict: Mapping[str, Any], non_tensor_dict: Mapping[str, Any] | None = None
) -> TensorDict:
    """A TensorDict of columns and of data without rows; neither dict is changed.

    Args:
        tensor_dict: columns: tensors (dense or jagged), or lists and arrays with one entry per row.
        non_tensor_dict: data that belongs to the whole.

    Raises:
        RowCountError: columns with different numbers of rows.
        ColumnTypeError: a value that has no rows.
        KeyCollisionError: a key in both dicts.
        NotADictError, KeyTypeError: no dict whose keys can name columns.

    >>> data = get_tensordict({"a": torch.zeros(2, 3), "s": ["x", "y"]}, {"step": 1})
    >>> get(data, "s"), get(data, "step")
    (['x', 'y'], 1)
    """
    from tensordict import TensorDict

    columns = {key: _column(key, value) for key, value in checked_dict("tensor_dict", tensor_dict).items()}
    others = copy_meta(non_tensor_dict)
    if common := sorted(set(columns) & set(others)):
        raise KeyCollisionError(common, "a column and data without rows")
    count = check_columns(columns, {})
    made = TensorDict({}, batch_size=[count] if columns else [])
    for key, column in columns.items():
        set_entry(made, key, column)
    for key, value in others.items():
        set_data(made, key, value)
    return made


def _column(key: str, value: Any) -> Any:
    if is_stack(value) or is_data(value):
        return object_column(rows_of(value)) if value.batch_size else value
    if isinstance(value, torch.Tensor) or is_tensordict(value):
        if value.ndim == 0:
            raise ScalarColumnError(key)
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return value
    if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
        raise ColumnTypeError(key, value, "a column is a tensor, or a list with one entry per row")
    return object_column(value)


def assign_non_tensor(tensor_dict: TensorDict, **kwargs: Any) -> TensorDict:
    """Set data in `tensor_dict` itself and return it: lists have one entry per row, others none."""
    for key, value in kwargs.items():
        if isinstance(value, list):
            assign_non_tensor_stack(tensor_dict, key, value)
        else:
            assign_non_tensor_data(tensor_dict, key, value)
    return tensor_dict


def assign_non_tensor_data(tensor_dict: TensorDict, key: str, val: Any) -> None:
    """Set data that belongs to the whole of `tensor_dict`, in place."""
    if is_data(val) or is_stack(val):
        tensor_dict.set(key, val)
    else:
        set_data(tensor_dict, key, val)


def assign_non_tensor_stack(tensor_dict: TensorDict, key: str, val: Sequence[Any]) -> None:
    """Set data with one entry per row in `tensor_dict`, in place.

    Raises:
        RowCountError: not one entry per row.
        ColumnTypeError: not a list.
    """
    if is_stack(val):
        val = rows_of(val)
    if isinstance(val, (str, bytes)) or not isinstance(val, (Sequence, np.ndarray)):
        raise ColumnTypeError(key, val, "data with one entry per row is a list")
    count = tensor_dict.batch_size[0] if len(tensor_dict.batch_size) else None
    if count != len(val):
        raise RowCountError({"tensor_dict": count or 0, key: len(val)})
    set_stack(tensor_dict, key, list(val))


def unwrap_non_tensor_data(data: Any) -> Any:
    """The value of non-tensor data, a list for one entry per row; anything else as it is."""
    if isinstance(data, torch.Tensor):
        return data
    if is_stack(data):
        return data.tolist()
    return data.data if is_data(data) else data


def get(tensordict: TensorDict, key: str, default: Any = None) -> Any:
    """The entry under `key`, or `default`; non-tensor data as its value, a list for one entry per row."""
    return unwrap_non_tensor_data(tensordict.get(key)) if _holds(tensordict, key) else default


def get_non_tensor_data(data: TensorDict, key: str, default: Any) -> Any:
    """As `get`: the value of non-tensor data, or `default`."""
    return get(data, key, default)


def pop(tensordict: TensorDict, key: str, default: Any = None) -> Any:
    """As `get`, and the entry is taken out."""
    if not _holds(tensordict, key):
        return default
    value = get(tensordict, key)
    tensordict.del_(key)
    return value


def get_keys(tensordict: TensorDict, keys: Iterable[str]) -> TensorDict:
    """A TensorDict of these entries, each as it is.

    Raises:
        UnknownKeyError: a key that is not there.
    """
    from tensordict import TensorDict

    wanted = _known(tensordict, keys)
    made = TensorDict({}, batch_size=tensordict.batch_size, device=tensordict.device)
    for key in wanted:
        entry = tensordict.get(key)
        if is_stack(entry):
            set_stack(made, key, entry.tolist())
        else:
            made.set(key, entry)
    return made


def pop_keys(tensordict: TensorDict, keys: Iterable[str]) -> TensorDict:
    """A TensorDict of these entries, which are taken out.

    Raises:
        UnknownKeyError: a key that is not there; nothing was taken out then.
    """
    taken = get_keys(tensordict, keys)
    for key in list(taken.keys()):
        tensordict.del_(key)
    return taken


def _holds(tensordict: TensorDict, key: Any) -> bool:
    return key in tensordict.keys(include_nested=isinstance(key, tuple))


def _known(tensordict: TensorDict, keys: Iterable[str]) -> list[str]:
    wanted = key_list(keys)
    if missing := [key for key in wanted if not _holds(tensordict, key)]:
        raise UnknownKeyError(missing, "entry", dict.fromkeys(map(str, tensordict.keys())))
    return wanted
