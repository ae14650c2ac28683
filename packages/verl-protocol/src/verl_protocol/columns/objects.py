"""Row operations on the entries of a TensorDict that are no tensors: nested TensorDicts and non-tensor data.

tensordict is imported inside the functions only: whoever holds such a value has imported it already.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from verl_protocol.errors import ColumnError, SchemaError
from verl_protocol.kinds import is_tensor, is_tensordict, is_unbatched


def object_column(items: Sequence[Any]) -> NDArray[Any]:
    """A 1-D array whose entries are the very objects of `items`, whatever their shapes."""
    # Assigning the whole list would let numpy look into equal-length lists and arrays.
    return np.fromiter(items, dtype=object, count=len(items))


def fill_objects(array: NDArray[Any], items: Sequence[Any]) -> None:
    """Make these very objects the entries of an object array."""
    array.reshape(-1)[:] = object_column(items)


def map_rows(value: Any, num_rows: int, operation: Callable[[Any], Any]) -> Any:
    """`value` with `operation` applied to each column inside it, which leaves `num_rows` rows."""
    if is_stack(value):
        return stack_rows(operation(object_column(value.tolist())).tolist())
    if is_data(value):
        return data_for(value.data, [num_rows, *value.batch_size[1:]])
    if not is_tensordict(value):
        raise ColumnError(f"a column cannot be a {type(value).__name__}")
    entries = {key: entry if is_unbatched(entry) else operation(entry) for key, entry in value.items()}
    return _rebuild(value, num_rows, entries)


def concat_rows(values: Sequence[Any], concat: Callable[[Sequence[Any]], Any]) -> Any:
    """The rows of all values, which are of one kind, one after the other."""
    from verl_protocol.columns.equality import equal

    first, count = values[0], sum(value.shape[0] for value in values)
    if all(is_data(value) or is_stack(value) for value in values):
        if not any(map(is_stack, values)) and all(equal(first.data, value.data) for value in values[1:]):
            return data_for(first.data, [count, *first.batch_size[1:]])
        return stack_rows([item for value in values for item in rows_of(value)])
    keys = list(first.keys())
    entries = {key: [value.get(key) for value in values] for key in keys}
    joined = {
        key: _common(key, parts) if any(map(is_unbatched, parts)) else concat(parts)
        for key, parts in entries.items()
    }
    return _rebuild(first, count, joined)


def _common(key: str, values: Sequence[Any]) -> Any:
    """The one value that all parts have for all of their rows."""
    from verl_protocol.columns.equality import equal

    if not all(map(is_unbatched, values)) or not all(equal(values[0], value) for value in values[1:]):
        raise SchemaError(f"{key!r} is an UnbatchedTensor, one value for all rows, and differs between parts")
    return values[0]


def rows_of(value: Any) -> list[Any]:
    """The entries of non-tensor data, one per row."""
    items: list[Any] = value.tolist() if is_stack(value) else [value.data] * value.shape[0]
    return items


ArrayForm: TypeAlias = tuple[np.dtype[Any], tuple[int, ...]]
"""The dtype and the row shape of an array."""

_FORM = "_verl_protocol_array_form"


def array_form(stack: Any) -> ArrayForm | None:
    """The form of the array that non-tensor data was made of; None where its rows tell it themselves."""
    form: ArrayForm | None = stack.__dict__.get(_FORM)
    return form


def stack_rows(items: Sequence[Any], form: ArrayForm | None = None) -> Any:
    """Non-tensor data with one entry per row, also for no rows and for equal entries; see `array_form`."""
    from tensordict import NonTensorData, NonTensorStack

    # A TensorDict that is an object in a row would be taken for a part of the stack.
    stack = NonTensorStack(*(NonTensorData(item) if is_tensordict(item) else item for item in items))
    if form is not None:
        stack.__dict__[_FORM] = form
    return stack


def is_stack(value: object) -> bool:
    """Whether `value` is non-tensor data with one entry per row."""
    return isinstance(value, getattr(sys.modules.get("tensordict"), "NonTensorStack", ()))


def is_data(value: object) -> bool:
    """Whether `value` is one piece of non-tensor data."""
    return isinstance(value, getattr(sys.modules.get("tensordict"), "NonTensorData", ()))


def is_whole(value: object) -> bool:
    """Whether `value` is an entry of a TensorDict that belongs to the whole of it, not to its rows."""
    return is_data(value) or is_unbatched(value)


def set_data(tensordict: Any, key: str, value: Any) -> None:
    """Set data that belongs to the whole of a TensorDict."""
    tensordict.set(key, value if is_unbatched(value) else data_for(value, tensordict.batch_size))


def data_for(value: Any, batch_size: Sequence[int]) -> Any:
    """Non-tensor data for all rows of a TensorDict of this batch size."""
    from tensordict import NonTensorData

    return NonTensorData(value, batch_size=batch_size)


def payload_of(unbatched: Any) -> Any:
    """The plain tensor of an `UnbatchedTensor`, which itself is a tensor only since tensordict 0.12."""
    return getattr(unbatched, "_data" if is_tensor(unbatched) else "data")


def set_stack(tensordict: Any, key: str, items: Sequence[Any], form: ArrayForm | None = None) -> None:
    """Set non-tensor data with one entry per row in a TensorDict; see `array_form`."""
    _set_entry(tensordict, key, stack_rows(items, form))


def _set_entry(tensordict: Any, key: str, entry: Any) -> None:
    if is_stack(entry) and (not len(entry) or array_form(entry) is not None):
        # `set` would put a copy of it, without its form, into a TensorDict that has a device. And up to
        # tensordict 0.10, what it checks fails for a stack of nothing.
        tensordict._set_str(key, entry, inplace=False, validated=True, non_blocking=False)
    else:
        tensordict.set(key, entry)


def build_tensordict(entries: Mapping[str, Any], **options: Any) -> Any:
    """A TensorDict of these entries, of which some may be non-tensor data of no rows, or with a form."""
    from tensordict import TensorDict

    if not any(map(is_stack, entries.values())):
        return TensorDict(dict(entries), **options)
    made = TensorDict({}, **options)
    for key, entry in entries.items():
        _set_entry(made, key, entry)
    return made


def _rebuild(model: Any, num_rows: int, entries: dict[str, Any]) -> Any:
    batch_size = [num_rows, *model.batch_size[1:]]
    return build_tensordict(entries, batch_size=batch_size, device=model.device)
