"""The address of this machine and a port that is free on it."""

from __future__ import annotations

import socket

__all__ = ["free_port", "node_address"]


def node_address() -> str:
    """The address under which other machines reach this one; loopback where there is no network."""
    # Connecting a datagram socket sends nothing: it only asks the kernel which interface it would use.
    for family, probe in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as link:
                link.connect((probe, 9))
                return str(link.getsockname()[0])
        except OSError:
            continue
    return "127.0.0.1"


def free_port(host: str) -> int:
    """A TCP port that is free on `host` now, asked of the address family that `host` uses.

    >>> 0 < free_port("127.0.0.1") < 65536
    True
    """
    family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), 0, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        return int(listener.getsockname()[1])
