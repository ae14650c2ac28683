"""The whole space of calls: mode x execute x verb x world size x kind of batch x padding x way of passing.

Whatever the combination, rows come back in input order, none lost and none doubled, and the caller's batch
is as it was. The first tests walk the space in order; the last ones take numbers of rows, ways to lay them
out and methods that answer several rows for one at random.
"""

import asyncio
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tensordict import TensorDict
from verl_dispatch import (
    Dispatch,
    Execute,
    LocalWorkerGroup,
    Mesh,
    Worker,
    collect_dp_compute_data_proto,
    dispatch_dp_compute_data_proto,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_dispatch.conformance.backend import KINDS as CONFORMANCE_KINDS
from verl_dispatch.conformance.backend import as_kind, batch, ranks_of
from verl_dispatch.conformance.workers import ModesWorker, ids_of
from verl_protocol import DataProto, DataProtoFuture

WORLD_SIZES = range(1, 9)
FORMS = ("plain_blocking", "plain_later", "coroutine_blocking", "coroutine_later")
JOINING: dict[str, Any] = {
    "DP_COMPUTE_PROTO": Dispatch.DP_COMPUTE_PROTO,
    "DP_COMPUTE_PROTO_WITH_FUNC": Dispatch.DP_COMPUTE_PROTO_WITH_FUNC,
    "nd": make_nd_compute_dataproto_dispatch_fn("m"),
    "custom": {
        "dispatch_fn": lambda group, *args, **kwargs: dispatch_dp_compute_data_proto(group, *args, **kwargs),
        "collect_fn": collect_dp_compute_data_proto,
    },
}
LISTING: dict[str, Any] = {
    "ALL_TO_ALL": Dispatch.ALL_TO_ALL,
    "DP_COMPUTE_METRIC": Dispatch.DP_COMPUTE_METRIC,
}


def worker_class(mode: Any, execute_mode: Execute = Execute.ALL) -> type[Worker]:
    """A worker with the same echo method in every form: plain and async, blocking and not."""

    def echo(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (*args, *kwargs.values())[-1]

    async def echo_async(self: Any, *args: Any, **kwargs: Any) -> Any:
        return (*args, *kwargs.values())[-1]

    methods: dict[str, Any] = {}
    for name, function in (("plain", echo), ("coroutine", echo_async)):
        for blocking in (True, False):
            wrapped = register(dispatch_mode=mode, execute_mode=execute_mode, blocking=blocking)(function)
            methods[f"{name}_{'blocking' if blocking else 'later'}"] = wrapped
    return type("Echo", (Worker,), methods)


def ready(answer: Any) -> Any:
    """What a call gives in the end, whatever kind of future it gave at first."""
    if isinstance(answer, DataProtoFuture):
        return answer.get()
    if isinstance(answer, list):
        return [ready(part) for part in answer]
    if isinstance(answer, dict):
        return {rank: ready(part) for rank, part in answer.items()}
    return answer.result() if hasattr(answer, "result") else answer


def every_verb(group: Any) -> Iterator[Callable[..., Any]]:
    """All ways to make the same call on a group; each gives the finished result."""
    for name in FORMS:
        yield lambda *args, name=name, **kwargs: ready(group.bind(name)(*args, **kwargs))
    yield lambda *args, **kwargs: group.plain_later.call(*args, **kwargs)
    yield lambda *args, **kwargs: group.plain_blocking.submit(*args, **kwargs).result()


def data_proto(num_rows: int) -> DataProto:
    jagged = torch.nested.as_nested_tensor(
        [torch.arange(row % 3 + 1) + row for row in range(num_rows)], layout=torch.jagged
    )
    return DataProto.from_dict(
        tensors={"i": torch.arange(num_rows), "j": jagged},
        non_tensors={"s": [{"row": row} for row in range(num_rows)]},
        meta_info={"temperature": 0.5},
    )


def future_of(data: DataProto, num_parts: int = 2) -> DataProtoFuture[DataProto]:
    class Ready:
        def __init__(self, part: DataProto) -> None:
            self.part = part

        def result(self, timeout: float | None = None) -> DataProto:
            return self.part

    parts = data.chunk(num_parts, uneven=True)
    return DataProtoFuture(
        DataProto.concat, [Ready(part) for part in parts], row_counts=[len(part) for part in parts]
    )


KINDS: dict[str, Callable[[DataProto], Any]] = {
    "DataProto": lambda data: data,
    "TensorDict": lambda data: data.to_tensordict(),
    "future": future_of,
}


# Every size for DataProto; the other kinds, which take milliseconds a part, at sizes that differ in kind.
SIZES = {"DataProto": WORLD_SIZES, "future": (1, 2, 3, 4, 8), "TensorDict": (1, 3, 8)}
KINDS_AND_SIZES = [(kind, size) for kind in KINDS for size in SIZES[kind]]


def check(data: DataProto, answer: Any, kind: str) -> None:
    """The answer holds exactly the rows of `data`, in order, as the same kind of batch."""
    if kind == "TensorDict":
        assert isinstance(answer, TensorDict)
        answer = DataProto.from_tensordict(answer)
    assert answer.tensor("i").tolist() == data.tensor("i").tolist()
    got: Any = answer.tensor("j")
    sent: Any = data.tensor("j")
    assert torch.equal(got.offsets(), sent.offsets())
    assert torch.equal(got.values(), sent.values())
    assert answer.column("s").tolist() == data.column("s").tolist()
    assert answer.meta_info == {"temperature": 0.5}


def rows_of_parts(parts: list[Any]) -> list[int]:
    return [
        int(row) for part in parts for row in (part.tensor("i") if isinstance(part, DataProto) else part["i"])
    ]


def mesh_group(mode: Any, world_size: int) -> Any:
    group: Any = LocalWorkerGroup(worker_class(mode), world_size)
    tp = 2 if world_size % 2 == 0 else 1
    group.add_mesh(Mesh.from_sizes("m", {"tp": tp, "dp": world_size // tp}, answering={"tp": -1}))
    return group


@pytest.mark.parametrize(("kind", "world_size"), KINDS_AND_SIZES)
@pytest.mark.parametrize("mode", JOINING)
def test_rows_come_back_in_input_order(mode: str, world_size: int, kind: str) -> None:
    group = mesh_group(JOINING[mode], world_size)
    head: tuple[Any, ...] = (len,) if mode == "DP_COMPUTE_PROTO_WITH_FUNC" else ()
    padded: dict[str, Any] = {"auto_padding": True}
    cases: list[tuple[int, dict[str, Any]]] = [(2 * world_size, {}), (2 * world_size - 1, padded)]
    for number, (num_rows, options) in enumerate(cases if world_size != 8 else [*cases, (1, padded)]):
        data = data_proto(num_rows)
        before = data[:]
        sent = KINDS[kind](data)
        for name, by_name in zip(FORMS, (True, False, False, True), strict=True):
            method = group.bind(name).options(**options)
            answer = method(*head, batch=sent) if by_name else method(*head, sent)
            check(data, ready(answer), kind)
        if number % 2:
            answer = group.plain_later.options(**options).call(*head, sent)
        else:
            answer = group.plain_blocking.options(**options).submit(*head, sent).result()
        check(data, answer, kind)
        assert data.equals(before)
        assert not data.pad_mask.any()


@pytest.mark.parametrize(("kind", "world_size"), KINDS_AND_SIZES)
@pytest.mark.parametrize("mode", LISTING)
def test_list_modes_give_one_part_per_rank(mode: str, world_size: int, kind: str) -> None:
    group: Any = LocalWorkerGroup(worker_class(LISTING[mode]), world_size)
    data = data_proto(2 * world_size)
    for number, call in enumerate(every_verb(group)):
        sent = KINDS[kind](data)
        parts = call(sent) if number % 2 else call(batch=sent)
        assert len(parts) == world_size
        assert rows_of_parts(parts) == list(range(2 * world_size))


@pytest.mark.parametrize(("kind", "world_size"), KINDS_AND_SIZES)
def test_padding_in_list_modes(world_size: int, kind: str) -> None:
    """ALL_TO_ALL gives rows, so their padding goes; DP_COMPUTE_METRIC gives a value per rank, always."""
    data = data_proto(2 * world_size + 1)
    all_to_all: Any = LocalWorkerGroup(worker_class(Dispatch.ALL_TO_ALL), world_size)
    metric: Any = LocalWorkerGroup(worker_class(Dispatch.DP_COMPUTE_METRIC), world_size)
    for name in FORMS:
        sent = KINDS[kind](data)
        parts = ready(all_to_all.bind(name).options(auto_padding=True)(sent))
        assert rows_of_parts(parts) == list(range(2 * world_size + 1))
        assert len(ready(metric.bind(name).options(auto_padding=True)(sent))) == world_size


@pytest.mark.parametrize("world_size", WORLD_SIZES)
@pytest.mark.parametrize(
    ("mode", "execute_mode"),
    [
        (Dispatch.ONE_TO_ALL, Execute.ALL),
        (Dispatch.ONE_TO_ALL, Execute.RANK_ZERO),
        (Dispatch.RANK_ZERO, Execute.ALL),
        (Dispatch.RANK_ZERO, Execute.RANK_ZERO),
        (Dispatch.ALL_TO_ALL, Execute.ALL),
        (Dispatch.ALL_TO_ALL, Execute.RANK_ZERO),
        (Dispatch.DP_COMPUTE, Execute.ALL),
        (Dispatch.ONE_TO_ONE, Execute.ALL),
    ],
)
def test_values_go_where_the_mode_says(mode: Dispatch, execute_mode: Execute, world_size: int) -> None:
    group: Any = LocalWorkerGroup(worker_class(mode, execute_mode), world_size)
    value = [f"entry {rank}" for rank in range(world_size)]
    one_answer = mode is Dispatch.RANK_ZERO or execute_mode is Execute.RANK_ZERO
    expected = value if one_answer or mode is not Dispatch.ONE_TO_ALL else [value] * world_size
    for call in every_verb(group):
        assert call(value) == expected
        assert call(x=value) == expected


@pytest.mark.parametrize("world_size", WORLD_SIZES)
def test_one_to_one_by_rank(world_size: int) -> None:
    group: Any = LocalWorkerGroup(worker_class(Dispatch.ONE_TO_ONE), world_size)
    entries = {rank: rank * 10 for rank in range(0, world_size, 2)}
    for call in every_verb(group):
        assert call(entries) == call(x=entries) == entries


# --- at random --------------------------------------------------------------------------------------------

WAYS: dict[str, dict[str, Any]] = {
    "even": {},
    "flagged": {},
    "padded": {"auto_padding": True},
    "uneven": {"uneven": "balanced"},
    "balanced": {"balance": "x"},
}
METHODS = ["rows", "rows_async", "over_each", "over_pairs", "twice", "late"]


async def awaited(method: Any, args: Any, kwargs: Any) -> Any:
    return await method.submit(*args, **kwargs)


VERBS: dict[str, Callable[..., Any]] = {
    "call": lambda method, args, kwargs: method.call(*args, **kwargs),
    "later": lambda method, args, kwargs: ready(method.options(blocking=False)(*args, **kwargs)),
    "submit": lambda method, args, kwargs: method.submit(*args, **kwargs).result(),
    "await": lambda method, args, kwargs: asyncio.run(awaited(method, args, kwargs)),
}


@cache
def group_of(world_size: int) -> Any:
    return LocalWorkerGroup(ModesWorker, world_size)


@settings(max_examples=40)
@given(data=st.data())
def test_any_rows_in_any_layout(data: st.DataObject) -> None:
    method = data.draw(st.sampled_from(METHODS), "method")
    world_size = data.draw(st.integers(1, 8), "world_size")
    way = data.draw(st.sampled_from(list(WAYS)), "way")
    only_proto = method in ("twice", "late") or way == "flagged"
    kind = data.draw(st.sampled_from(["DataProto"] if only_proto else CONFORMANCE_KINDS), "kind")
    verb = data.draw(st.sampled_from(list(VERBS)), "verb")
    num_parts = max(1, world_size // 2) if method == "over_pairs" else world_size
    if way == "even":
        num_rows = num_parts * data.draw(st.integers(0, 3), "rows a part")
    else:
        least = 1 if way in ("padded", "flagged") else num_parts
        num_rows = data.draw(st.integers(least, 4 * num_parts), "rows")
    # The driver cannot balance rows that it has not seen.
    assume(kind != "DataProtoFuture" or way != "balanced")
    sent = batch(num_rows, auto_padding=way == "flagged")
    value = as_kind(sent, kind)
    args, kwargs = ((), {"data": value}) if data.draw(st.booleans(), "by_name") else ((value,), {})
    got = VERBS[verb](group_of(world_size).bind(method).options(**WAYS[way]), args, kwargs)
    times = 2 if method == "twice" else 1
    assert ids_of(got) == [row for row in range(num_rows) for _ in range(times)]
    assert ids_of(sent) == list(range(num_rows))


@settings(max_examples=20)
@given(world_size=st.integers(1, 8), weights=st.lists(st.integers(0, 100), min_size=8, max_size=40))
def test_balanced_ranks_have_something_to_do(world_size: int, weights: list[int]) -> None:
    data = batch(len(weights))
    data.tensor("x").copy_(torch.tensor(weights)[:, None].expand(len(weights), 2))
    got = group_of(world_size).rows.options(balance="x")(data)
    assert ids_of(got) == list(range(len(weights)))
    assert set(ranks_of(got)) == set(range(world_size))


@pytest.mark.parametrize("world_size", [1, 3, 8])
def test_chains_of_futures(world_size: int) -> None:
    group, other = group_of(world_size), group_of(9 - world_size)
    future = group.rows.options(blocking=False, auto_padding=True)(batch(11))
    future = other.rows.options(blocking=False, auto_padding=True)(future)
    assert ids_of(group.rows.options(auto_padding=True)(future)) == list(range(11))
