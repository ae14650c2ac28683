"""Who makes a result, so that a failure is told as that of who was to make it, and what a restart ended is
refused wherever it is handed on.

Ray writes into a reference which actor makes the value, so a few bytes for each actor are all that is kept.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import ray
from verl_dispatch.planning.plan import RankCall, arguments_of
from verl_protocol.columns.walk import visited

from verl_ray.errors import StaleFutureError

AN_EARLIER_CALL = "(an earlier call)"
"""Stands for the method that makes a result, where neither we nor Ray know it."""


class Makers(Protocol):
    """The workers that make an answer: what a future needs to know of a group."""

    name: str
    grace_s: float
    generation: int

    def check_generation(self, method: str, generation: int) -> None:
        """Refuse what an earlier generation made."""

    def check_connected(self, method: str) -> None:
        """Refuse to ask for answers once this process has left the workers' cluster."""

    def failure(
        self, method: str, errors: Mapping[int, BaseException], silent: Collection[int], generation: int
    ) -> BaseException:
        """The error of a call that failed on some ranks, while others stayed silent."""
        ...


class Maker(NamedTuple):
    """Who makes an answer: one rank of a group, in a call of a method.

    `workers` are those of the group, None where nothing is known of it here. Whoever has them keeps the
    workers alive, also where their group has been dropped.
    """

    group: str = ""
    method: str = AN_EARLIER_CALL
    rank: int = 0
    generation: int = 0
    workers: Makers | None = None

    def calls_as(self, other: Maker) -> bool:
        """Whether the two answers are, as far as their errors go, of the same call."""
        return self._replace(rank=other.rank) == other


UNKNOWN = Maker()


_MAKERS: dict[str, tuple[weakref.ref[Any], Maker]] = {}
"""Each worker of the groups of this process, also of those that are gone, by its actor's id."""

_RETIRED: set[str] = set()
"""Those of them that a restart has ended: calls pay for looking only once there are some."""


def remember(workers: Makers, handles: Sequence[Any], generation: int) -> None:
    """Let failures of these actors be told as those of a rank of `workers`, which knows them first."""
    kept = weakref.ref(workers)
    for rank, handle in enumerate(handles):
        actor_id = handle._actor_id.hex()
        if maker_of_actor(actor_id) is None:
            _MAKERS[actor_id] = kept, Maker(workers.name, rank=rank, generation=generation)


def maker_of_actor(actor_id: str, method: str = AN_EARLIER_CALL) -> Maker | None:
    """The worker that the actor is, while its group is there."""
    kept, maker = _MAKERS.get(actor_id, (lambda: None, UNKNOWN))
    workers = kept()
    return None if workers is None else maker._replace(method=method, workers=workers)


def retire(handles: Iterable[Any]) -> None:
    """Refuse results of these actors from now on."""
    _RETIRED.update(handle._actor_id.hex() for handle in handles)


def refuse_retired(calls: Iterable[RankCall]) -> None:
    """Let calls pass that get no reference to what a retired worker made, also none within lists, dicts,
    arrays of objects and batches.

    Raises:
        StaleFutureError: the worker that made it was ended by a restart.
    """
    if not _RETIRED:
        return
    # What several ranks get is looked at once.
    distinct = {id(value): value for call in calls for value in arguments_of(call)}
    for _, ref in visited(list(distinct.values())):
        if isinstance(ref, ray.ObjectRef) and (actor_id := ref.task_id().actor_id().hex()) in _RETIRED:
            _, made_by = _MAKERS[actor_id]
            raise StaleFutureError(
                made_by.group,
                AN_EARLIER_CALL,
                reason=f"an ObjectRef among the arguments was made by generation {made_by.generation} of the "
                "workers; the group was restarted since, so it is refused: call the method again, or "
                "pass the value",
            )
