"""Ray's object store as the place of remote columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import ray
from ray.exceptions import RayError
from verl_protocol.errors import ColumnsLost
from verl_protocol.futures.any_batch import is_proto

from verl_ray.wire.message import packed
from verl_ray.wire.sealed import opened

if TYPE_CHECKING:
    from verl_protocol.columns.remote import Piece

__all__ = ["RAY_STORE", "with_objects"]


class _RayStore:
    """References are those of Ray; what they stand for is read as it lies there, and never written to."""

    def put(self, columns: Mapping[str, Any]) -> Any:
        """A reference to a snapshot of the columns."""
        return ray.put(packed(dict(columns), "one"))

    def fetch(self, pieces: Sequence[Piece], columns: str) -> list[Mapping[str, Any]]:
        """What the references stand for, all fetched at once.

        Raises:
            ColumnsLost: an object went with its node, or the worker failed before it was made.
        """
        if not ray.is_initialized():
            raise ColumnsLost(columns, "this process has left the cluster", *_maker(pieces[0]))
        try:
            found: list[Mapping[str, Any]] = ray.get([piece.ref for piece in pieces])
        except RayError:
            raise _lost(pieces, columns) from None
        return found

    def __reduce__(self) -> str:
        return "RAY_STORE"


RAY_STORE: Final = _RayStore()


def _lost(pieces: Sequence[Piece], columns: str) -> ColumnsLost:
    """The error for the first piece that cannot be had."""
    for piece in pieces:
        try:
            ray.get(piece.ref)
        except RayError as error:
            reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            lost = ColumnsLost(columns, reason, *_maker(piece))
            lost.__cause__ = error
            return lost
    return ColumnsLost(columns, "Ray could not give them just now", *_maker(pieces[0]))


def _maker(piece: Piece) -> tuple[Any, ...]:
    return () if piece.origin is None else tuple(piece.origin)


def with_objects(value: Any, objects: Sequence[Any], origin: tuple[Any, ...] | None) -> Any:
    """An answer whose large columns are these objects; anything but a batch has none."""
    answer = opened(value, "one")
    if not is_proto(answer):
        return answer
    # Imported here: only who has a batch has torch.
    from verl_protocol.batch.apart import bound
    from verl_protocol.columns.remote import Origin

    return bound(answer, RAY_STORE, objects, None if origin is None else Origin(*origin))
