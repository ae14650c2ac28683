"""Results that stay in the worker's memory and go from there to the next worker: Ray Direct Transport.

Only non-blocking calls use it: what a blocking call answers is for the driver, which the store serves
better.
gloo and nccl send between the members of one collective group, and Ray allows a worker one such group for
each of them. It is made at the first call that needs it, so that the workers' own `init_process_group` can
come before.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

import ray
from ray.exceptions import RayError
from verl_dispatch.errors import WorkerGroupError

from verl_ray.actor_class import roles_of
from verl_ray.crew import Crew
from verl_ray.direct_refs import maker_of, transport_of
from verl_ray.group_errors import OutOfReachError, TransportRefusedError
from verl_ray.rank_env import rank_env
from verl_ray.transports import direct_methods

__all__ = ["DirectPaths"]


_connecting = threading.Lock()
"""Views of several roles, and several threads, may ask for the same connection."""


class DirectPaths:
    """The direct transports of one group, or of the view of one role.

    Args:
        crew: the workers.
        user_class: the class that they run.
        role: whose methods are called; None where the workers hold one class only.
    """

    def __init__(self, crew: Crew, user_class: type, role: str | None) -> None:
        self._crew = crew
        self._asked = direct_methods(user_class if role is None else roles_of(user_class)[role])
        self._open: set[tuple[str, int]] = set()

    def open(self, method: str) -> str | None:
        """The transport that the method was registered with, ready for use; None for the store.

        The first time, this waits until the workers are idle and lets them connect.

        Raises:
            TransportRefusedError: somebody else started the workers.
            WorkerGroupError: they could not connect.
        """
        transport = self._asked.get(method)
        if transport is None or (transport, self._crew.generation) in self._open:
            return transport
        if not self._crew.owned:
            raise TransportRefusedError(
                method,
                transport,
                "the group was attached to",
                "call it from the driver that started the workers",
            )
        if transport != "nixl":
            with _connecting:
                self._connect(method, transport)
        self._open.add((transport, self._crew.generation))
        return transport

    def _connect(self, method: str, transport: str) -> None:
        from ray.experimental.collective import create_collective_group, get_collective_groups

        handles = list(self._crew.handles)
        if get_collective_groups(handles, transport):
            return
        try:
            made = create_collective_group(handles, transport)
            ray.get(_restoring(self._crew))
        except (RayError, RuntimeError, ValueError) as error:
            reason = f"the workers could not connect for tensor_transport={transport!r}: {error}"
            raise WorkerGroupError(self._crew.name, method, reason=reason) from error
        weakref.finalize(self._crew, _forget, made.name).atexit = False

    def is_own(self, method: str, ref: Any, rank: int) -> bool:
        """Whether the worker of this rank itself made, and still holds, what is behind a direct reference.

        Raises:
            OutOfReachError: the tensors cannot get to that worker.
        """
        transport, maker, handle = transport_of(ref), maker_of(ref), self._crew.handles[rank]
        if transport is None:
            return False
        # Ray warns, maybe on a thread of its own, where a result also goes to the worker that made it. There
        # it is copied; and where warnings are errors, this one would end the driver.
        warnings.filterwarnings("ignore", message="RDT ObjectRef")
        if maker is None or not _reaches(maker, handle, transport):
            raise OutOfReachError(f"method {method!r} of group {self._crew.name!r}", transport)
        return bool(maker == handle)


def _reaches(maker: Any, handle: Any, transport: str) -> bool:
    if transport == "nixl":
        return bool(handle._ray_enable_tensor_transport)
    from ray.experimental.collective import get_collective_groups

    return bool(get_collective_groups([maker, handle], transport))


def _restoring(crew: Crew) -> list[Any]:
    """Ray has written its own meeting point over the group's."""
    return [
        handle.__ray_call__.remote(_set_environment, rank_env(crew.rank_info(rank)))
        for rank, handle in enumerate(crew.handles)
    ]


def _set_environment(worker: Any, variables: Mapping[str, str]) -> None:
    os.environ.update(variables)


def _forget(name: str) -> None:
    """Drop Ray's record of a collective group whose workers are gone."""
    from ray.experimental.collective.collective import RemoteCommunicatorManager

    RemoteCommunicatorManager.get().remove_remote_communicator(name)
