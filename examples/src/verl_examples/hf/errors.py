"""What the command says when it cannot start."""

from __future__ import annotations

from importlib.util import find_spec

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


class SettingsError(ValueError):
    """Two settings do not go together, or one is out of range."""

    def __init__(self, setting: str, given: object, expected: str) -> None:
        self.setting, self.given = setting, given
        super().__init__(f"{setting} is {given!r}, expected {expected}")


def needs_hugging_face() -> None:
    """Say how to install what is missing.

    Raises:
        ImportError: transformers is not installed.
    """
    if find_spec("transformers") is None:
        raise ImportError("needs transformers: `uv run --extra hf ...`, or `pip install 'verl-examples[hf]'`")
