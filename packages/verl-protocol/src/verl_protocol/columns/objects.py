"""Row operations on the entries of a TensorDict that are no tensors: nested TensorDicts and non-tensor data.

tensordict is imported inside the functions only: whoever holds such a value has imported it already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verl_protocol.errors import ColumnError
from verl_protocol.kinds import is_tensordict


def object_column(items: Sequence[Any]) -> NDArray[Any]:
    """A 1-D array whose entries are the very objects of `items`, whatever their shapes."""
    column = np.empty(len(items), dtype=object)
    # Entry by entry: assigning the whole list would let numpy look into equal-length lists and arrays.
    for row, item in enumerate(items):
        column[row] = item
    return column


def map_rows(value: Any, num_rows: int, operation: Callable[[Any], Any]) -> Any:
    """`value` with `operation` applied to each column inside it, which leaves `num_rows` rows."""
    from tensordict import NonTensorData, NonTensorStack

    if isinstance(value, NonTensorStack):
        return stack_rows(operation(object_column(value.tolist())).tolist())
    if isinstance(value, NonTensorData):
        return NonTensorData(value.data, batch_size=[num_rows, *value.batch_size[1:]])
    if not is_tensordict(value):
        raise ColumnError(f"a column cannot be a {type(value).__name__}")
    return _rebuild(value, num_rows, {key: operation(entry) for key, entry in value.items()})


def concat_rows(values: Sequence[Any], concat: Callable[[Sequence[Any]], Any]) -> Any:
    """The rows of all values, which are of one kind, one after the other."""
    from tensordict import NonTensorData, NonTensorStack

    first, count = values[0], sum(value.shape[0] for value in values)
    if all(isinstance(value, (NonTensorData, NonTensorStack)) for value in values):
        if _is_one_value(values):
            return NonTensorData(first.data, batch_size=[count, *first.batch_size[1:]])
        return stack_rows([item for value in values for item in rows_of(value)])
    keys = list(first.keys())
    return _rebuild(first, count, {key: concat([value.get(key) for value in values]) for key in keys})


def _is_one_value(values: Sequence[Any]) -> bool:
    """Whether all of this non-tensor data is one and the same value for all rows."""
    from tensordict import NonTensorStack

    from verl_protocol.columns.equality import equal

    if any(isinstance(value, NonTensorStack) for value in values):
        return False
    return all(equal(values[0].data, value.data) for value in values[1:])


def rows_of(value: Any) -> list[Any]:
    """The entries of non-tensor data, one per row."""
    from tensordict import NonTensorStack

    if isinstance(value, NonTensorStack):
        items: list[Any] = value.tolist()
        return items
    return [value.data] * value.shape[0]


def stack_rows(items: Sequence[Any]) -> Any:
    """Non-tensor data with one entry per row, also for no rows and for equal entries."""
    from tensordict import NonTensorStack

    return NonTensorStack(*items)


def set_stack(tensordict: Any, key: str, items: Sequence[Any]) -> None:
    """Set non-tensor data with one entry per row in a TensorDict."""
    if len(items):
        tensordict.set(key, stack_rows(items))
    else:
        # Up to tensordict 0.10, what `set` checks fails for a stack of nothing.
        tensordict._set_str(key, stack_rows(items), inplace=False, validated=True, non_blocking=False)


def build_tensordict(entries: Mapping[str, Any], **options: Any) -> Any:
    """A TensorDict of these entries, of which some may be non-tensor data of no rows."""
    from tensordict import NonTensorStack, TensorDict

    empty = [key for key, entry in entries.items() if isinstance(entry, NonTensorStack) and not len(entry)]
    if not empty:
        return TensorDict(dict(entries), **options)
    made = TensorDict({}, **options)
    for key, entry in entries.items():
        if key in empty:
            set_stack(made, key, [])
        else:
            made.set(key, entry)
    return made


def _rebuild(model: Any, num_rows: int, entries: dict[str, Any]) -> Any:
    batch_size = [num_rows, *model.batch_size[1:]]
    return build_tensordict(entries, batch_size=batch_size, device=model.device)


def tensordict_entries(value: Any) -> Iterable[tuple[object, Any]]:
    """What a TensorDict holds, by key; for non-tensor data by row."""
    from tensordict import NonTensorStack

    return enumerate(value.tolist()) if isinstance(value, NonTensorStack) else value.items()
