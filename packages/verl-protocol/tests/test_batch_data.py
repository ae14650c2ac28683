"""The same operations for every kind of batch."""

from __future__ import annotations

import pytest
from protocol_samples import full_tensordict
from tensordict import TensorDict
from verl_protocol import errors
from verl_protocol import tensordict_ops as ops
from verl_protocol.batch.proto import DataProto
from verl_protocol.futures.any_batch import BatchData


def proto(data: TensorDict) -> DataProto:
    return DataProto.from_tensordict(data)


def test_batches_of_any_kind_are_chunked_and_put_together() -> None:
    for data in (full_tensordict(4, k=1), proto(full_tensordict(4, k=1))):
        assert BatchData(data).is_chunkable
        parts = BatchData(data).chunk(2)
        assert BatchData(parts).is_concatable
        whole = BatchData(parts).concat()
        assert type(whole) is type(data)
        assert len(whole) == 4
    assert not BatchData([full_tensordict(1), proto(full_tensordict(1))]).is_concatable
    assert not BatchData([]).is_concatable
    assert not BatchData("text").is_chunkable
    assert (BatchData(full_tensordict(1)).is_chunkable(), BatchData("text").is_chunkable()) == (True, False)


def test_parts_that_differ_in_data_without_rows_are_an_error() -> None:
    with pytest.raises(errors.MetaConflictError, match="'k'"):
        BatchData([full_tensordict(2, k=7), full_tensordict(2, k=8)]).concat()
    joined = BatchData([ops.get_tensordict({}, {"metrics": {"loss": loss}}) for loss in (1.0, 2.0)]).concat()
    assert ops.get(joined, "metrics") == {"loss": [1.0, 2.0]}


def test_parts_of_two_kinds_are_named_with_their_places() -> None:
    with pytest.raises(errors.InvalidTypeError, match=r"DataProto at \[0\], TensorDict at \[1\]"):
        BatchData([proto(full_tensordict(2)), full_tensordict(2)]).concat()
    with pytest.raises(errors.InvalidTypeError, match="cannot chunk str"):
        BatchData("text").chunk(2)
    with pytest.raises(errors.NothingToConcatError):
        BatchData([]).concat()
