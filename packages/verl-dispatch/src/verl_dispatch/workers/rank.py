"""Who a worker is: its rank and its group, as the backend says or as torchrun's variables say."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from verl_protocol.errors import InvalidValueError

from verl_dispatch.errors import MissingRankVariablesError


def _bad_variable(name: str, value: object, expected: str) -> InvalidValueError:
    return InvalidValueError(f"{name} is {value!r}, expected {expected}")


@dataclass(frozen=True)
class RankInfo:
    """What one worker of a group knows about its place in it.

    `local_rank` counts workers on the node; `device_index` is the index of the accelerator among those
    the process can see, None on CPU. The two are different numbers.

    >>> RankInfo(rank=1, world_size=2, local_rank=1, local_world_size=2).environment()["LOCAL_RANK"]
    '1'
    """

    rank: int
    world_size: int
    local_rank: int = 0
    local_world_size: int = 1
    master_addr: str | None = None
    master_port: str | None = None
    group_prefix: str = ""
    backend: str = ""
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.world_size < 1:
            raise _bad_variable("world_size", self.world_size, "at least 1")
        if not 0 <= self.rank < self.world_size:
            raise _bad_variable("rank", self.rank, f"0 to {self.world_size - 1}")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> RankInfo:
        """Read the variables that torchrun sets.

        Raises:
            MissingRankVariablesError: RANK or WORLD_SIZE is not set.
            InvalidValueError: a variable is no whole number, or the rank is outside the world.
        """
        env = os.environ if environ is None else environ
        missing = tuple(name for name in ("RANK", "WORLD_SIZE") if name not in env)
        if missing:
            raise MissingRankVariablesError(missing)
        return cls(
            rank=_whole_number(env, "RANK"),
            world_size=_whole_number(env, "WORLD_SIZE"),
            local_rank=_whole_number(env, "LOCAL_RANK", "0"),
            local_world_size=_whole_number(env, "LOCAL_WORLD_SIZE", "1"),
            master_addr=env.get("MASTER_ADDR"),
            master_port=env.get("MASTER_PORT"),
            group_prefix=env.get("WG_PREFIX", ""),
            backend=env.get("WG_BACKEND", ""),
        )

    def same_rank(self, other: RankInfo) -> bool:
        """Whether both are the same rank of an equally large group."""
        return (self.rank, self.world_size) == (other.rank, other.world_size)

    def environment(self) -> dict[str, str]:
        """The environment variables that say the same as this object."""
        variables = {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "RAY_LOCAL_WORLD_SIZE": str(self.local_world_size),
            "WG_PREFIX": self.group_prefix,
            "WG_BACKEND": self.backend,
        }
        if self.master_addr is not None and self.master_port is not None:
            variables |= {"MASTER_ADDR": self.master_addr, "MASTER_PORT": self.master_port}
        return variables


def _whole_number(env: Mapping[str, str], name: str, default: str | None = None) -> int:
    text = env[name] if default is None else env.get(name, default)
    try:
        return int(text)
    except ValueError:
        raise _bad_variable(name, text, "a whole number") from None


# --- Addresses in both notations and both families, and a port that is free -------------------------------


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
    """AF_INET6 for what has an IPv6 address only, else AF_INET."""
    try:
        answers = socket.getaddrinfo(host_for_env(host), None, type=socket.SOCK_STREAM)
    except OSError:
        return socket.AF_INET
    families = {answer[0] for answer in answers}
    return socket.AF_INET if socket.AF_INET in families else socket.AF_INET6


def free_port(host: str = "127.0.0.1") -> int:
    """A port that is free on `host` now, tested on the family that will be used.

    Another program may take it before you do.

    Raises:
        OSError: `host` is no address of this machine.

    >>> 0 < free_port() < 65536
    True
    """
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host_for_env(host), 0))
        return int(probe.getsockname()[1])


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
