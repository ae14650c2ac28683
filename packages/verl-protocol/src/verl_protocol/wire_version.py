"""The version that every payload begins with, and the errors about payloads of another release."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from verl_protocol.errors import PortableError

WIRE_VERSION = 2
"""The format that this release writes, and the only one that it reads."""


class WireVersionError(PortableError, ValueError):
    """A payload in a format that this release cannot read."""

    def __init__(self, found: object) -> None:
        super().__init__(
            f"the payload is in wire format {found!r}, but verl-protocol {version('verl-protocol')} reads "
            f"wire format {WIRE_VERSION}; write and read it with the same release"
        )


class UnknownDtypeError(PortableError, ValueError):
    """A payload with a dtype that this release of torch does not have."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the payload holds a tensor of dtype {name!r}, which torch {version('torch')} does not know; "
            "load it with the release of torch that wrote it, or convert the column before sending"
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
