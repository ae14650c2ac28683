"""Parts of futures are opened by their reader: rows are copied once, or not at all if they are only read."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.wire import ReadOnlyWriteError, check_unwritten
from verl_ray.wire.sealed import Payload, SealedFuture, sealed, settled

ROWS = 512


def batch(first: int = 0, rows: int = ROWS) -> DataProto:
    return DataProto.from_dict(
        tensors={"x": torch.arange(first, first + rows)},
        non_tensors={"score": torch.arange(first, first + rows).double().numpy()},
        meta_info={"weights": torch.ones(ROWS), "lr": 0.1},
    )


def arrived(value: Any) -> Payload:
    """As it is read from a store, whose memory others read too."""
    buffers: list[pickle.PickleBuffer] = []
    data = pickle.dumps(sealed(value), protocol=5, buffer_callback=buffers.append)
    found = pickle.loads(data, buffers=[bytes(buffer.raw()) for buffer in buffers])
    assert isinstance(found, Payload)
    return found


def in_store(tensor: torch.Tensor, parts: list[Payload]) -> bool:
    return any(first <= tensor.data_ptr() < last for part in parts for first, last in part.spans())


def future_of(parts: list[Payload], read_only: bool = False) -> SealedFuture:
    counts = [len(part.open("many")) for part in parts]
    future = SealedFuture(DataProto.concat, parts, row_counts=counts)
    future.read_only, future.read = read_only, []
    return future


def test_one_part_is_copied_and_may_be_written_to() -> None:
    part = arrived(batch())
    read = future_of([part]).get()
    assert not in_store(read.tensor("x"), [part])
    assert not in_store(read.meta_info["weights"], [part])
    read.tensor("x").zero_()
    read.non_tensor_batch["score"][:] = 0
    read.meta_info["weights"].zero_()
    again = part.open("many")
    assert again.tensor("x").tolist() == list(range(ROWS))
    assert again.non_tensor_batch["score"].sum() == sum(range(ROWS))
    assert again.meta_info["weights"].sum() == ROWS


def test_only_the_rows_read_are_copied() -> None:
    part = arrived(batch())
    read = future_of([part]).chunk(2)[1].get()
    assert read.tensor("x").tolist() == list(range(ROWS // 2, ROWS))
    assert read.tensor("x").untyped_storage().nbytes() == ROWS // 2 * 8


def test_several_parts_are_joined_without_a_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [arrived(batch()), arrived(batch(ROWS))]
    joined = DataProto.concat([part.open("one") for part in parts])
    column = joined.tensor("x").data_ptr()
    assert in_store(joined.meta_info["weights"], parts)
    own = settled(joined, parts, read_only=False)
    assert own.tensor("x").data_ptr() == column
    assert not in_store(own.meta_info["weights"], parts)
    assert settled(own, parts, read_only=False) is own
    assert future_of(parts).get().tensor("x").tolist() == list(range(2 * ROWS))


def test_readers_that_only_read_get_views_and_are_watched() -> None:
    part = arrived(batch())
    future = future_of([part], read_only=True)
    piece = future.chunk(2)[0]
    read = piece.get()
    assert in_store(read.tensor("x"), [part])
    check_unwritten(list(future.read))
    read.tensor("x")[0] = 7
    with pytest.raises(ReadOnlyWriteError, match="x"):
        check_unwritten(list(future.read))


def test_functions_that_join_parts_get_their_own() -> None:
    part = arrived(batch())

    def add(values: list[Any]) -> Any:
        values[0].tensor("x").add_(1)
        return values[0]

    future = SealedFuture(add, [part])
    assert [future.get().tensor("x")[0].item() for _ in range(2)] == [1, 1]


def test_bytes_that_were_answered_are_no_pickle() -> None:
    given = pickle.dumps("not to be read")
    future = SealedFuture(DataProto.concat, ["a part"], row_counts=[len(given)])
    with pytest.raises(TypeError, match="rows of bytes"):
        future.get(fetch=lambda parts, timeout: [given])


def test_what_has_arrived_can_be_sent_on() -> None:
    part = arrived(batch())
    buffers: list[pickle.PickleBuffer] = []
    again = pickle.loads(pickle.dumps(part, protocol=5, buffer_callback=buffers.append), buffers=buffers)
    assert again.open("one").tensor("x").tolist() == list(range(ROWS))
    assert again.spans() == part.spans()
    assert DataProtoFuture(DataProto.concat, [part.open("one")]).get().tensor("x").shape == (ROWS,)
