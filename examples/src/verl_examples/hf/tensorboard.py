"""The numbers of a run for TensorBoard, where that is installed."""

from __future__ import annotations

from pathlib import Path

from verl_examples.records import metrics_record
from verl_examples.report import StepReport


class TensorBoard:
    """Writes every number of a step; without TensorBoard it writes nothing.

    Args:
        after_step: what an earlier attempt wrote for later steps is hidden.
    """

    def __init__(self, folder: Path, after_step: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            self._writer = None
        else:
            self._writer = SummaryWriter(folder, purge_step=after_step + 1)

    def add(self, report: StepReport) -> None:
        """Take a step."""
        if self._writer is not None:
            for name, value in metrics_record(report).items():
                if value is not None and name != "step":
                    self._writer.add_scalar(name, value, report.step)
            self._writer.flush()
