"""Variants of one piece of work, run in turn in one process and compared by their medians."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Variant = Callable[[], object]


@dataclass(frozen=True)
class Row:
    """One line of the table: the library's time beside that of each other way, in milliseconds."""

    work: str
    medians_ms: Mapping[str, float]

    def ratio(self, variant: str, baseline: str) -> float:
        return self.medians_ms[variant] / self.medians_ms[baseline]


def measure(work: str, variants: Mapping[str, Variant], rounds: int, warm_up: int) -> Row:
    """Medians over `rounds` rounds of all variants in turn, after `warm_up` rounds that are thrown away."""
    times: dict[str, list[float]] = {name: [] for name in variants}
    for round_number in range(warm_up + rounds):
        for name, variant in variants.items():
            start = time.perf_counter()
            variant()
            if round_number >= warm_up:
                times[name].append((time.perf_counter() - start) * 1e3)
    return Row(work, {name: statistics.median(values) for name, values in times.items()})
