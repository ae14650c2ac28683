"""Workers that a restart has ended: what they were making is refused wherever it is handed on.

Ray writes into a reference which actor makes the value, so the actors' ids are all that has to be kept, and
calls that pass no reference pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
from verl_dispatch.planning.plan import RankCall, arguments_of
from verl_protocol.columns.walk import visited

from verl_ray.errors import StaleFutureError

__all__ = ["refuse_retired", "retire"]


_RETIRED: dict[bytes, tuple[str, int]] = {}
"""Actor id -> name of its group, and the generation that the actor belonged to; a few bytes each."""


def retire(handles: Iterable[Any], group: str, generation: int) -> None:
    """Remember actors whose results are refused from now on."""
    _RETIRED.update({handle._actor_id.binary(): (group, generation) for handle in handles})


def refuse_retired(calls: Iterable[RankCall]) -> None:
    """Let calls pass that get no reference to what a retired worker made, also none within lists, dicts,
    arrays of objects and batches.

    Raises:
        StaleFutureError: the worker that made it was ended by a restart.
    """
    if not _RETIRED:
        return
    # Ranks that get the same are looked at once.
    alike = {(id(call.args), id(call.kwargs)): call for call in calls}
    distinct = {id(value): value for call in alike.values() for value in arguments_of(call)}
    for _, ref in visited(list(distinct.values())):
        made_by = _RETIRED.get(ref.task_id().actor_id().binary()) if isinstance(ref, ray.ObjectRef) else None
        if made_by is not None:
            group, generation = made_by
            raise StaleFutureError(
                group,
                "restart",
                reason=f"an ObjectRef among the arguments was made by generation {generation} of the "
                "workers; the group was restarted since, so it is refused: call the method again, or "
                "pass the value",
            )
