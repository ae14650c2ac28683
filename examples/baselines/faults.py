"""Either program with one fault on its last rank, in the first computation of values.

    python faults.py group exception NOTE --steps 1 ...
    mpiexec -n 2 python -m mpi4py faults.py mpi killed NOTE --steps 1 ...

The moment of the fault is written to the file NOTE, in seconds since the epoch.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from learner import Columns, Learner
from torch import Tensor

KINDS = ("exception", "killed", "wrong size")


@dataclass(frozen=True)
class Fault:
    """What goes wrong: an exception, a killed process, or an answer with one row too few."""

    kind: str
    note: Path

    def strike(self, values: Tensor) -> Tensor:
        """Go wrong, once."""
        if self.note.exists():
            return values
        self.note.write_text(str(time.time()))
        if self.kind == "exception":
            raise ValueError("the injected fault")
        if self.kind == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return values[:-1]


def faulty(fault: Fault) -> type[Learner]:
    """A learner that goes wrong on the last rank."""

    class FaultyLearner(Learner):
        def compute_values(self, part: Columns) -> Tensor:
            values = super().compute_values(part)
            return values if self.rank < self.world_size - 1 else fault.strike(values)

    return FaultyLearner


def main(program: str, kind: str, note: str, *arguments: str) -> int:
    """Run the program with the fault."""
    learner_class = faulty(Fault(kind, Path(note)))
    if program == "mpi":
        import ppo_mpi

        return ppo_mpi.main(learner_class, list(arguments))
    import ppo_group

    return ppo_group.main(learner_class, list(arguments))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
