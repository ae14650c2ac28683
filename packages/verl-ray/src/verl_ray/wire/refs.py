"""References to answers whose tensors stay with the worker (Ray Direct Transport): told apart, and fetched.

What of Ray's alpha interface is not documented is used in this module only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import ray
from ray import cloudpickle
from ray._private.worker import global_worker

__all__ = ["get_answers", "hear", "maker_of", "transport_of"]

CloudPickler: Any = cloudpickle.CloudPickler  # pyright: ignore[reportPrivateImportUsage]
"""Ray's pickler, which Ray leaves untyped."""


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
