"""References: told apart, fetched, heard of, met while pickling; and whether this process can reach Ray.

What of Ray's alpha interface is not documented is used in this module only.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any, Final, TypeVar

import ray
from ray import cloudpickle
from ray._private.worker import global_worker
from ray.actor import ActorHandle
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from verl_protocol.columns.travel import travelling
from verl_protocol.wire import dumps, loads
from verl_protocol.wire.buffers import Readers

K = TypeVar("K")
CloudPickler: Any = cloudpickle.CloudPickler  # pyright: ignore[reportPrivateImportUsage]
cloud_dumps: Callable[..., bytes] = cloudpickle.dumps  # pyright: ignore[reportPrivateImportUsage]
"""Ray's pickler, which Ray leaves untyped."""


_SOON_S: Final = 0.1
_beside: ContextVar[list[Any]] = ContextVar("verl_ray_references_beside")


class _PicklerAhead(CloudPickler):  # type: ignore[misc]
    """Ray's pickler, for what is pickled before Ray sends it."""

    def reducer_override(self, obj: Any) -> Any:
        """As in Ray's pickler, which asks this about every object."""
        if isinstance(obj, (ray.ObjectRef, ActorHandle)):
            met = _beside.get()
            met.append(obj)
            return _reference, (len(met) - 1,)
        return super().reducer_override(obj)


def dumps_ahead(value: object, in_band_bytes: int = 0) -> tuple[bytes, list[pickle.PickleBuffer], list[Any]]:
    """What `dumps` gives, and the references and handles that were met.

    They count only where Ray itself pickles them, so they have to go beside the pickle. Remote columns stay
    where they are.
    """
    met: list[Any] = []
    token = _beside.set(met)
    try:
        return *travelling(dumps, value, pickler=_PicklerAhead, in_band_bytes=in_band_bytes), met
    finally:
        _beside.reset(token)


def loads_beside(refs: list[Any], data: Any, buffers: Iterable[Any], readers: Readers) -> Any:
    """The value that `dumps_ahead` took apart; see `verl_protocol.wire.loads`."""
    token = _beside.set(refs)
    try:
        return loads(data, buffers, readers=readers)
    finally:
        _beside.reset(token)


def _reference(index: int) -> Any:
    """The reference of this index beside the pickle that is being read."""
    return _beside.get()[index]


def transport_of(ref: Any) -> str | None:
    """The transport of what is behind the reference, in lower case; None for an ordinary object."""
    name = ref.tensor_transport() if isinstance(ref, ray.ObjectRef) else None
    return None if name is None else str(name).lower()


def maker_of(ref: Any) -> Any:
    """Handle of the actor that holds the tensors; None where another driver or worker asked for them."""
    ray_worker: Any = global_worker
    facts = ray_worker.rdt_manager.get_rdt_metadata(ref.hex())
    return None if facts is None else facts.src_actor


def get_answers(refs: Sequence[Any], timeout: float | None = None) -> list[Any]:
    """`ray.get`, also for answers that stay with their worker: a driver reads those through the store."""
    options = {"_use_object_store": True} if any(map(transport_of, refs)) else {}
    values: list[Any] = ray.get(list(refs), timeout=timeout, **options)
    return values


def is_late(error: BaseException) -> bool:
    """Whether Ray says by this error that something was not there in time; what a task raised is none."""
    return isinstance(error, GetTimeoutError) and not isinstance(error, RayTaskError)


def soon_here(refs: Mapping[K, Any], left_s: float | None) -> dict[K, Any]:
    """The value of each reference, where all come in a moment; none where not, or where one is a failure.

    Most calls are short, and to `hear` of their values costs more than to get them. A signal handler runs
    only after that moment.
    """
    if not is_connected():
        return {}
    timeout_s = _SOON_S if left_s is None else min(_SOON_S, left_s)
    try:
        return dict(zip(refs, ray.get(list(refs.values()), timeout=timeout_s), strict=True))
    except RayError:
        return {}


def hear(ref: Any, take: Callable[[Any, BaseException | None], object]) -> None:
    """Have `take(value, error)` called once the answer is there, on a thread of Ray's own: none waits for it.

    That thread serves all of Ray in this process, and unpickles the value. So answers come sealed: what opens
    them, and imports what they need, is the thread that reads them.
    """

    def heard(future: Future[Any]) -> None:
        error = future.exception()
        take(None if error is not None else future.result(), error)

    ref.future().add_done_callback(heard)


# --- Whether this process can ask Ray for anything --------------------------------------------------------


_forked_from: list[int] = []
"""The driver of which this process is a fork: Ray's connection does not survive that, calls wait for ever."""


def _remember_fork() -> None:
    if ray.is_initialized():
        _forked_from.append(os.getppid())


os.register_at_fork(after_in_child=_remember_fork)


def is_fork() -> bool:
    """Whether this process was forked from one that was connected to Ray."""
    return bool(_forked_from)


def is_connected() -> bool:
    """Whether Ray can be asked; a fork cannot ask."""
    return bool(global_worker.connected) and not _forked_from


def connection() -> str | None:
    """What tells one connection to Ray from another, None where there is none."""
    ray_worker: Any = global_worker
    return str(ray_worker.gcs_client.address) if is_connected() else None


def no_connection() -> str:
    """Why this process has not the connection to Ray that it, or the one it was forked from, had."""
    if not _forked_from:
        return "this process has left the workers' Ray cluster"
    return (
        f"this process is a fork of driver {_forked_from[-1]}, and Ray's connection does not survive that; "
        "use Ray there, and start processes with multiprocessing.get_context('spawn') or as actors"
    )
