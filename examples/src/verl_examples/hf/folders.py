"""Folders that are there whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_in_one_step(folder: Path) -> Iterator[Path]:
    """A folder to write into that takes its name, and the place of an older one, when all is written."""
    unfinished, old = folder.with_name(f"{folder.name}.unfinished"), folder.with_name(f"{folder.name}.old")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    yield unfinished
    if folder.exists():
        folder.rename(old)
    unfinished.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
