"""DataProtoFuture: a batch in parts that are futures, chunked and fetched part by part."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_protocol.batch.proto import DataProto
from verl_protocol.errors import (
    InvalidTypeError,
    InvalidValueError,
    NothingToConcatError,
    RowCountError,
    UnevenRowsError,
)
from verl_protocol.futures.future import DataProtoFuture


def batch(start: int, stop: int, **meta: Any) -> DataProto:
    rows = list(range(start, stop))
    return DataProto.from_dict(
        {"a": torch.tensor(rows, dtype=torch.int64)}, {"s": [str(row) for row in rows]}, meta
    )


def done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def rows(data: Any) -> list[int]:
    found: list[int] = data.batch["a"].tolist()
    assert list(data.non_tensor_batch["s"]) == [str(row) for row in found]
    return found


class Counted:
    """A part that notes how often it is fetched."""

    def __init__(self, value: Any) -> None:
        self.value = value
        self.fetched = 0

    def result(self, timeout: float | None = None) -> Any:
        self.fetched += 1
        return self.value


class Reference:
    """A part that has to be asked for a future, as Ray's ObjectRef."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def future(self) -> Future[Any]:
        return done(self._value)


def parts_of(sizes: Sequence[int]) -> list[DataProto]:
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [batch(start, start + size, k=7) for start, size in zip(starts, sizes, strict=True)]


def counted(sizes: Sequence[int]) -> tuple[DataProtoFuture[DataProto], list[Counted]]:
    parts = [Counted(part) for part in parts_of(sizes)]
    return DataProtoFuture(DataProto.concat, parts, row_counts=list(sizes)), parts


def test_chunk_of_chunk_is_the_rows_within() -> None:
    future = DataProtoFuture.concat([done(batch(0, 8))])
    assert rows(future.chunk(2)[1].chunk(2)[0].get()) == [4, 5]
    assert rows(future.chunk(2)[1].chunk(2)[1].chunk(2)[1].get()) == [7]


def test_collect_fn_is_honoured() -> None:
    assert DataProtoFuture(lambda parts: f"CUSTOM {len(parts)}", [done(batch(0, 2))]).get() == "CUSTOM 1"


def test_dispatch_fn_applies_before_chunks() -> None:
    future = DataProtoFuture(DataProto.concat, [done(batch(0, 8))], lambda whole: whole[4:])
    assert rows(future.get()) == [4, 5, 6, 7]
    assert rows(future.chunk(2)[1].get()) == [6, 7]


def test_a_collect_fn_that_reorders_is_asked_before_chunks() -> None:
    def backwards(values: list[DataProto]) -> DataProto:
        return DataProto.concat(values)[::-1]

    future = DataProtoFuture(backwards, [done(part) for part in parts_of([2, 2])], row_counts=[2, 2])
    assert [rows(chunk.get()) for chunk in future.chunk(2)] == [[3, 2], [1, 0]]


@pytest.mark.parametrize(
    "part", [done, Reference, Counted, lambda value: value], ids=["future", "ref", "own", "value"]
)
def test_parts_may_be_of_any_kind(part: Any) -> None:
    future = DataProtoFuture.concat([part(value) for value in parts_of([2, 3])])
    assert rows(future.get()) == [0, 1, 2, 3, 4]
    assert rows(asyncio.run(future.aget())) == [0, 1, 2, 3, 4]
    assert future.row_count() == 5


def test_a_part_of_no_kind_is_named() -> None:
    with pytest.raises(InvalidTypeError, match="got str"):
        DataProtoFuture.concat(["nonsense"]).get()
    with pytest.raises(InvalidTypeError, match="got str"):
        asyncio.run(DataProtoFuture.concat(["nonsense"]).aget())


USES: dict[str, tuple[Callable[[Any], object], type[Exception]]] = {
    "attribute": (lambda future: future.batch, AttributeError),
    "row": (lambda future: future[0], TypeError),
    "slice": (lambda future: future[:2], TypeError),
    "length": (len, TypeError),
    "iteration": (list, TypeError),
    "membership": (lambda future: "a" in future, TypeError),
}


@pytest.mark.parametrize("use", USES)
def test_a_future_that_is_used_as_its_batch_says_how_to_get_that(use: str) -> None:
    future, parts = counted([2, 3])
    do, kind = USES[use]
    with pytest.raises(kind, match=r"DataProtoFuture .*it is a future: \.get\(\) waits for its batch"):
        do(future)
    assert [part.fetched for part in parts] == [0, 0]


def test_a_future_is_true_has_no_attributes_of_a_batch_and_can_be_copied() -> None:
    future, _ = counted([0])
    assert bool(future) is True
    assert not hasattr(future, "batch")
    assert repr(copy.copy(future)) == repr(future) == "DataProtoFuture(1 part)"


def test_nothing_and_wrong_counts_are_errors() -> None:
    with pytest.raises(NothingToConcatError):
        DataProtoFuture.concat([])
    with pytest.raises(InvalidValueError, match=r"2 parts, 1 count$"):
        DataProtoFuture(DataProto.concat, [done(1), done(2)], row_counts=[1])
    with pytest.raises(InvalidValueError, match="chunks"):
        DataProtoFuture.concat([done(1)]).chunk(0)


@pytest.mark.parametrize(
    ("sizes", "chunks", "fetched"),
    [
        ([4, 4, 4, 4], 4, [1, 1, 1, 1]),
        ([4, 4, 4, 4], 2, [1, 1, 1, 1]),
        ([6, 6], 4, [2, 2]),
        ([3, 3, 3, 3], 6, [2, 2, 2, 2]),
        ([2, 2, 2, 2, 2, 2], 4, [1, 2, 1, 1, 2, 1]),
        ([5, 3], 2, [2, 1]),
        ([0, 4, 0, 4, 0], 2, [1, 1, 1, 1, 1]),
    ],
)
def test_chunks_fetch_only_the_parts_they_overlap(sizes: list[int], chunks: int, fetched: list[int]) -> None:
    future, parts = counted(sizes)
    got = [chunk.get() for chunk in future.chunk(chunks)]
    assert [row for chunk in got for row in rows(chunk)] == list(range(sum(sizes)))
    assert [part.fetched for part in parts] == fetched


def test_chunking_and_counting_fetch_nothing() -> None:
    future, parts = counted([4, 4])
    assert [chunk.row_count() for chunk in future.chunk(4)] == [2, 2, 2, 2]
    assert future.row_count() == 8
    assert [part.fetched for part in parts] == [0, 0]


def test_a_future_among_batches_is_told_how_to_become_one() -> None:
    future, here = DataProtoFuture.concat([done(batch(0, 2))]), batch(0, 2)
    for use in (here.union, lambda it: DataProto.concat([here, it])):
        with pytest.raises(TypeError, match=r"got \[.*'DataProtoFuture'\]; \.get\(\) of a future waits"):
            use(future)  # type: ignore[arg-type]


def test_a_repr_is_short_and_fetches_nothing() -> None:
    class OfABackend(DataProtoFuture[DataProto]):
        """A backend's own kind, which is a DataProtoFuture to whoever has it."""

    whole, parts = counted([1] * 1000)
    assert repr(OfABackend(len, parts)) == "DataProtoFuture(1000 parts)"
    assert repr(whole) == "DataProtoFuture(1000 parts)"
    assert repr(whole.chunk(4)[1]) == "DataProtoFuture(1000 parts, piece 1 of 4)"
    deep = whole
    for _ in range(50):
        deep = deep.chunk(1)[0]
    assert repr(deep).endswith("parts, ..., piece 0 of 1, piece 0 of 1, piece 0 of 1)")
    assert repr(DataProtoFuture.concat([parts[0]])) == "DataProtoFuture(1 part)"
    assert sum(part.fetched for part in parts) == 0


def test_without_row_counts_every_part_is_fetched() -> None:
    parts = [Counted(part) for part in parts_of([4, 4])]
    assert rows(DataProtoFuture.concat(parts).chunk(2)[1].get()) == [4, 5, 6, 7]
    assert [part.fetched for part in parts] == [1, 1]


def test_row_counts_may_be_futures() -> None:
    parts = [Counted(part) for part in parts_of([4, 4])]
    future = DataProtoFuture(DataProto.concat, parts, row_counts=[done(4), Reference(4)])
    assert rows(future.chunk(2)[1].get()) == [4, 5, 6, 7]
    assert [part.fetched for part in parts] == [0, 1]
    assert rows(asyncio.run(future.chunk(2)[0].aget())) == [0, 1, 2, 3]


def test_rows_beyond_a_part_s_count_are_padding() -> None:
    values = [done(batch(0, 4)), done(batch(4, 8))]
    future = DataProtoFuture(DataProto.concat, values, row_counts=[4, 2])
    assert rows(future.get()) == [0, 1, 2, 3, 4, 5]
    assert [rows(chunk.get()) for chunk in future.chunk(3)] == [[0, 1], [2, 3], [4, 5]]
    assert future.row_count() == 6


def test_a_part_with_too_few_rows_is_named() -> None:
    future = DataProtoFuture(DataProto.concat, [done(batch(0, 2)), done(batch(2, 3))], row_counts=[2, 2])
    with pytest.raises(RowCountError, match="part 1 was announced with 2 rows, but has 1"):
        future.chunk(2)[1].get()


def test_uneven_chunks_are_asked_for() -> None:
    future, _ = counted([3, 2])
    assert [rows(chunk.get()) for chunk in future.chunk(4, uneven=True)] == [[0, 1], [2], [3], [4]]
    with pytest.raises(UnevenRowsError, match=r"5 rows .* 4 equal chunks"):
        future.chunk(4)[0].get()


def test_auto_padding_allows_uneven_chunks() -> None:
    parts = [done(DataProto.from_dict({"a": torch.arange(5)}, auto_padding=True))]
    for counts in (None, [5]):
        future = DataProtoFuture(DataProto.concat, parts, row_counts=counts)
        assert [len(chunk.get()) for chunk in future.chunk(4)] == [2, 1, 1, 1]


def test_more_chunks_than_rows_keep_their_columns() -> None:
    future, _ = counted([1, 1])
    got = [chunk.get() for chunk in future.chunk(4, uneven=True)]
    assert [rows(chunk) for chunk in got] == [[0], [1], [], []]
    assert got[3].batch["a"].dtype == torch.int64


def test_a_batch_without_rows_can_be_chunked() -> None:
    future, _ = counted([0, 0])
    assert [rows(chunk.get()) for chunk in future.chunk(2)] == [[], []]
    assert future.row_count() == 0


def test_metrics_come_once_however_the_rows_are_cut() -> None:
    parts = [
        batch(0, 4, metrics={"loss": 1.0}),
        batch(4, 4, metrics={"loss": 2.0}),
        batch(4, 8, metrics={"loss": 3.0}),
    ]
    for counts in ([4, 0, 4], None):
        future = DataProtoFuture(DataProto.concat, [done(part) for part in parts], row_counts=counts)
        for chunks in (1, 2, 4, 8):
            whole = DataProto.concat([chunk.get() for chunk in future.chunk(chunks)])
            assert whole.meta_info == {"metrics": {"loss": [1.0, 2.0, 3.0]}}


@pytest.mark.parametrize("counted_parts", [True, False])
@pytest.mark.parametrize("uneven", [True, False])
def test_metrics_of_a_batch_without_rows_come_once(uneven: bool, counted_parts: bool) -> None:
    parts = [batch(0, 0, metrics={"loss": loss}) for loss in (1.0, 2.0)]
    counts = [0, 0] if counted_parts else None
    future = DataProtoFuture(DataProto.concat, [done(part) for part in parts], row_counts=counts)
    whole = DataProto.concat([chunk.get() for chunk in future.chunk(3, uneven=uneven)])
    assert whole.meta_info == {"metrics": {"loss": [1.0, 2.0]}}


def test_many_parts_can_be_fetched_at_once() -> None:
    future, parts = counted([4, 4, 4])
    asked: list[list[Any]] = []

    def fetch(wanted: list[Any], _: float | None) -> list[Any]:
        asked.append(wanted)
        return [part.value for part in wanted]

    assert rows(future.chunk(2)[1].get(fetch=fetch)) == [6, 7, 8, 9, 10, 11]
    assert asked == [parts[1:]]
    assert [part.fetched for part in parts] == [0, 0, 0]


def test_futures_of_futures_fetch_only_what_is_needed() -> None:
    first, first_parts = counted([2, 2])
    second, second_parts = counted([3, 3])
    both = DataProtoFuture.concat([first, second.chunk(2)[1]])
    assert both.row_count() == 7
    assert [part.fetched for part in first_parts + second_parts] == [0, 0, 0, 0]
    got = both.chunk(7)
    assert rows(got[2].get()) == [2]
    assert rows(got[6].get()) == [5]
    assert [part.fetched for part in first_parts + second_parts] == [0, 1, 0, 1]
    assert rows(asyncio.run(both.aget())) == [0, 1, 2, 3, 3, 4, 5]


def test_futures_of_futures_without_counts_work_too() -> None:
    inner = DataProtoFuture.concat([done(part) for part in parts_of([2, 2])])
    both = DataProtoFuture.concat([inner, done(batch(4, 6))])
    assert [rows(chunk.get()) for chunk in both.chunk(3)] == [[0, 1], [2, 3], [4, 5]]


def test_work_that_is_still_going_on_is_waited_for() -> None:
    gate = threading.Event()

    def once_open(part: DataProto) -> DataProto:
        gate.wait()
        return part

    with ThreadPoolExecutor(2) as pool:
        parts = [pool.submit(once_open, part) for part in parts_of([2, 2])]
        future = DataProtoFuture.concat(parts)
        with pytest.raises(TimeoutError):
            future.get(timeout=0.05)
        with pytest.raises(TimeoutError):
            asyncio.run(future.aget(timeout=0.05))
        gate.set()
        assert rows(future.get(timeout=30)) == [0, 1, 2, 3]


def test_failures_of_parts_are_passed_on() -> None:
    failed: Future[Any] = Future()
    failed.set_exception(ZeroDivisionError("in the worker"))
    future = DataProtoFuture.concat([done(batch(0, 1)), failed])
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        future.get()
    with pytest.raises(ZeroDivisionError, match="in the worker"):
        asyncio.run(future.aget())


def test_it_can_be_awaited() -> None:
    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        later: asyncio.Future[DataProto] = loop.create_future()
        loop.call_later(0.01, later.set_result, batch(0, 2))
        return rows(await DataProtoFuture.concat([later, done(batch(2, 4))]))

    assert asyncio.run(main()) == [0, 1, 2, 3]


def test_parts_are_never_changed() -> None:
    part = batch(0, 4, metrics={"loss": 1.0})
    future = DataProtoFuture(DataProto.concat, [done(part)], row_counts=[4])
    chunk = future.chunk(2)[1].get()
    chunk.meta_info["k"] = 1
    chunk.batch["new"] = torch.zeros(2)
    assert part.meta_info == {"metrics": {"loss": 1.0}}
    assert set(part.batch.keys()) == {"a"}


def chunked(data: Any, chunks: int, again: int) -> list[Any]:
    return [piece for chunk in data.chunk(chunks, uneven=True) for piece in chunk.chunk(again, uneven=True)]


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=5),
    chunks=st.integers(1, 6),
    again=st.integers(1, 3),
    known=st.booleans(),
)
def test_chunks_of_chunks_are_those_of_the_batch(
    sizes: list[int], chunks: int, again: int, known: bool
) -> None:
    parts = [done(part) for part in parts_of(sizes)]
    future = DataProtoFuture(DataProto.concat, parts, row_counts=sizes if known else None)
    expected = chunked(DataProto.concat(parts_of(sizes)), chunks, again)
    assert [rows(piece.get()) for piece in chunked(future, chunks, again)] == [
        rows(piece) for piece in expected
    ]


def test_a_part_with_too_few_rows_is_an_error_however_it_is_read() -> None:
    short = DataProtoFuture(DataProto.concat, [done(batch(0, 8))], row_counts=[9])
    for future in (short, short.chunk(3)[2]):
        with pytest.raises(RowCountError, match="part 0 was announced with 9 rows, but has 8"):
            future.get()


def test_a_part_that_is_no_batch_is_an_error_however_it_is_read() -> None:
    wrong: DataProtoFuture[Any] = DataProtoFuture(DataProto.concat, [done([1, 2])], row_counts=[2])
    for future in (wrong, *wrong.chunk(2)):
        with pytest.raises(InvalidTypeError, match="cannot count the rows of a list of int at"):
            future.get()
