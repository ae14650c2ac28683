"""The version that every payload begins with."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

WIRE_VERSION = 2
"""The format that this release writes, and the only one that it reads."""


class WireVersionError(ValueError):
    """A payload in a format that this release cannot read."""

    def __init__(self, found: object) -> None:
        super().__init__(
            f"the payload is in wire format {found!r}, but verl-protocol {version('verl-protocol')} reads "
            f"wire format {WIRE_VERSION}; write and read it with the same release"
        )


def checked_version(found: object) -> object:
    """`found`, if this release reads that format.

    Raises:
        WireVersionError: it does not.
    """
    if found != WIRE_VERSION:
        raise WireVersionError(found)
    return found


class VersionTag:
    """The first thing in a payload, so that it is checked before the rest is read."""

    def __reduce__(self) -> Any:
        return checked_version, (WIRE_VERSION,)
