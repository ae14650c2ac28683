"""The environment of a worker: merged from all who have a say, conflicts named. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from typing import Any

from verl_dispatch.workers.rank import RankInfo
from verl_protocol.arguments import mapping, texts
from verl_protocol.errors import InvalidTypeError, InvalidValueError

from verl_ray.pools.devices import DEVICE_MASKS

_ANY_RANK = RankInfo(rank=0, world_size=1, master_addr="", master_port="")

RANK_VARIABLES: frozenset[str] = frozenset({*_ANY_RANK.environment(), "GROUP_RANK", "ROLE_RANK"})
"""Variables that the group sets itself, one value per rank, and what else torchrun calls a rank."""


def checked_env(argument: str, variables: Mapping[str, str] | None) -> dict[str, str]:
    """A copy of the variables that a user gave.

    Raises:
        ValueError: a rank or device variable, or a name or value that no system takes.
        TypeError: a name or value is no str.

    >>> checked_env("worker_env", {"NCCL_DEBUG": "INFO"})
    {'NCCL_DEBUG': 'INFO'}
    """
    given: Iterable[tuple[object, object]] = mapping(argument, variables or {}).items()
    for name, value in given:
        if not isinstance(name, str) or not isinstance(value, str):
            # Of what type it is, and not what it is: variables hold secrets.
            kinds = f"a {type(name).__name__} for a {type(value).__name__}"
            raise InvalidTypeError(f"{argument} has {kinds} ({name!r}), expected strs; write str(value)")
        if not name or "=" in name or "\0" in name + value:
            raise InvalidValueError(
                f"{argument} has {name!r}: no system takes such a name, or a null in a value"
            )
        _refuse_owned(name, argument)
    return dict(variables or {})


def _refuse_owned(name: str, argument: str) -> None:
    if name in DEVICE_MASKS:
        owner = "Ray from the devices it assigns; leave it out"
    elif name in RANK_VARIABLES:
        owner = (
            "the group, one value per rank; leave it out (master_addr= and master_port= choose where to meet)"
        )
    else:
        return
    raise InvalidValueError(f"{argument} may not set {name}: it is set by {owner}")


def forwarded_env(names: Iterable[str] | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of this process that `names` picks; a name may be a pattern such as `NCCL_*`, and one
    name may stand alone.

    Raises:
        ValueError: a rank or device variable is named outright (patterns pass over them), or a plain name is
            not set.

    >>> forwarded_env(["NCCL_*"], {"NCCL_DEBUG": "INFO", "HOME": "/"})
    {'NCCL_DEBUG': 'INFO'}
    """
    picked: list[str] = []
    for name in texts("forward_env", names):
        if any(mark in name for mark in "*?["):
            owned = RANK_VARIABLES | DEVICE_MASKS
            picked += [each for each in environ if fnmatch.fnmatchcase(each, name) and each not in owned]
            continue
        _refuse_owned(name, "forward_env")
        if name not in environ:
            raise InvalidValueError(
                f"forward_env names {name!r}, which is not set in this process; set it, leave it out, "
                "or give a pattern such as 'NCCL_*', which may match nothing"
            )
        picked.append(name)
    return {name: environ[name] for name in picked}


def merge_settings(**sources: Mapping[str, Any] | None) -> dict[str, Any]:
    """Join variables, Ray options or runtime environments key by key, dicts within them likewise.

    The arguments, each passed under the name it has for the user, stay as they are.

    Raises:
        ValueError: two sources give one key different values.

    >>> merge_settings(options={"env_vars": {"X": "1"}, "pip": ["a"]}, worker_env={"env_vars": {"Y": "2"}})
    {'env_vars': {'X': '1', 'Y': '2'}, 'pip': ['a']}
    """
    merged: dict[str, Any] = _agreed({name: source or {} for name, source in sources.items()})
    return merged


def _agreed(values: Mapping[str, Any], path: str = "") -> Any:
    """What all sources say together about the setting at this path."""
    if all(isinstance(value, Mapping) for value in values.values()):
        said_by: dict[str, dict[str, Any]] = {}
        for source, settings in values.items():
            for key, value in settings.items():
                said_by.setdefault(key, {})[source] = value
        return {key: _agreed(said, f"{path}.{key}" if path else key) for key, said in said_by.items()}
    (first, agreed), *others = values.items()
    for source, value in others:
        if value != agreed:
            # Without the values: variables hold secrets.
            raise InvalidValueError(f"{path} differs between {first} and {source}; set it in one place")
    return agreed
