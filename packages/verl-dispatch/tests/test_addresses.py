"""Hosts in both notations, ports on the family that will be used."""

from __future__ import annotations

import socket

import pytest
from verl_dispatch.workers.rank import address_family, free_port, host_for_env, host_for_url


@pytest.mark.parametrize(
    ("host", "bare", "bracketed"),
    [
        ("fe80::1", "fe80::1", "[fe80::1]"),
        ("[fe80::1]", "fe80::1", "[fe80::1]"),
        ("10.0.0.1", "10.0.0.1", "10.0.0.1"),
        ("node-3", "node-3", "node-3"),
    ],
)
def test_both_notations_are_idempotent(host: str, bare: str, bracketed: str) -> None:
    assert (host_for_env(host), host_for_url(host)) == (bare, bracketed)
    assert (host_for_env(bracketed), host_for_url(bare)) == (bare, bracketed)


@pytest.mark.parametrize(
    ("host", "family"),
    [
        ("::1", socket.AF_INET6),
        ("[::1]", socket.AF_INET6),
        ("127.0.0.1", socket.AF_INET),
        ("no.such.host.invalid", socket.AF_INET),
    ],
)
def test_the_family_of_an_address(host: str, family: socket.AddressFamily) -> None:
    assert address_family(host) == family


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]"])
def test_a_free_port_can_be_bound_on_its_family(host: str) -> None:
    if ":" in host and not _ipv6_works():
        pytest.skip("this machine has IPv6 switched off")
    port = free_port(host)
    with socket.socket(address_family(host), socket.SOCK_STREAM) as probe:
        probe.bind((host_for_env(host), port))
        assert probe.getsockname()[1] == port


def _ipv6_works() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
