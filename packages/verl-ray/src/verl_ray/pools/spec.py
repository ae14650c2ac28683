"""What a pool was made with: one frozen value, shared by all its views. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any

from verl_protocol.arguments import mapping, text, whole_number

from verl_ray.errors import unusable
from verl_ray.pools.devices import Accelerator, accelerator_named, resource_of_device, worker_demand
from verl_ray.pools.feasibility import Need
from verl_ray.pools.shares import UNIT, share_of

_STRATEGIES = ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD")


@dataclass(frozen=True)
class PoolSpec:
    """Everything that the slots of a pool have in common.

    `shares` groups fit on a slot; a slot reserves `cpus` CPUs and, where `accelerator` is named, one of it.
    """

    accelerator: str | None
    shares: int
    cpus: float
    detached: bool
    accelerator_type: str | None
    timeout_s: float | None
    label_selector: Mapping[str, str] | None
    topology_strategy: Mapping[str, str] | None
    accelerator_is_named: bool = field(compare=False)

    def known_accelerator(self) -> Accelerator | None:
        """The accelerator's description, None for CPU pools."""
        return accelerator_named(self.accelerator) if self.accelerator else None

    def accelerator_on(self, device_name: str | None) -> str | None:
        """The accelerator when the first placement says `device_name`; CPU pools stay CPU pools.

        Raises:
            InvalidValueError: the pool was made for another accelerator.
        """
        if self.accelerator is None or device_name is None:
            return self.accelerator
        resource = resource_of_device(device_name)
        if self.accelerator_is_named and resource != self.accelerator:
            raise unusable("device_name", device_name, f"a device of the pool's {self.accelerator!r}")
        return resource

    def bundle(self, offered: Sequence[str] = ()) -> dict[str, float]:
        """What one slot reserves; `offered` are the resource names that the cluster has."""
        bundle: dict[str, float] = {"CPU": self.cpus} if self.cpus else {}
        if self.accelerator:
            bundle[self.accelerator] = 1.0
        if kind := self.accelerator_type:
            bundle[kind if ":" in kind or kind in offered else f"accelerator_type:{kind}"] = 0.0001
        return bundle

    def worker_options(self) -> dict[str, Any]:
        """Ray options that give one worker its share of a slot."""
        return worker_demand(
            share_of(self.cpus, self.shares), self.known_accelerator(), share_of(1, self.shares)
        )

    def need(self, sizes: Sequence[int], strategy: str | None, offered: Sequence[str]) -> Need:
        """The placement groups to reserve: one per node, or one in all where a topology holds them together.

        Raises:
            InvalidValueError: Ray has no such strategy.
        """
        strategy = strategy or ("PACK" if self.topology_strategy else "STRICT_PACK")
        if strategy not in _STRATEGIES:
            raise unusable("strategy", strategy, f"one of {', '.join(_STRATEGIES)}")
        groups = (sum(sizes),) if self.topology_strategy else tuple(sizes)
        return Need(groups, self.bundle(offered), strategy, self.label_selector, self.topology_strategy)

    def differences(self, other: PoolSpec) -> str:
        """What two pools do not have in common, in words; "" where they were made alike."""
        mine, theirs = vars(self), vars(other)
        names = [each.name for each in fields(self) if each.compare]
        return ", ".join(f"{n}: {mine[n]!r} and {theirs[n]!r}" for n in names if mine[n] != theirs[n])


# --- the parameters of a pool, one by one; each raises InvalidValueError -----------------------------------


def checked_labels(argument: str, given: Mapping[str, str] | None) -> dict[str, str] | None:
    """The labels; None where there are none."""
    return {
        text(argument, name): text(argument, value) for name, value in mapping(argument, given or {}).items()
    } or None


def checked_accelerator(use_gpu: bool, accelerator: str | None) -> str | None:
    """The Ray resource of the accelerators, None for CPU pools."""
    if accelerator is None:
        return "GPU" if use_gpu else None
    if not use_gpu:
        raise unusable("accelerator", accelerator, "no accelerator beside use_gpu=False")
    if not text("accelerator", accelerator) or accelerator.upper() == "CPU":
        raise unusable("accelerator", accelerator, "a resource such as 'GPU', or use_gpu=False")
    return accelerator


def checked_shares(max_colocate_count: int | None, default: int, accelerator: str | None) -> int:
    """How many groups fit on a slot."""
    shareable = accelerator is None or accelerator_named(accelerator).fractional
    if max_colocate_count is None:
        return default if shareable else 1
    shares = whole_number("max_colocate_count", max_colocate_count, 1)
    if shares > (UNIT if shareable else 1):
        most = f"1 to {UNIT}" if shareable else f"1, as Ray cannot share one {accelerator!r}"
        raise unusable("max_colocate_count", shares, most)
    return shares


def checked_cpus(cpus_per_worker: float | None) -> float:
    """CPUs per process."""
    given: Any = 1.0 if cpus_per_worker is None else cpus_per_worker
    if type(given) is bool or not isinstance(given, Real) or not 0 <= float(given) < math.inf:
        raise unusable("cpus_per_worker", given, "a number of CPUs, 0 or more")
    return float(given)
