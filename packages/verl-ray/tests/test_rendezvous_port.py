"""The meeting point of a group: no two groups get one port, and torch can still listen on it."""

from __future__ import annotations

import socket
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from verl_ray.errors import ResourceUnavailable
from verl_ray.worker.rendezvous import (
    Rendezvous,
    asked_rendezvous,
    choose_rendezvous,
    free_port,
)

LOCAL = "127.0.0.1"


def _free_run(length: int) -> int:
    """The first of `length` neighbouring free ports."""
    while True:
        first = free_port(LOCAL)
        if first + length < 65536 and all(_is_free(port) for port in range(first, first + length)):
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _hold(request: Rendezvous | range) -> tuple[Rendezvous, socket.socket]:
    meeting, holder = choose_rendezvous(request, LOCAL)
    assert holder is not None
    return meeting, holder


def test_groups_of_one_range_get_different_ports_without_using_them() -> None:
    first = _free_run(4)
    request = asked_rendezvous(master_port_range=(first, first + 4))
    meetings, holders = zip(*(_hold(request) for _ in range(4)), strict=True)
    assert sorted(each.port for each in meetings) == list(range(first, first + 4))
    with pytest.raises(ResourceUnavailable, match=f"{first}-{first + 4} on {LOCAL}"):
        choose_rendezvous(request, LOCAL)
    for holder in holders:
        holder.close()
    again, holder = _hold(request)
    with holder:
        assert again == Rendezvous(LOCAL, first)


def test_a_held_port_is_refused_to_strangers_and_given_to_torch() -> None:
    meeting, holder = _hold(asked_rendezvous())
    with holder:
        port = meeting.port
        assert not _is_free(port)
        store = TCPStore(LOCAL, port, 1, True, timeout=timedelta(seconds=10), wait_for_workers=False)
        store.set("key", "value")
        assert store.get("key") == b"value"
        with pytest.raises(ResourceUnavailable):
            choose_rendezvous(asked_rendezvous(master_port_range=(port, port + 1)), LOCAL)
        del store


def test_a_named_meeting_point_is_taken_as_it_is() -> None:
    request = asked_rendezvous(master_addr="[fe80::1]", master_port="29500")
    assert choose_rendezvous(request, LOCAL) == (Rendezvous("fe80::1", 29500), None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"master_port": "29500"}, "both or neither"),
        ({"master_addr": "10.0.0.1"}, "both or neither"),
        ({"master_addr": "a", "master_port": 1, "master_port_range": (1, 2)}, "no range beside"),
        ({"master_addr": "a", "master_port": "http"}, "master_port is 'http'"),
        ({"master_addr": "a", "master_port": 0}, "1 to 65535"),
        ({"master_addr": "a", "master_port": 29555.5}, "master_port is 29555.5"),
        ({"master_port_range": (29000, 29100.5)}, "two port numbers"),
        ({"master_addr": "a", "master_port": 70000}, "1 to 65535"),
        ({"master_port_range": (5, 5)}, "first < stop"),
        ({"master_port_range": (0, 5)}, "first < stop"),
        ({"master_port_range": (1, 2, 3)}, "two port numbers"),
        ({"master_port_range": 29500}, "two port numbers"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_starts(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        asked_rendezvous(**given)
