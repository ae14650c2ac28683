"""Checkpoints: a folder for each, there whole or not at all, the last few kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from verl_protocol import DataProto

from verl_examples.hf.folders import written_in_one_step

_STATE, _AHEAD = "state.json", "ahead.batch"


@dataclass(frozen=True)
class Position:
    """How far a run is: steps done, questions drawn, and what was measured before the first step."""

    step: int
    drawn: int
    accuracy_before: float
    accuracy_warmed_up: float
    settings: dict[str, str]


class Checkpoints:
    """The checkpoints below one folder."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def latest(self) -> Path | None:
        """The folder of the last one."""
        return next(iter(self._newest_first()), None)

    def clear(self) -> None:
        """Remove those of a run before this one."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def write(self, position: Position, ahead: DataProto | None, save: Callable[[Path], None]) -> None:
        """Write one, then remove what is more than `keep` ago.

        Args:
            ahead: answers that were generated for the next step.
            save: writes the workers' part into a folder.
        """
        with written_in_one_step(self._folder / f"step-{position.step:06}") as folder:
            save(folder)
            if ahead is not None:
                ahead.save_to_disk(folder / _AHEAD)
            (folder / _STATE).write_text(json.dumps(asdict(position)))
        for old in self._newest_first()[self._keep :]:
            shutil.rmtree(old)

    def _newest_first(self) -> list[Path]:
        found = [folder for folder in self._folder.glob("step-*") if not folder.suffix]
        return sorted(found, key=lambda folder: int(folder.name.removeprefix("step-")), reverse=True)


def read_position(folder: Path) -> Position:
    """How far the run of a checkpoint was."""
    return Position(**json.loads((folder / _STATE).read_text()))


def read_ahead(folder: Path) -> DataProto | None:
    """Answers that were generated for the step after a checkpoint."""
    return DataProto.load_from_disk(folder / _AHEAD) if (folder / _AHEAD).exists() else None
