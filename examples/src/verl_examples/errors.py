"""What the commands say of settings that they cannot run with, and how they end."""

from __future__ import annotations

EXIT_FAILED, EXIT_BAD_INPUT, EXIT_INTERRUPTED = 1, 2, 130


class SettingsError(ValueError):
    """Two settings do not go together, or one is out of range."""

    def __init__(self, setting: str, given: object, expected: str) -> None:
        self.setting, self.given = setting, given
        super().__init__(f"{setting} is {given!r}, expected {expected}")
