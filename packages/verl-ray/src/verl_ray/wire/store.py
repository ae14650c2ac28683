"""Ray's object store as the place of remote columns."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.experimental import get_object_locations
from verl_protocol.errors import ColumnsLost
from verl_protocol.futures.any_batch import is_proto
from verl_protocol.wire.buffers import SelfReduced

from verl_ray.wire.refs import is_connected, is_late, no_connection
from verl_ray.wire.sealed import Payload, opened_compact, sealed

if TYPE_CHECKING:
    from verl_protocol.columns.remote import Piece

_LOOK_AFTER_S: Final = 2.0
_CONNECT_S: Final = 1.0
_ASK_MS: Final = 2_000


class _RayStore(SelfReduced):
    """References are those of Ray; what they stand for is read as it lies there, and never written to."""

    def put(self, columns: Mapping[str, Any]) -> Any:
        """A reference to a snapshot of the columns."""
        return ray.put(sealed(dict(columns)).fields())

    def fetch(self, pieces: Sequence[Piece], columns: str) -> list[Mapping[str, Any]]:
        """What the references stand for, all fetched at once.

        Raises:
            ColumnsLost: an object went with its node, or the worker failed before it was made.
        """
        if not is_connected():
            raise ColumnsLost(columns, no_connection(), *(pieces[0].origin or ()))
        refs, limit_s = [piece.ref for piece in pieces], _LOOK_AFTER_S
        while True:
            try:
                return [Payload(*each).open("one") for each in ray.get(refs, timeout=limit_s)]
            except RayError as error:
                if not is_late(error):
                    raise _lost(pieces, columns, error) from error
                if gone := _out_of_reach(pieces):
                    reason = "no node that has them can be reached"
                    raise ColumnsLost(columns, reason, *(gone.origin or ())) from None
                # What is only slow begins anew each time, so it gets longer each time.
                limit_s *= 2

    def __reduce__(self) -> str:
        return "RAY_STORE"


RAY_STORE: Final = _RayStore()


def _out_of_reach(pieces: Sequence[Piece]) -> Piece | None:
    """The first piece none of whose nodes can be reached.

    Ray tells of a lost node when its health checks have failed often enough, which takes 13 seconds and more.
    """
    try:
        places = get_object_locations([piece.ref for piece in pieces], timeout_ms=_ASK_MS)
    except GetTimeoutError:
        return None
    nodes: Any = ray.nodes
    ports = {node["NodeID"]: (node["NodeManagerAddress"], node["ObjectManagerPort"]) for node in nodes()}
    reached = lru_cache(_can_be_reached)
    for piece in pieces:
        # A small object has no place, nor has one that nobody has made yet.
        on = places.get(piece.ref, {}).get("node_ids", ())
        if on and not any(reached(ports.get(node)) for node in on):
            return piece
    return None


def _can_be_reached(port: tuple[str, int] | None) -> bool:
    try:
        if port is not None:
            socket.create_connection(port, timeout=_CONNECT_S).close()
    except OSError:
        return False
    return port is not None


def _lost(pieces: Sequence[Piece], columns: str, error: RayError) -> ColumnsLost:
    ref = getattr(error, "object_ref_hex", None)
    piece = next((piece for piece in pieces if piece.ref.hex() == ref), pieces[0])
    # What the worker ran into, such as a full disk; the error around it begins with who the worker was.
    cause = error.cause if isinstance(error, RayTaskError) else error
    said = str(cause).partition("\n")[0].partition(". ")[0]
    return ColumnsLost(columns, f"{type(cause).__name__}: {said}", *(piece.origin or ()))


def with_objects(value: Any, objects: Sequence[Any], maker: Sequence[Any]) -> Any:
    """An answer whose large columns are these objects; anything but a batch has none.

    Args:
        maker: group, method, rank and generation.
    """
    answer = opened_compact(value)
    if not is_proto(answer):
        return answer
    # Imported here: only who has a batch has torch.
    from verl_protocol.batch.apart import bound

    origin: Any = tuple(maker[:4])
    return bound(answer, RAY_STORE, objects, origin)
