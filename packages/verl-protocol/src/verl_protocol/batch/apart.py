"""A batch taken apart for a store: large columns as a few objects, the rest as a batch that names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import torch

from verl_protocol.batch.state import BatchState
from verl_protocol.columns import ops
from verl_protocol.columns.remote import Origin, Piece, RemoteColumn, Store, form_of
from verl_protocol.columns.travel import LARGE_BYTES, MOST_OBJECTS
from verl_protocol.columns.walk import nbytes_of
from verl_protocol.kinds import is_jagged

S = TypeVar("S", bound=BatchState)

_HEAVY_BYTES: Final = 8_000_000
"""From here on a column lies alone, so that nodes which do not read it need not get it with the others."""

_MOST_ALONE: Final = MOST_OBJECTS - 1

_UNBOUND: Final[Any] = "unbound"
"""The store of pieces that name an object by its number, until `bound` says where the objects lie."""


def set_apart(batch: S, large_bytes: int = LARGE_BYTES) -> tuple[S, list[dict[str, Any]]]:
    """The batch with its large tensor columns as remote ones, and the objects that these are to be read from.

    Columns that are remote already stay as they are. On its way through a store a tensor comes to the CPU.

    Args:
        large_bytes: from which size on a column is set apart.
    """
    held, count = batch._held(), batch._row_count()
    large: dict[str, int] = {}
    for key, column in held.items():
        plain = type(column) is torch.Tensor and not column.is_nested and column.layout is torch.strided
        nbytes = column.nbytes if plain else nbytes_of(column) if is_jagged(column) else -1
        if nbytes >= large_bytes:
            large[key] = nbytes
    followers = ops.sharing(held)
    together = {*followers, *followers.values()}
    heavy = [key for key, nbytes in large.items() if nbytes >= _HEAVY_BYTES and key not in together]
    alone = sorted(heavy, key=large.__getitem__)[-_MOST_ALONE:]
    objects = [{key: held[key]} for key in alone]
    if rest := {key: held[key] for key in large if key not in alone}:
        objects.append(rest)
    for number, columns in enumerate(objects):
        for key, column in columns.items():
            piece = Piece(_UNBOUND, number, key, count, large[key])
            form = form_of(column)._replace(device=torch.device("cpu"))
            held[key] = RemoteColumn(form, [piece], starts=[0, count])
    return (batch._with_tensors(held) if objects else batch), objects


def bound(batch: S, store: Store, refs: Sequence[Any], origin: Origin | None = None) -> S:
    """The very batch that `set_apart` gave, whose objects now lie in `store` under `refs`, in order."""
    tensors: dict[str, Any] = batch._tensors or {}
    for key, column in tensors.items():
        if isinstance(column, RemoteColumn) and column.pieces and column.pieces[0].store == _UNBOUND:
            [unbound] = column.pieces
            piece = Piece(store, refs[unbound.ref], *unbound[2:5], origin)
            tensors[key] = RemoteColumn(column.form, [piece], column.rows, column.starts)
    return batch


def stored(batch: S, store: Store, origin: Origin | None = None) -> S:
    """The batch with its large tensor columns in `store`."""
    rest, objects = set_apart(batch)
    return bound(rest, store, [store.put(columns) for columns in objects], origin) if objects else batch
