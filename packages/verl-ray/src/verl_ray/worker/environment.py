"""The environment of a worker: merged from all who have a say, conflicts named. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from verl_dispatch.workers.rank import RankInfo

from verl_ray.errors import MadeOfFacts
from verl_ray.pools.devices import DEVICE_MASKS
from verl_ray.pools.ordering import local_ranks
from verl_ray.worker.rendezvous import Rendezvous

__all__ = [
    "RANK_VARIABLES",
    "ForbiddenVariable",
    "ForwardedVariableMissing",
    "InvalidVariable",
    "SettingsConflict",
    "checked_env",
    "forwarded_env",
    "merge_env",
    "merge_runtime_env",
    "rank_env",
    "rank_infos",
]


RANK_VARIABLES: frozenset[str] = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "ROLE_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "RAY_LOCAL_WORLD_SIZE",
        "WG_PREFIX",
        "WG_BACKEND",
    }
)
"""Variables that the group sets itself, one value per rank."""


class ForbiddenVariable(MadeOfFacts, ValueError):
    """A variable that belongs to the group or to Ray was set from outside."""

    def __init__(self, name: str, argument: str) -> None:
        self.facts = (name, argument)
        self.name, self.argument = name, argument
        owner = "Ray from the devices it assigns" if name in DEVICE_MASKS else "the group, one value per rank"
        super().__init__(
            f"{argument} may not set {name}: it is set by {owner}; leave it out"
            + ("" if name in DEVICE_MASKS else " (master_addr= and master_port= choose the meeting point)")
        )


class ForwardedVariableMissing(MadeOfFacts, ValueError):
    """A variable to forward is not set in this process."""

    def __init__(self, name: str) -> None:
        self.facts = (name,)
        self.name = name
        super().__init__(
            f"forward_env names {name!r}, which is not set in this process; set it, leave it out, "
            "or give a pattern such as 'NCCL_*', which may match nothing"
        )


class InvalidVariable(MadeOfFacts, TypeError):
    """An environment variable's name or value is no string."""

    def __init__(self, argument: str, name: object, value: object) -> None:
        self.facts = (argument, name, value)
        self.argument, self.name, self.value = argument, name, value
        super().__init__(f"{argument} has {name!r}: {value!r}, expected a str for a str; write str(value)")


class SettingsConflict(MadeOfFacts, ValueError):
    """Two sources set one thing to different values."""

    def __init__(self, path: str, first: tuple[str, object], second: tuple[str, object]) -> None:
        self.facts = (path, first, second)
        self.path, self.first, self.second = path, first, second
        super().__init__(
            f"{path} is {first[1]!r} in {first[0]} and {second[1]!r} in {second[0]}; set it in one place"
        )


def checked_env(argument: str, variables: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of the variables that a user gave.

    Raises:
        ForbiddenVariable: a rank or device variable.
        InvalidVariable: a name or value is no str.

    >>> checked_env("worker_env", {"NCCL_DEBUG": "INFO"})
    {'NCCL_DEBUG': 'INFO'}
    """
    given: Iterable[tuple[object, object]] = (variables or {}).items()
    for name, value in given:
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidVariable(argument, name, value)
        _refuse_owned(name, argument)
    return dict(variables or {})


def _refuse_owned(name: str, argument: str) -> None:
    if name in RANK_VARIABLES or name in DEVICE_MASKS:
        raise ForbiddenVariable(name, argument)


def forwarded_env(names: Iterable[str] | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that `names` picks; a name may be a pattern such as `NCCL_*`.

    Raises:
        ForbiddenVariable: a rank or device variable is named outright; patterns pass over them.
        ForwardedVariableMissing: a plain name is not set.

    >>> forwarded_env(["NCCL_*"], {"NCCL_DEBUG": "INFO", "HOME": "/"})
    {'NCCL_DEBUG': 'INFO'}
    """
    picked: dict[str, str] = {}
    for name in names or ():
        picked |= _matching(name, environ) if _is_pattern(name) else {name: _named(name, environ)}
    return picked


def _is_pattern(name: str) -> bool:
    return any(mark in name for mark in "*?[")


def _matching(pattern: str, environ: Mapping[str, str]) -> dict[str, str]:
    owned = RANK_VARIABLES | DEVICE_MASKS
    found = (name for name in environ if fnmatch.fnmatchcase(name, pattern) and name not in owned)
    return {name: environ[name] for name in found}


def _named(name: str, environ: Mapping[str, str]) -> str:
    _refuse_owned(name, "forward_env")
    if name not in environ:
        raise ForwardedVariableMissing(name)
    return environ[name]


def merge_env(**sources: Mapping[str, str] | None) -> dict[str, str]:
    """Join the variables of several sources, each passed under the name it has for the user.

    Raises:
        SettingsConflict: two sources give one variable different values.

    >>> merge_env(worker_env={"A": "1"}, forward_env={"B": "2"})
    {'A': '1', 'B': '2'}
    """
    return dict(_merge_sources({name: source for name, source in sources.items() if source}, ""))


def merge_runtime_env(**sources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Join Ray runtime environments key by key, dicts within them likewise; the arguments stay as they are.

    Raises:
        SettingsConflict: two sources give one key different values.

    >>> merge_runtime_env(options={"env_vars": {"X": "1"}, "pip": ["a"]}, worker_env={"env_vars": {"Y": "2"}})
    {'env_vars': {'X': '1', 'Y': '2'}, 'pip': ['a']}
    """
    return _merge_sources({name: source for name, source in sources.items() if source}, "")


def _merge_sources(sources: Mapping[str, Mapping[str, Any]], path: str) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    said_by: dict[str, dict[str, Any]] = {}
    for source, settings in sources.items():
        for key, value in settings.items():
            said_by.setdefault(key, {})[source] = value
    for key, values in said_by.items():
        merged[key] = _agreed(f"{path}{key}", values)
    return merged


def _agreed(path: str, values: Mapping[str, Any]) -> Any:
    if all(isinstance(value, Mapping) for value in values.values()):
        return _merge_sources(values, f"{path}.")
    (first, agreed), *others = values.items()
    for source, value in others:
        if value != agreed:
            raise SettingsConflict(path, (first, agreed), (source, value))
    return agreed


# --- Who is who in a group: ranks over slots, and torchrun's variables for each. Pure ---------------------


def rank_infos(
    nodes: Sequence[Hashable],
    rendezvous: Rendezvous,
    *,
    group_prefix: str = "",
    backend: str = "ray",
    device_indices: Sequence[int | None] | None = None,
) -> tuple[RankInfo, ...]:
    """The identity of every rank of a group.

    Args:
        nodes: for each rank what stands for its node, such as `slot.node_key`.
        device_indices: for each rank the index of its device among those it sees, None on CPU.
    """
    devices = device_indices if device_indices is not None else [None] * len(nodes)
    return tuple(
        RankInfo(
            rank=rank,
            world_size=len(nodes),
            local_rank=local_rank,
            local_world_size=local_world_size,
            master_addr=rendezvous.address,
            master_port=str(rendezvous.port),
            group_prefix=group_prefix,
            backend=backend,
            device_index=device,
        )
        for rank, ((local_rank, local_world_size), device) in enumerate(
            zip(local_ranks(nodes), devices, strict=True)
        )
    )


def rank_env(info: RankInfo) -> dict[str, str]:
    """The environment variables of one rank: the same that torchrun sets, and the group's own.

    >>> info, = rank_infos(["a"], Rendezvous("10.0.0.1", 29500), group_prefix="actor")
    >>> [rank_env(info)[name] for name in ("RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "WG_PREFIX")]
    ['0', '1', '29500', 'actor']
    """
    return info.environment()
