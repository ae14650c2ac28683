"""Workers that a restart has ended: what they were making is refused wherever it is handed on.

Ray writes into a reference which actor makes the value, so the actors' ids are all that has to be kept, and
calls that pass no reference pay nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ray
from verl_dispatch.plan import RankCall

from verl_ray.group_errors import StaleReferenceError

__all__ = ["refuse_retired", "retire"]

_RETIRED: dict[bytes, tuple[str, int]] = {}
"""Actor id -> name of its group, and the generation that the actor belonged to; a few bytes each."""


def retire(handles: Iterable[Any], group: str, generation: int) -> None:
    """Remember actors whose results are refused from now on."""
    _RETIRED.update({handle._actor_id.binary(): (group, generation) for handle in handles})


def refuse_retired(calls: Iterable[RankCall]) -> None:
    """Let calls pass that get no reference to what a retired worker made.

    Raises:
        StaleReferenceError: the worker that made it was ended by a restart.
    """
    if not _RETIRED:
        return
    for call in calls:
        for value in (*call.args, *call.kwargs.values()):
            if isinstance(value, ray.ObjectRef):
                _refuse(value)


def _refuse(ref: Any) -> None:
    made_by = _RETIRED.get(ref.task_id().actor_id().binary())
    if made_by is not None:
        raise StaleReferenceError(*made_by)
