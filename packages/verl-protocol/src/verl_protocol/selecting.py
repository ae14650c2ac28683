"""Columns taken out, taken along or renamed."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from verl_protocol.arguments import flag
from verl_protocol.errors import KeyListError, KeyTypeError, RenameCollisionError, UnknownKeyError

if TYPE_CHECKING:
    from verl_protocol.state import BatchState

S = TypeVar("S", bound="BatchState")

Keys: TypeAlias = "str | Iterable[str] | None"
"""One key, several keys, or None."""

TENSOR, NON_TENSOR, META = "tensor column", "non-tensor column", "meta_info key"


def key_list(keys: Keys) -> list[str]:
    """`keys` as a list without duplicates: a string is one key, None is no key.

    Raises:
        KeyTypeError: something else than strings.
    """
    if keys is None:
        return []
    if isinstance(keys, str):
        return [keys]
    if not isinstance(keys, Iterable):
        raise KeyTypeError(keys)
    named: list[Any] = list(keys)
    if odd := [key for key in named if not isinstance(key, (str, tuple))]:
        raise KeyTypeError(odd[0])
    return list(dict.fromkeys(named))


def pick(source: Mapping[str, Any], keys: Keys, kind: str, missing_ok: bool = False) -> dict[str, Any]:
    """The entries of `source` under `keys`.

    Raises:
        UnknownKeyError: a key that is not there.
    """
    wanted = key_list(keys)
    missing = [key for key in wanted if key not in source]
    if missing and not missing_ok:
        raise UnknownKeyError(missing, kind, source)
    return {key: source[key] for key in wanted if key in source}


def select(data: S, batch: Keys, non_tensors: Keys, meta: Keys, deepcopy: bool, missing_ok: bool) -> S:
    """A batch of some of the columns; None stands for all."""
    deepcopy, missing_ok = flag("deepcopy", deepcopy), flag("missing_ok", missing_ok)
    sources: list[Mapping[str, Any]] = [data._columns(), data.non_tensor_batch, data.meta_info]
    wanted = zip(sources, (batch, non_tensors, meta), (TENSOR, NON_TENSOR, META), strict=True)
    picked = [
        dict(source) if keys is None else pick(source, keys, kind, missing_ok)
        for source, keys, kind in wanted
    ]
    chosen = data._with(picked[0] if data._has_batch() else None, data._checked_rows(), picked[1], picked[2])
    return copy.deepcopy(chosen) if deepcopy else chosen


def pop(data: S, batch: Keys, non_tensors: Keys, meta: Keys) -> S:
    """Take the named columns out of `data` and return them as a batch of their own."""
    tensors = pick(data._columns(), batch, TENSOR)
    arrays = pick(data.non_tensor_batch, non_tensors, NON_TENSOR)
    infos = pick(data.meta_info, meta, META)
    taken = data._with(tensors if tensors else None, data._checked_rows(), arrays, infos)
    rest = {key: column for key, column in data._columns().items() if key not in tensors}
    data._replace(
        rest, _without(data.non_tensor_batch, arrays), _without(data.meta_info, infos), data._row_count()
    )
    return taken


def _without(source: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in source.items() if key not in taken}


def rename(data: S, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> S:
    """Rename columns of either kind, all at once, so that names may be swapped."""
    old, new = key_list(old_keys), key_list(new_keys)
    if len(old) != len(new) or len(old) != _count(old_keys) or len(new) != _count(new_keys):
        raise KeyListError(old_keys, new_keys)
    tensors, arrays = data._columns(), data.non_tensor_batch
    known = [*tensors, *arrays]
    if missing := [key for key in old if key not in known]:
        raise UnknownKeyError(missing, "column", known)
    if taken := [key for key in new if key in known and key not in old]:
        raise RenameCollisionError(taken)
    names = dict(zip(old, new, strict=True))
    data._replace(_renamed(tensors, names), _renamed(arrays, names), data.meta_info, data._checked_rows())
    return data


def _count(keys: str | Sequence[str] | None) -> int:
    return 0 if keys is None else 1 if isinstance(keys, str) else len(keys)


def _renamed(columns: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): column for key, column in columns.items()}
