"""The tiny model that the tests of the Hugging Face program share."""

from __future__ import annotations

from pathlib import Path

import pytest
from verl_examples.hf.tiny import write_tiny_model
from verl_examples.question_file import DEFAULT_FILE, read_records


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small Llama with random weights, and its tokenizer."""
    pytest.importorskip("transformers", reason="needs the extra hf")
    folder = tmp_path_factory.mktemp("tiny") / "model"
    write_tiny_model(folder, read_records(DEFAULT_FILE))
    return folder


@pytest.fixture(scope="session")
def few_questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A question file that is measured in a moment."""
    file = tmp_path_factory.mktemp("questions") / "sorting.jsonl"
    lines = DEFAULT_FILE.read_text().splitlines()
    file.write_text("\n".join(lines[:400] + lines[-24:]) + "\n")
    return file
