"""Looks into any value, and rebuilds one: what holds itself is met once, here and nowhere else.

Inside a value are what batches, TensorDicts, dicts, lists, tuples, sets, dataclasses and object arrays hold.
"""

from __future__ import annotations

import copy
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from verl_protocol.columns.objects import fill_objects, is_stack
from verl_protocol.kinds import PLAIN, is_jagged, is_tensor, is_tensordict

if TYPE_CHECKING:
    import torch


T = TypeVar("T")

Leaf: TypeAlias = "torch.Tensor | NDArray[Any]"


def visited(value: object) -> Iterator[tuple[str, Any]]:
    """Everything in a value that is not plain, the value itself first; each object once.

    It comes with a name such as `a` or `batch[a]` that says where it was found first.
    """
    # What was met is kept, so that its id cannot come to mean another object.
    met: dict[int, Any] = {}
    open_ones: list[tuple[str, Iterator[tuple[object, Any]]]] = [("", iter([("", value)]))]
    while open_ones:
        place, entries = open_ones[-1]
        for key, item in entries:
            if type(item) in PLAIN or id(item) in met:
                continue
            met[id(item)] = item
            name = f"{place}[{key}]" if place else str(key)
            yield name, item
            if inside := _entries(item):
                open_ones.append((name, iter(inside)))
                break
        else:
            open_ones.pop()


def leaves(value: object) -> Iterator[tuple[str, Leaf]]:
    """Every tensor and array with bytes of its own, and its name; of a jagged one what it consists of."""
    for name, item in visited(value):
        if item.dtype != object if isinstance(item, np.ndarray) else is_tensor(item) and not is_jagged(item):
            yield name, item


def _entries(value: Any) -> Iterable[tuple[object, Any]]:
    """The values directly inside another one, each with its key; nothing where all of them are plain."""
    if isinstance(value, dict):
        return () if PLAIN.issuperset(map(type, value.values())) else value.items()
    if isinstance(value, (list, tuple, set, frozenset)):
        return () if PLAIN.issuperset(map(type, value)) else enumerate(value)
    if isinstance(value, np.ndarray):
        items = value.ravel().tolist() if value.dtype == object else ()
        return () if PLAIN.issuperset(map(type, items)) else enumerate(items)
    if is_tensor(value):
        if not is_jagged(value):
            return ()
        from verl_protocol.columns.jagged import jagged_parts

        return jagged_parts(value)._asdict().items()
    if is_tensordict(value):
        return enumerate(value.tolist()) if is_stack(value) else value.items()
    if hasattr(value, "_held"):  # a batch
        return [*value._held().items(), *value.non_tensor_batch.items(), ("meta_info", value.meta_info)]
    if isinstance(value, Mapping):
        return value.items()
    if is_dataclass(value) and not isinstance(value, type):
        return [(field.name, getattr(value, field.name, None)) for field in fields(value)]
    return ()


# --- Sizes ------------------------------------------------------------------------------------------------


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


def storage_nbytes(value: object) -> int:
    """The bytes of memory behind all tensors and arrays in `value`; views of one memory count once."""
    return sum(dict(_storage(leaf) for _, leaf in leaves(value)).values())


def _storage(leaf: Leaf) -> tuple[object, int]:
    if isinstance(leaf, np.ndarray):
        while isinstance(leaf.base, np.ndarray):
            leaf = leaf.base
        return id(leaf), leaf.nbytes
    storage = leaf.untyped_storage()
    return (storage._cdata, str(leaf.device)), storage.nbytes()


# --- Copies and other forms -------------------------------------------------------------------------------


def deep_copy(value: T, memo: dict[int, Any]) -> T:
    """`copy.deepcopy`, also of tensors with a gradient graph and of object arrays that hold themselves."""
    known = len(memo)
    try:
        return copy.deepcopy(value, memo)
    except RuntimeError:  # a RecursionError is one
        for half_made in list(memo)[known:]:
            del memo[half_made]
        _copy_beforehand(value, memo)
        return copy.deepcopy(value, memo)


def _copy_beforehand(value: object, memo: dict[int, Any]) -> None:
    """Put copies of what torch refuses to copy, and of what numpy copies in circles, into the memo."""
    arrays = []
    for _, item in visited(value):
        if type(item) is np.ndarray and item.dtype == object:
            memo[id(item)] = np.empty(item.shape, dtype=object)
            arrays.append(item)
        elif is_tensor(item) and item.requires_grad and not item.is_leaf:
            memo[id(item)] = item.clone()
    for array in arrays:
        fill_objects(memo[id(array)], [copy.deepcopy(item, memo) for item in array.ravel().tolist()])


class Replacer:
    """Rebuilds values with something else in the place of what is inside; what is one object stays one.

    Dicts, lists, tuples, sets and object arrays are made anew where something in them is replaced; otherwise
    they stay the very same. What was replaced is remembered from one value to the next.

    Args:
        anew: make dicts, lists and sets anew in any case, and take object arrays as they are.
        to: gives what to put in the place of a value that is no dict, list, tuple or set: itself to keep it.
    """

    def __init__(self, anew: bool = False, to: Callable[[Any], Any] | None = None) -> None:
        self._anew = anew
        self._to = to
        # Each value is kept beside its form, so that its id cannot come to mean another object.
        self._forms: dict[int, tuple[Any, Any]] = {}

    def change(self, value: Any) -> Any:
        """What `to` puts in the place of a value."""
        return value if self._to is None else self._to(value)

    def __call__(self, value: Any) -> Any:
        """`value` with everything in it replaced."""
        kind = type(value)
        if kind in PLAIN:
            return value
        known = self._forms.get(id(value))
        if known is not None:
            return known[1]
        rebuild = _REBUILDS.get(kind)
        return self.remember(value, self._other(kind, value) if rebuild is None else rebuild(self, value))

    def remember(self, value: Any, form: Any) -> Any:
        """Put `form` in the place of `value` from now on."""
        self._forms[id(value)] = (value, form)
        return form

    def _other(self, kind: type, value: Any) -> Any:
        form = self.change(value)
        if form is not value:
            return form
        if kind is np.ndarray:
            return self._of_array(value) if value.dtype == object and not self._anew else value
        return self._of_tuple(value) if hasattr(kind, "_fields") else value

    # What can hold itself is remembered by its new form before that is filled: a way back to it leads there,
    # and the value on that way counts as changed.

    def _of_dict(self, value: dict[Any, Any]) -> Any:
        if PLAIN.issuperset(map(type, value.values())):
            return copy.copy(value) if self._anew else value
        # Not value.copy(): an OrderedDict such as a state_dict has attributes.
        made = self.remember(value, {} if type(value) is dict else copy.copy(value))
        for key, item in value.items():
            made[key] = self(item)
        return made if self._anew or _differ(made.values(), value.values()) else value

    def _of_list(self, value: list[Any]) -> Any:
        if PLAIN.issuperset(map(type, value)):
            return value.copy() if self._anew else value
        made = self.remember(value, [])
        made.extend([self(item) for item in value])
        return made if self._anew or _differ(made, value) else value

    def _of_array(self, value: NDArray[Any]) -> Any:
        items = value.ravel().tolist()
        if PLAIN.issuperset(map(type, items)):
            return value
        made = self.remember(value, np.empty(value.shape, dtype=object))
        forms = [self(item) for item in items]
        fill_objects(made, forms)
        return made if _differ(forms, items) else value

    def _of_tuple(self, value: Any) -> Any:
        kind = type(value)
        items = [self(item) for item in value]
        if known := self._forms.get(id(value)):
            return known[1]  # a way back through it has made it already
        if _differ(items, value) or (self._anew and kind is set):
            return kind(*items) if hasattr(kind, "_fields") else kind(items)
        return value


_REBUILDS: Final[dict[type, Callable[[Replacer, Any], Any]]] = {
    **dict.fromkeys([dict, OrderedDict, defaultdict], Replacer._of_dict),
    **dict.fromkeys([tuple, set, frozenset], Replacer._of_tuple),
    list: Replacer._of_list,
}


def _differ(items: Iterable[Any], others: Iterable[Any]) -> bool:
    return any(item is not other for item, other in zip(items, others, strict=True))
