"""The data that all ways of the benchmark move."""

from __future__ import annotations

from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray[Any, Any]]

LARGE_ROWS, SMALL_ROWS = 2048, 256
WIDTH = 1024


def numbers(rows: int) -> Arrays:
    """Two int64 and three float32 columns: 28 KiB a row."""
    generator = np.random.default_rng(0)
    arrays: Arrays = {
        key: generator.integers(0, 50_000, (rows, WIDTH), dtype=np.int64)
        for key in ("input_ids", "attention_mask")
    }
    arrays |= {
        key: generator.random((rows, WIDTH), dtype=np.float32)
        for key in ("old_log_probs", "values", "rewards")
    }
    return arrays


def with_names(rows: int) -> Arrays:
    """The columns of `numbers`, and one of names."""
    return numbers(rows) | {"uid": names(rows)}


def names(rows: int) -> np.ndarray[Any, Any]:
    """A name for each row."""
    return np.array([f"prompt-{row}" for row in range(rows)], dtype=object)
