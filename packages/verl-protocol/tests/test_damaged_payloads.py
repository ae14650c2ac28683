"""Payloads that were cut off or changed on their way: an error, or a value; never a crash or a hang."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from protocol_samples import full_batch
from verl_protocol import DataProto
from verl_protocol.wire import dumps, loads

Payload = tuple[bytes, list[bytes]]


@pytest.fixture(scope="module")
def payload() -> Payload:
    """Columns of every kind, some of them large enough for a buffer of their own."""
    large = DataProto.from_dict(
        {"wide": torch.zeros(6, 300), "half": torch.zeros(6, 300, dtype=torch.bfloat16)},
        {"numbers": np.zeros((6, 100)), "texts": np.array(["x" * 300] * 6)},
        {"weights": torch.ones(500)},
    )
    data, buffers = dumps(full_batch(6).union(large))
    return data, [bytes(buffer.raw()) for buffer in buffers]


def test_a_payload_that_was_cut_off_is_an_error(payload: Payload) -> None:
    data, buffers = payload
    for length in range(0, len(data), 7):
        with pytest.raises(Exception, match=r"."):
            loads(data[:length], buffers)


@pytest.mark.parametrize("readers", ["one", "many", "read_only"])
@pytest.mark.parametrize("change", [-8, -1, 1, 8])
def test_a_buffer_of_another_length_is_an_error(payload: Payload, readers: Any, change: int) -> None:
    data, buffers = payload
    for place, buffer in enumerate(buffers):
        other = buffer[:change] if change < 0 else buffer + bytes(change)
        with pytest.raises((ValueError, RuntimeError)):
            loads(data, [*buffers[:place], bytearray(other), *buffers[place + 1 :]], readers=readers)


def test_a_missing_buffer_is_an_error(payload: Payload) -> None:
    data, buffers = payload
    with pytest.raises(Exception, match="not enough out-of-band buffers"):
        loads(data, buffers[:-1])


@pytest.mark.filterwarnings("ignore")
def test_a_changed_byte_is_an_error_or_another_value(payload: Payload) -> None:
    data, buffers = payload
    choice, failed = random.Random(0), 0
    for _ in range(400):
        changed = bytearray(data)
        changed[choice.randrange(len(data))] ^= 1 << choice.randrange(8)
        try:
            repr(loads(bytes(changed), buffers))
        except Exception:
            failed += 1
    assert failed > 100
