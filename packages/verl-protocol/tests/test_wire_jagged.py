"""Jagged tensors on the wire: values, offsets and ragged dimension."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from protocol_samples import jagged_wide
from verl_protocol import wire

Transport = Callable[[Any], Any]


def offsets_of(tensor: torch.Tensor) -> torch.Tensor:
    offsets: torch.Tensor = tensor.offsets()  # type: ignore[attr-defined]
    return offsets


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("lengths", [[3, 5, 2], [3, 3], [3], [0, 2], [0], [200, 100]])
def test_jagged_keeps_rows_offsets_and_ragged_dimension(
    dim: int, lengths: list[int], transport: Transport
) -> None:
    sent = jagged_wide(lengths, dim)
    got = transport((sent,))[0]
    assert got.is_nested
    assert got.layout is torch.jagged
    assert got._ragged_idx == dim
    assert torch.equal(got.offsets(), offsets_of(sent))
    assert [row.tolist() for row in got.unbind()] == [row.tolist() for row in sent.unbind()]


def test_jagged_with_gaps_keeps_its_lengths(transport: Transport) -> None:
    values, offsets, lengths = torch.arange(10.0), torch.tensor([0, 4, 10]), torch.tensor([2, 3])
    got = transport([torch.nested.nested_tensor_from_jagged(values, offsets, lengths)])[0]
    assert got.lengths().tolist() == [2, 3]
    assert [row.tolist() for row in got.unbind()] == [[0.0, 1.0], [4.0, 5.0, 6.0]]


def test_jagged_over_a_part_of_its_values_ships_that_part() -> None:
    values = torch.arange(100_000.0)
    sent = torch.nested.nested_tensor_from_jagged(values, torch.tensor([50, 150, 250]))
    data, buffers = wire.dumps(sent)
    assert [len(buffer.raw()) for buffer in buffers] == [800]
    got = wire.loads(data, buffers)
    assert torch.equal(got.unbind()[1], values[150:250])


def test_jagged_tensors_over_the_same_offsets_still_add_up(transport: Transport) -> None:
    first = jagged_wide([3, 5])
    second = torch.nested.nested_tensor_from_jagged(first.values() * 10, offsets_of(first))
    got = transport({"a": first, "b": second})
    assert torch.equal((got["a"] + got["b"]).values(), first.values() * 11)


def test_jagged_keeps_known_extremes(transport: Transport) -> None:
    offsets = torch.tensor([0, 2, 5])
    sent = torch.nested.nested_tensor_from_jagged(torch.zeros(5), offsets, min_seqlen=2, max_seqlen=3)
    got = transport(sent)
    assert (got._maybe_min_seqlen, got._maybe_max_seqlen) == (2, 3)


def test_strided_nested_keeps_its_rows(transport: Transport) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sent = torch.nested.nested_tensor([torch.ones(2), torch.zeros(3)])
        got = transport(sent)
    assert got.layout is torch.strided
    assert [row.tolist() for row in got.unbind()] == [[1.0, 1.0], [0.0, 0.0, 0.0]]
