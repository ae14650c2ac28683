"""Either program with one fault on its last rank, in the first computation of values.

    python faults.py verl-ppo exception NOTE --steps 1 ...
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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


def run_verl_ppo(fault: Fault, arguments: list[str]) -> int:
    """`verl-ppo` with a faulty critic."""
    from verl_dispatch import Dispatch, register
    from verl_examples import cli, roles
    from verl_examples.workers import CriticWorker
    from verl_protocol import DataProto

    class FaultyCritic(CriticWorker):
        @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
        def compute_values(self, batch: DataProto) -> DataProto:
            answer = super().compute_values(batch)
            if self.rank < self.world_size - 1:
                return answer
            return DataProto.from_dict({"values": fault.strike(answer.tensor("values"))})

    setattr(roles, "CriticWorker", FaultyCritic)  # noqa: B010 - a class in place of another
    return cli.main(arguments)


def run_mpi(fault: Fault, arguments: list[str]) -> int:
    """The program by hand with a faulty rank."""
    import ppo_mpi

    class FaultyRank(ppo_mpi.Rank):
        def compute_values(self, part: ppo_mpi.Columns) -> Tensor:
            values = super().compute_values(part)
            return values if ppo_mpi.RANK < ppo_mpi.WORLD_SIZE - 1 else fault.strike(values)

    return ppo_mpi.main(FaultyRank, arguments)


if __name__ == "__main__":
    program, kind, note, *rest = sys.argv[1:]
    run = {"verl-ppo": run_verl_ppo, "mpi": run_mpi}[program]
    sys.exit(run(Fault(kind, Path(note)), rest))
