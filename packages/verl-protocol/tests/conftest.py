"""The ways that a value can take from one process to another."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from verl_protocol import wire

# pytest's import mode leaves this folder out, and test files import `protocol_samples` from it.
sys.path.insert(0, str(Path(__file__).parent))

Transport = Callable[[Any], Any]


def through_dumps(value: Any) -> Any:
    data, buffers = wire.dumps(value)
    return wire.loads(data, [bytes(buffer.raw()) for buffer in buffers])


def through_pack(value: Any) -> Any:
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(wire.pack(value), 5, buffer_callback=buffers.append)
    return pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])


def in_band(value: Any) -> Any:
    return pickle.loads(pickle.dumps(wire.pack(value), 5))


def old_protocol(value: Any) -> Any:
    return pickle.loads(pickle.dumps(wire.pack(value, readers="one"), 2))


TRANSPORTS = [through_dumps, through_pack, in_band, old_protocol]


@pytest.fixture(params=TRANSPORTS, ids=lambda transport: transport.__name__)
def transport(request: pytest.FixtureRequest) -> Transport:
    chosen: Transport = request.param
    return chosen
