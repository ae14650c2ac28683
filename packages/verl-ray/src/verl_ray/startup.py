"""How long a start took, stage by stage. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_ray.host import WorkerReport

__all__ = ["StartupTimes", "startup_times"]


@dataclass(frozen=True)
class StartupTimes:
    """Seconds of each stage; of stages that ranks pass at the same time, those of the slowest rank.

    Attributes:
        processes_s: from the request to the start of the import of the user's code.
        imports_s: importing the user's code.
        init_s: the user's constructor.
        actors_s: from the request to the last rank's constructor, exclusive.
        slowest_rank: the rank that was ready last.
        constructors_s: seconds in the user's constructor, rank by rank.
    """

    processes_s: float
    imports_s: float
    init_s: float
    actors_s: float
    slowest_rank: int
    constructors_s: tuple[float, ...]

    def as_dict(self) -> dict[str, Any]:
        """Names and values."""
        return dict(vars(self))


def startup_times(reports: Sequence[WorkerReport], requested_at: float) -> StartupTimes:
    """The stages of a start; `requested_at` in seconds since the epoch.

    Clocks of different nodes may disagree, so no stage is less than 0.
    """
    processes = [max(0.0, report.loaded_at - requested_at) for report in reports]
    imports = [report.imports_s for report in reports]
    constructors = [report.constructor_s for report in reports]
    totals = [sum(stages) for stages in zip(processes, imports, constructors, strict=True)]
    return StartupTimes(
        processes_s=max(processes),
        imports_s=max(imports),
        init_s=max(constructors),
        actors_s=max(p + i for p, i in zip(processes, imports, strict=True)),
        slowest_rank=totals.index(max(totals)),
        constructors_s=tuple(constructors),
    )
