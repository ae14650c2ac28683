"""Host names and ports in both notations and both families."""

from __future__ import annotations

import ipaddress
import socket

__all__ = ["address_family", "free_port", "host_for_env", "host_for_url"]


def host_for_env(host: str) -> str:
    """The host as MASTER_ADDR wants it: no brackets.

    >>> host_for_env("[fe80::1]"), host_for_env("10.0.0.1")
    ('fe80::1', '10.0.0.1')
    """
    return host.strip().removeprefix("[").removesuffix("]")


def host_for_url(host: str) -> str:
    """The host as `host:port` and URLs want it: IPv6 in brackets, all else as it is.

    >>> host_for_url("fe80::1"), host_for_url("[fe80::1]"), host_for_url("node-3")
    ('[fe80::1]', '[fe80::1]', 'node-3')
    """
    bare = host_for_env(host)
    return f"[{bare}]" if ":" in bare else bare


def address_family(host: str) -> socket.AddressFamily:
    """AF_INET6 for an IPv6 address, AF_INET for an IPv4 address, for a name what it resolves to."""
    bare = host_for_env(host)
    try:
        version = ipaddress.ip_address(bare).version
    except ValueError:
        return _family_of_name(bare)
    return socket.AF_INET6 if version == 6 else socket.AF_INET


def _family_of_name(name: str) -> socket.AddressFamily:
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except OSError:
        return socket.AF_INET
    families = {answer[0] for answer in answers}
    return socket.AF_INET if socket.AF_INET in families or not families else socket.AF_INET6


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free on `host` now, tested on the family that will be used.

    Another program may take it before you do; groups use `verl_ray.rendezvous`, which keeps hold of its port.

    Raises:
        OSError: `host` is no address of this machine.
    """
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host_for_env(host), 0))
        return int(probe.getsockname()[1])
