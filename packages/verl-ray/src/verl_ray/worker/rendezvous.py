"""The address where the ranks of a group meet: chosen on the node of rank 0 and held until the worker ends.

The kernel is the registry. The port is bound exclusively, so no two groups of any driver get the same one,
and the socket stays open, bound but not listening, in the process of rank 0. It is then marked SO_REUSEADDR,
which lets torch.distributed (it sets the same flag) listen on the port while all others are kept off.
"""

from __future__ import annotations

import operator
import socket
from dataclasses import dataclass
from typing import Any

from verl_dispatch.workers.rank import address_family
from verl_dispatch.workers.rank import free_port as free_port
from verl_dispatch.workers.rank import host_for_env as host_for_env
from verl_dispatch.workers.rank import host_for_url as host_for_url

from verl_ray.errors import ResourceUnavailable, unusable


@dataclass(frozen=True)
class Rendezvous:
    """MASTER_ADDR (without brackets) and MASTER_PORT of a group."""

    address: str
    port: int


def asked_rendezvous(
    master_addr: str | None = None,
    master_port: int | str | None = None,
    master_port_range: tuple[int, int] | None = None,
) -> Rendezvous | range:
    """What the user said about the meeting point: itself, or the ports to try in order on rank 0's node.

    `master_addr` and `master_port` go together; `master_port_range` is `(first, stop)`, `stop` excluded.
    `range(1)` leaves the choice to the system.

    Raises:
        ValueError: one of the pair without the other, a pair and a range, or numbers that are no ports.

    >>> asked_rendezvous(master_port_range=(29000, 29100))
    range(29000, 29100)
    """
    if master_addr is None or master_port is None:
        if (master_addr, master_port) != (None, None):
            given = {"master_addr": master_addr, "master_port": master_port}
            raise unusable("master_addr and master_port", given, "both or neither")
        return range(1) if master_port_range is None else _ports(master_port_range)
    if master_port_range is not None:
        raise unusable("master_port_range", master_port_range, "no range beside master_addr and master_port")
    port = _whole_number(master_port)
    if isinstance(master_port, bool) or not 1 <= port <= 65535:
        raise unusable("master_port", master_port, "a port number from 1 to 65535")
    return Rendezvous(host_for_env(master_addr), port)


def _ports(master_port_range: tuple[int, int]) -> range:
    try:
        first, stop = map(_whole_number, master_port_range)
    except (TypeError, ValueError):
        first, stop = 0, 0
    if not 1 <= first < stop <= 65536:
        expected = "two port numbers (first, stop) with first < stop, stop excluded"
        raise unusable("master_port_range", master_port_range, expected)
    return range(first, stop)


def _whole_number(given: Any) -> int:
    """The number, also where it comes as a str; 0, which is no port, for anything else."""
    try:
        # int() alone would cut off the fraction of a float.
        return int(given) if isinstance(given, str) else operator.index(given)
    except (TypeError, ValueError):
        return 0


def choose_rendezvous(
    asked: Rendezvous | range, node_address: str
) -> tuple[Rendezvous, socket.socket | None]:
    """Choose where a group meets; rank 0 runs this in its process, and keeps the socket as long as it lives.

    Raises:
        ResourceUnavailable: every port of the requested range is in use on this node.

    >>> meeting, holder = choose_rendezvous(range(1), "127.0.0.1")
    >>> with holder:
    ...     0 < meeting.port < 65536
    True
    """
    if isinstance(asked, Rendezvous):
        return asked, None
    address = host_for_env(node_address)
    for port in asked:
        holder = _open_socket(address_family(address))
        try:
            holder.bind(("", port))
        except OSError:
            holder.close()
            continue
        # Set only after the exclusive bind: from now on a listener with the same flag may join, no one else.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        return Rendezvous(address, int(holder.getsockname()[1])), holder
    raise ResourceUnavailable(
        f"no free port in master_port_range {asked.start}-{asked.stop} on {address}: another group or "
        "program holds each. Widen the range, shut a group down, or leave master_port_range out"
    )


def _open_socket(family: socket.AddressFamily) -> socket.socket:
    """A socket that covers both families where the machine has both, as torch's store listens on both."""
    try:
        # A kernel may know IPv6 and still have it switched off; only a bind tells.
        socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True).close()
    except (OSError, ValueError):
        return socket.socket(family, socket.SOCK_STREAM)
    dual = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    dual.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return dual
