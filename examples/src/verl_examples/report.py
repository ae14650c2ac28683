"""What one step of a run showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class StepReport:
    """What one step showed: `accuracy` is measured on held-out questions, None where it was not measured."""

    step: int
    reward: float
    accuracy: float | None
    kl: float
    samples_per_s: float
    metrics: Mapping[str, float]
