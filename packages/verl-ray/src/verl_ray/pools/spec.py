"""What a pool was made with: one frozen value, shared by all its views. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, SupportsIndex

from verl_ray.errors import MadeOfFacts
from verl_ray.pools.devices import Accelerator, accelerator_named, resource_of_device, worker_demand
from verl_ray.pools.placement import GroupRequest, Patience
from verl_ray.pools.shares import share_of

__all__ = [
    "InvalidPoolArgument",
    "PoolSpec",
    "UnsaidFloat",
    "UnsaidInt",
    "UnsaidStr",
    "as_count",
    "is_unsaid",
]


# --- Values as users give them: defaults told from the same value said outright, counts told from the
#     rest


class UnsaidInt(int):
    """An int that nobody asked for: the default of a parameter."""


class UnsaidFloat(float):
    """A float that nobody asked for: the default of a parameter."""


class UnsaidStr(str):
    """A str that nobody asked for: the default of a parameter."""


def is_unsaid(value: object) -> bool:
    """Whether the caller left the parameter out.

    >>> is_unsaid(UnsaidInt(10)), is_unsaid(10), UnsaidInt(10) == 10
    (True, False, True)
    """
    return isinstance(value, (UnsaidInt, UnsaidFloat, UnsaidStr))


def as_count(value: object) -> int | None:
    """The value as a whole number of at least 1 (numpy's included), None if it is anything else.

    >>> as_count(3), as_count(0), as_count(True), as_count("3")
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    number = value.__index__()
    return number if number >= 1 else None


# --------------------------------------------------------------------------------------------------------


_HOPELESS_S = 30.0
# Ray counts in ten-thousandths.
_MOST_SHARES = 10_000
_DEFAULT_PATIENCE = Patience(300.0, _HOPELESS_S)
_STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")


class InvalidPoolArgument(MadeOfFacts, ValueError):
    """A parameter of the pool cannot be used as given."""

    def __init__(self, argument: str, given: object, expected: str) -> None:
        self.facts = (argument, given, expected)
        self.argument, self.given, self.expected = argument, given, expected
        super().__init__(f"{argument} is {given!r}, expected {expected}")


@dataclass(frozen=True)
class PoolSpec:
    """Everything that the slots of a pool have in common.

    `shares` groups fit on a slot; a slot reserves `cpus` CPUs and, where `accelerator` is named, one of it.
    """

    accelerator: str | None = "GPU"
    accelerator_fixed: bool = False
    shares: int = 10
    cpus: float = 1.0
    detached: bool = False
    accelerator_type: str | None = None
    patience: Patience = _DEFAULT_PATIENCE
    label_selector: Mapping[str, str] | None = None
    topology_strategy: Mapping[str, str] | None = None

    @classmethod
    def of(
        cls,
        *,
        use_gpu: bool,
        max_colocate_count: int,
        detached: bool,
        accelerator_type: str | None,
        accelerator: str | None,
        cpus_per_worker: float | None,
        timeout_s: float,
        label_selector: Mapping[str, str] | None,
        topology_strategy: Mapping[str, str] | None,
    ) -> PoolSpec:
        """Read the parameters of `RayResourcePool`.

        Raises:
            InvalidPoolArgument: a value is out of range, or two contradict each other.
        """
        _check_positive("timeout_s", timeout_s)
        named = _checked_accelerator(use_gpu, accelerator)
        shares = _checked_shares(max_colocate_count, named)
        return cls(
            accelerator=named,
            accelerator_fixed=accelerator is not None,
            shares=shares,
            cpus=_cpus_per_slot(shares, max_colocate_count, cpus_per_worker),
            detached=detached,
            accelerator_type=accelerator_type,
            patience=Patience(timeout_s, min(timeout_s, _HOPELESS_S) if is_unsaid(timeout_s) else timeout_s),
            label_selector=dict(label_selector) if label_selector else None,
            topology_strategy=dict(topology_strategy) if topology_strategy else None,
        )

    def known_accelerator(self) -> Accelerator | None:
        """The accelerator's description, None for CPU pools."""
        return accelerator_named(self.accelerator) if self.accelerator else None

    def bundle(self, offered: Sequence[str] = ()) -> dict[str, float]:
        """What one slot reserves; `offered` are the resource names that the cluster has."""
        bundle: dict[str, float] = {"CPU": self.cpus} if self.cpus else {}
        if self.accelerator:
            bundle[self.accelerator] = 1.0
        if self.accelerator_type:
            bundle[self._type_resource(offered)] = 0.0001
        return bundle

    def _type_resource(self, offered: Sequence[str]) -> str:
        name = self.accelerator_type or ""
        return name if ":" in name or name in offered else f"accelerator_type:{name}"

    def worker_options(self) -> dict[str, Any]:
        """Ray options that give one worker its share of a slot."""
        return worker_demand(
            share_of(self.cpus, self.shares), self.known_accelerator(), share_of(1, self.shares)
        )

    def accelerator_on(self, device_name: str) -> str | None:
        """The accelerator when the first placement says `device_name`; CPU pools stay CPU pools.

        Raises:
            InvalidPoolArgument: the pool was made for another accelerator.
        """
        if self.accelerator is None or is_unsaid(device_name):
            return self.accelerator
        resource = resource_of_device(device_name)
        if self.accelerator_fixed and resource != self.accelerator:
            raise InvalidPoolArgument(
                "device_name", device_name, f"a device of the pool's {self.accelerator!r}"
            )
        return resource

    def requests(
        self, sizes: Sequence[int], strategy: str, name: str | None, prefix: str, offered: Sequence[str]
    ) -> list[GroupRequest]:
        """The placement groups to create: one per node, or one in all where a topology holds them together.

        Names get a unique ending, unless the caller asks for an exact `name`: it gets the number only.
        """
        if strategy not in _STRATEGIES:
            raise InvalidPoolArgument("strategy", strategy, f"one of {', '.join(_STRATEGIES)}")
        base = name if name is not None else f"{prefix}_{'_'.join(map(str, sizes))}_{uuid.uuid4().hex[:8]}:"
        return [
            GroupRequest(
                size=size,
                bundle=self.bundle(offered),
                strategy=strategy,
                name=f"{base}{number}",
                detached=self.detached,
                label_selector=self.label_selector,
                topology_strategy=self.topology_strategy,
            )
            for number, size in enumerate(self.group_sizes(sizes))
        ]

    def group_sizes(self, sizes: Sequence[int]) -> list[int]:
        """Bundles of each placement group."""
        return [sum(sizes)] if self.topology_strategy else list(sizes)

    def differences(self, other: PoolSpec) -> dict[str, tuple[Any, Any]]:
        """The attributes in which two pools differ: `{name: (mine, theirs)}`."""
        pairs = {
            field.name: (getattr(self, field.name), getattr(other, field.name)) for field in fields(self)
        }
        return {
            name: pair for name, pair in pairs.items() if pair[0] != pair[1] and name != "accelerator_fixed"
        }


def _check_positive(argument: str, given: float) -> None:
    if isinstance(given, bool) or not given > 0:
        raise InvalidPoolArgument(argument, given, "a number of seconds greater than 0")


def _checked_accelerator(use_gpu: bool, accelerator: str | None) -> str | None:
    if accelerator is None:
        return "GPU" if use_gpu else None
    if not use_gpu:
        raise InvalidPoolArgument("accelerator", accelerator, "no accelerator beside use_gpu=False")
    if not accelerator or accelerator.upper() == "CPU":
        raise InvalidPoolArgument("accelerator", accelerator, "a resource such as 'GPU', or use_gpu=False")
    return accelerator


def _checked_shares(max_colocate_count: object, accelerator: str | None) -> int:
    shares = as_count(max_colocate_count)
    if shares is None or shares > _MOST_SHARES:
        raise InvalidPoolArgument("max_colocate_count", max_colocate_count, f"1 to {_MOST_SHARES}")
    if shares == 1 or accelerator is None or accelerator_named(accelerator).fractional:
        return shares
    if is_unsaid(max_colocate_count):
        return 1
    expected = f"1, as Ray cannot share one {accelerator!r}"
    raise InvalidPoolArgument("max_colocate_count", max_colocate_count, expected)


def _cpus_per_slot(shares: int, max_colocate_count: int, cpus_per_worker: float | None) -> float:
    """One CPU per group that the user asked room for; by default one CPU for all of them together."""
    if cpus_per_worker is None:
        return 1.0 if is_unsaid(max_colocate_count) else float(shares)
    if isinstance(cpus_per_worker, bool) or cpus_per_worker < 0:
        raise InvalidPoolArgument("cpus_per_worker", cpus_per_worker, "a number of CPUs, 0 or more")
    return float(cpus_per_worker * shares)
