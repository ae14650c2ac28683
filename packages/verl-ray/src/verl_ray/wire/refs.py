"""References: told apart, fetched, heard of, met while pickling; and whether this process can reach Ray.

What of Ray's alpha interface is not documented is used in this module only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import ray
from ray import cloudpickle
from ray._private.worker import global_worker
from ray.actor import ActorHandle

CloudPickler: Any = cloudpickle.CloudPickler  # pyright: ignore[reportPrivateImportUsage]
"""Ray's pickler, which Ray leaves untyped."""


_beside: ContextVar[list[Any]] = ContextVar("verl_ray_references_beside")


class PicklerAhead(CloudPickler):  # type: ignore[misc]
    """Ray's pickler, for what is pickled before Ray sends it, while `references_met` is open."""

    def reducer_override(self, obj: Any) -> Any:
        """As in Ray's pickler, which asks this about every object."""
        if isinstance(obj, (ray.ObjectRef, ActorHandle)):
            met = _beside.get()
            met.append(obj)
            return _reference, (len(met) - 1,)
        return super().reducer_override(obj)


@contextmanager
def references_met() -> Iterator[list[Any]]:
    """Fills with the references and handles that are pickled here.

    They count only where Ray itself pickles them, so they have to go beside the pickle: see
    `with_references`.
    """
    met: list[Any] = []
    token = _beside.set(met)
    try:
        yield met
    finally:
        _beside.reset(token)


def with_references(refs: list[Any], read: Callable[..., Any], *pickle: Any) -> Any:
    """What `read` makes of a pickle, given the references that were met in it."""
    token = _beside.set(refs)
    try:
        return read(*pickle)
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


def connection() -> str | None:
    """What tells one connection to Ray from another, None without one, or where a fork has none."""
    ray_worker: Any = global_worker
    return str(ray_worker.gcs_client.address) if ray_worker.connected and not _forked_from else None


def no_connection() -> str:
    """Why this process has not the connection to Ray that it, or the one it was forked from, had."""
    if not _forked_from:
        return "this process has left the workers' Ray cluster"
    return (
        f"this process is a fork of driver {_forked_from[-1]}, and Ray's connection does not survive that; "
        "use Ray there, and start processes with multiprocessing.get_context('spawn') or as actors"
    )
