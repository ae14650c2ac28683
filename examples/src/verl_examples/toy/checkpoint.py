"""The weights that a run leaves behind: `checkpoint.pt`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from verl_examples.toy.model import ModelConfig
from verl_examples.toy.tokenizer import CharTokenizer


def save_checkpoint(
    path: Path, model: ModelConfig, tokenizer: CharTokenizer, weights: dict[str, dict[str, Tensor]]
) -> None:
    """Write sizes, alphabet and each role's weights; `torch.load(path)` reads it without running code."""
    content = {"model": asdict(model), "alphabet": tokenizer.alphabet, "weights": weights}
    unfinished = path.with_suffix(".tmp")
    torch.save(content, unfinished)
    os.replace(unfinished, path)
