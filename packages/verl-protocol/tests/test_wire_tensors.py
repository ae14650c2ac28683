"""Tensors of every dtype, shape and class on the wire."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from verl_protocol import wire

Transport = Callable[[Any], Any]


def all_dtypes() -> list[torch.dtype]:
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted((dtype for dtype in found if _has_tensors(dtype)), key=str)


def _has_tensors(dtype: torch.dtype) -> bool:
    """Whether torch can view bytes as this dtype (quantized and sub-byte ones it cannot)."""
    if str(dtype).startswith("torch.q"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            torch.zeros(16, dtype=torch.uint8).view(dtype)
        except RuntimeError:
            return False
    return True


def raw(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", all_dtypes(), ids=str)
@pytest.mark.parametrize("num_bytes", [32, 3200])
def test_every_dtype_is_byte_exact(dtype: torch.dtype, num_bytes: int, transport: Transport) -> None:
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 255, num_bytes, np.uint8))
    if dtype is torch.bool:
        noise = noise % 2
    sent = noise.view(dtype).view(2, -1)
    got = transport({"x": sent})["x"]
    assert (got.dtype, got.shape) == (dtype, sent.shape)
    assert raw(got) == raw(sent)


def test_fp8_and_unsigned_dtypes_are_among_those_tested() -> None:
    assert {torch.float8_e4m3fn, torch.bfloat16, torch.uint16, torch.uint64, torch.complex64} <= set(
        all_dtypes()
    )


BASE = torch.arange(24_000.0).view(400, 60)


COMPLEX = torch.complex(BASE, BASE + 1)


VIEWS = {
    "transposed": BASE.t(),
    "expanded": torch.arange(400.0).unsqueeze(1).expand(400, 60),
    "strided": BASE[::3, 1::2],
    "one row": BASE[7:8],
    "permuted": BASE.view(20, 20, 60).permute(2, 0, 1),
    "conj": COMPLEX.conj(),
    "neg": COMPLEX.conj().imag,
    "real": COMPLEX.real,
    "scalar": torch.tensor(3.5),
    "no rows": torch.zeros(0, 3),
    "no width": torch.zeros(5, 0, dtype=torch.int16),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_arrive_with_their_values(name: str, transport: Transport) -> None:
    sent = VIEWS[name]
    before = raw(sent)
    got = transport([sent])[0]
    assert (got.dtype, got.shape, got.is_contiguous()) == (sent.dtype, sent.shape, True)
    assert raw(got) == before == raw(sent)
    got.fill_(1)
    assert raw(sent) == before


def test_a_view_ships_only_its_own_bytes() -> None:
    data, buffers = wire.dumps({"row": BASE[7:9], "column": BASE[:, 3]})
    assert [len(buffer.raw()) for buffer in buffers] == [2 * 60 * 4, 400 * 4]
    assert len(data) < 1000


def test_contiguous_tensors_are_not_copied_by_dumping() -> None:
    sent = BASE.clone()
    _, buffers = wire.dumps(sent)
    sent[0, 0] = 77
    assert np.frombuffer(buffers[0].raw(), np.float32)[0] == 77


def test_small_tensors_stay_inside_the_pickle() -> None:
    data, buffers = wire.dumps([torch.arange(4), torch.arange(1000)])
    assert len(buffers) == 1
    assert wire.loads(data, buffers)[0].tolist() == [0, 1, 2, 3]


class Tagged(torch.Tensor):
    """A user's tensor class."""


def test_parameters_subclasses_and_attributes_survive(transport: Transport) -> None:
    frozen = torch.nn.Parameter(torch.ones(300), requires_grad=False)
    learning = torch.nn.Parameter(torch.ones(2))
    learning.shard = 3  # type: ignore[attr-defined]
    leaf = torch.ones(300, requires_grad=True)
    tagged = torch.arange(300).as_subclass(Tagged)
    got = transport([frozen, learning, leaf, tagged, leaf * 2])
    assert [type(tensor) for tensor in got[:2]] == [torch.nn.Parameter] * 2
    assert [tensor.requires_grad for tensor in got] == [False, True, True, False, False]
    assert got[1].shard == 3
    assert type(got[3]) is Tagged
    assert got[3].tolist() == list(range(300))
    assert torch.equal(got[4], torch.full((300,), 2.0))
    (got[2] * 2).sum().backward()
    assert got[2].grad is not None


def test_tensors_without_data_stay_without(transport: Transport) -> None:
    got = transport(torch.ones(3, 4, device="meta", dtype=torch.bfloat16))
    assert (got.device.type, got.shape, got.dtype) == ("meta", (3, 4), torch.bfloat16)


def test_sparse_tensors_take_torchs_own_way(transport: Transport) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = transport([torch.eye(3).to_sparse()])[0]
    assert got.is_sparse
    assert torch.equal(got.to_dense(), torch.eye(3))


def test_shared_memory_is_shipped_once() -> None:
    linear = torch.nn.Linear(100, 100, bias=False)
    _, buffers = wire.dumps({"embed": linear.state_dict()["weight"], "head": linear.state_dict()["weight"]})
    assert [len(buffer.raw()) for buffer in buffers] == [40_000]


def test_views_that_begin_at_one_address_are_not_confused(transport: Transport) -> None:
    square = torch.arange(10_000.0).view(100, 100)
    twins = {"plain": square, "turned": square.t(), "top": square[:50], "conj": torch.complex(square, square)}
    twins["conjugated"] = twins["conj"].conj()
    got = transport(twins)
    assert all(raw(got[key]) == raw(twins[key]) for key in twins)
