"""`@register`: what it keeps of a method, what it says about it, and what it refuses."""

import asyncio
import inspect
import pickle
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import cached_property, partialmethod, update_wrapper
from typing import Annotated, Any, TypedDict, TypeVar

import pytest
import torch
from tensordict import TensorDict
from verl_dispatch import (
    MAGIC_ATTR,
    Broadcast,
    Dispatch,
    Execute,
    LocalWorkerGroup,
    _check_dispatch_mode,
    _materialize_futures,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_dispatch import Worker as DispatchWorker
from verl_dispatch import make_nd_compute_dataproto_dispatch_fn as nd
from verl_dispatch.errors import InvalidModeError, WorkerClassError
from verl_dispatch.methods.decorator import register_options
from verl_protocol import DataProto, DataProtoFuture
from verl_protocol.errors import InvalidTypeError


class Worker:
    @register()
    def plain(self, batch: Any, scale: float = 2.0) -> Any:
        """Says so."""
        return batch, scale

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO, blocking=False)
    async def later(self, batch: Any) -> Any:
        return batch

    @register(materialize_futures=False)
    def lazy(self, batch: Any) -> Any:
        return batch

    @register()
    def through_a_sibling(self, batch: Any) -> Any:
        return self.plain(batch=batch)


def future_of(num_rows: int) -> DataProtoFuture[DataProto]:
    parts: list[Future[DataProto]] = [Future(), Future()]
    whole = DataProto.from_dict(tensors={"i": torch.arange(num_rows)})
    for part, value in zip(parts, whole.chunk(2), strict=True):
        part.set_result(value)
    return DataProtoFuture.concat(parts)


def test_the_product_is_a_plain_function_that_keeps_its_looks() -> None:
    assert inspect.isfunction(Worker.__dict__["plain"])
    assert Worker.plain.__name__ == "plain"
    assert Worker.plain.__doc__ == "Says so."
    assert list(inspect.signature(Worker.plain).parameters) == ["self", "batch", "scale"]
    assert inspect.iscoroutinefunction(Worker.later)
    assert Worker().plain(1) == (1, 2.0)


def test_the_marks_hold_exactly_three_facts() -> None:
    assert getattr(Worker.plain, MAGIC_ATTR) == {
        "dispatch_mode": Dispatch.ALL_TO_ALL,
        "execute_mode": Execute.ALL,
        "blocking": True,
    }
    assert getattr(Worker.later, MAGIC_ATTR) == {
        "dispatch_mode": Dispatch.ONE_TO_ALL,
        "execute_mode": Execute.RANK_ZERO,
        "blocking": False,
    }


def test_further_options_live_beside_the_marks() -> None:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True, tensor_transport="gloo")
    def method(self: Any) -> None: ...

    options = register_options(method)
    assert (options.materialize_futures, options.read_only, options.tensor_transport) == (True, True, "gloo")
    assert set(getattr(method, MAGIC_ATTR)) == {"dispatch_mode", "execute_mode", "blocking"}


def test_futures_are_resolved_before_the_method_runs() -> None:
    assert Worker().plain(future_of(4))[0].tensor("i").tolist() == [0, 1, 2, 3]
    assert Worker().plain(batch=future_of(2))[0].tensor("i").tolist() == [0, 1]
    assert Worker().through_a_sibling(future_of(4))[0].tensor("i").tolist() == [0, 1, 2, 3]


def test_futures_are_awaited_in_an_async_method() -> None:
    part: Future[DataProto] = Future()

    async def main() -> Any:
        running = asyncio.ensure_future(Worker().later(DataProtoFuture.concat([part])))
        await asyncio.sleep(0)
        assert not running.done()
        part.set_result(DataProto.from_dict(tensors={"i": torch.arange(2)}))
        return await running

    assert asyncio.run(main()).tensor("i").tolist() == [0, 1]


def test_a_method_may_ask_for_its_futures_as_they_are() -> None:
    future = future_of(2)
    assert Worker().lazy(future) is future


def test_materialize_leaves_everything_else_alone() -> None:
    marker = object()
    args, kwargs = _materialize_futures(marker, future_of(2), named=future_of(4), other=3)
    assert args[0] is marker
    assert len(args[1]) == 2
    assert len(kwargs["named"]) == 4
    assert kwargs["other"] == 3


@pytest.mark.parametrize("mode", list(Dispatch))
def test_every_listed_mode_can_be_registered(mode: Dispatch) -> None:
    _check_dispatch_mode(mode)
    decorated = register(dispatch_mode=mode)(lambda self, *values: values)
    assert decorated(None, 1, 2) == (1, 2)


@pytest.mark.parametrize(
    "mode",
    [
        {"dispatch_fn": 1, "collect_fn": print},
        {"dispatch_fn": print, "collect_fn": None},
        {"dispatch_fn": print},
        {"dispatch_fn": print, "collect_fn": print, "execute_fn": print},
        {},
        "ONE_TO_ALL",
        3,
        None,
        Execute.ALL,
    ],
)
def test_what_is_no_mode_is_refused_at_decoration(mode: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"dispatch_fn|known: .*ONE_TO_ALL"):
        register(dispatch_mode=mode)


@pytest.mark.parametrize("mode", ["ALL", Dispatch.RANK_ZERO, None])
def test_what_is_no_execute_mode_is_refused_at_decoration(mode: Any) -> None:
    with pytest.raises(TypeError, match=r"execute_mode must be .*\(known: ALL, RANK_ZERO\)"):
        register(execute_mode=mode)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("blocking", "no", "True or False"),
        ("blocking", 0, "True or False"),
        ("blocking", None, "True or False"),
        ("materialize_futures", "yes", "True or False"),
        ("read_only", 1, "True or False"),
        ("tensor_transport", 5, "the name of a transport, or None"),
    ],
)
def test_an_option_of_a_wrong_kind_is_refused_at_decoration(option: str, value: Any, expected: str) -> None:
    options: Any = {"dispatch_mode": Dispatch.ONE_TO_ALL, option: value}
    with pytest.raises(InvalidTypeError, match=f"{option} of register is {value!r}, expected {expected}"):
        register(**options)


def test_a_member_without_functions_is_refused_at_decoration() -> None:
    mode = Dispatch.register("EMPTY")
    try:
        with pytest.raises(TypeError, match="EMPTY"):
            register(dispatch_mode=mode)
    finally:
        Dispatch.remove("EMPTY")


REFUSED = [
    Dispatch.ONE_TO_ONE,
    Dispatch.DP_COMPUTE,
    Dispatch.DP_COMPUTE_PROTO,
    Dispatch.DP_COMPUTE_PROTO_WITH_FUNC,
    Dispatch.DP_COMPUTE_METRIC,
    Dispatch.DIRECT_ROLLOUT_METHOD,
]


@pytest.mark.parametrize("mode", REFUSED)
def test_rank_zero_execution_is_refused_where_rows_or_entries_would_be_lost(mode: Dispatch) -> None:
    with pytest.raises(InvalidModeError, match=f"RANK_ZERO .* {mode.name}: "):
        register(dispatch_mode=mode, execute_mode=Execute.RANK_ZERO)


def test_rank_zero_execution_is_refused_on_a_mesh() -> None:
    mode = make_nd_compute_dataproto_dispatch_fn("actor")
    with pytest.raises(ValueError, match=r"RANK_ZERO .* nd\(actor\): it splits rows"):
        register(dispatch_mode=mode, execute_mode=Execute.RANK_ZERO)


@pytest.mark.parametrize("mode", [mode for mode in Dispatch if mode not in REFUSED])
def test_rank_zero_execution_goes_with_the_other_modes(mode: Dispatch) -> None:
    method = register(dispatch_mode=mode, execute_mode=Execute.RANK_ZERO)(lambda self: 1)
    assert getattr(method, MAGIC_ATTR)["execute_mode"] is Execute.RANK_ZERO


class Adder:
    def __call__(self, worker: Any, value: int) -> int:
        return value + 1


@pytest.mark.parametrize(
    "thing",
    [3, staticmethod(lambda: 0), property(lambda self: 0), int, Adder(), partialmethod(lambda self, x: x, 1)],
)
def test_only_functions_can_be_registered(thing: Any) -> None:
    decorate: Callable[[Any], Any] = register()
    with pytest.raises(TypeError, match=r"register decorates functions, got .*write a method"):
        decorate(thing)


def test_generators_are_refused_at_decoration() -> None:
    def pieces(self: Any) -> Any:
        yield 1

    async def pieces_async(self: Any) -> Any:
        yield 1

    for function in (pieces, pieces_async):
        with pytest.raises(TypeError, match=rf"{function.__name__} is a generator.*return a list.*stream"):
            register(dispatch_mode=Dispatch.ONE_TO_ALL)(function)


class Metrics(TypedDict):
    loss: float


JOINING = [Dispatch.DP_COMPUTE_PROTO, Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, nd("actor")]
NO_BATCHES = [
    None,
    int,
    bool,
    dict,
    dict[str, float],
    tuple[int, int],
    list[DataProto],
    str | None,
    "int",
    "None",
]


@pytest.mark.parametrize("mode", JOINING)
@pytest.mark.parametrize("answer", [*NO_BATCHES, "dict[str, int]", "int | None", torch.Tensor, Metrics])
def test_an_answer_that_is_never_a_batch_is_refused_at_decoration(mode: Any, answer: Any) -> None:
    def method(self: Any, batch: DataProto) -> Any: ...

    method.__annotations__["return"] = answer
    with pytest.raises(TypeError, match=r"method is annotated to answer .* joins batches.*DP_COMPUTE_METRIC"):
        register(dispatch_mode=mode, blocking=False)(method)


T = TypeVar("T")
Rows = DataProto


MAYBE_BATCHES = [Any, object, T, DataProto, TensorDict, DataProto | None, Annotated[DataProto, "it"], Mapping]
UNKNOWN = [
    "Rows",
    "T",
    "OnlyForTypeCheckers",
    "DataProto | None",
    "what is this?",
    "list[Unknown]",
    "self.kind",
]


@pytest.mark.parametrize("answer", [*MAYBE_BATCHES, *UNKNOWN])
@pytest.mark.parametrize("mode", JOINING)
def test_an_answer_that_may_be_a_batch_is_not(mode: Any, answer: Any) -> None:
    def method(self: Any, batch: DataProto) -> Any: ...

    method.__annotations__["return"] = answer
    register(dispatch_mode=mode)(method)


@pytest.mark.parametrize("answer", NO_BATCHES)
def test_other_modes_take_any_answer(answer: Any) -> None:
    def method(self: Any, batch: DataProto) -> Any: ...

    method.__annotations__["return"] = answer
    for mode in (Dispatch.DP_COMPUTE_METRIC, Dispatch.ALL_TO_ALL, Dispatch.ONE_TO_ALL):
        register(dispatch_mode=mode)(method)


# --- decorators below, and above --------------------------------------------------------------------------


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """As a profiler often is: without functools.wraps."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def positional(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        return function(*args)

    return call


class Wrapped(DispatchWorker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    def save(self, path: str, step: int = 0) -> Any:
        return self.rank, path, step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    @logged
    def load(self, path: str, *, step: int = 0) -> Any:
        return self.rank, path, step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @positional
    def place(self, path: str) -> Any:
        return self.rank, path

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    async def later(self, path: str) -> Any:
        return self.rank, path

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @logged
    def rows(self, data: DataProto, scale: int = 1) -> DataProto:
        return DataProto.from_dict(tensors={"i": data.tensor("i") * scale})


def test_a_decorator_below_that_hides_the_signature_changes_nothing() -> None:
    group: Any = LocalWorkerGroup(Wrapped, 2)
    assert group.save("p", step=2) == group.call(Wrapped.save, "p", 2) == [(0, "p", 2), (1, "p", 2)]
    assert group.load("p", step=3) == [(0, "p", 3), (1, "p", 3)]
    assert group.place("p") == group.call(Wrapped.place, "p") == [(0, "p"), (1, "p")]
    assert group.later("p") == [(0, "p"), (1, "p")]
    data = DataProto.from_dict(tensors={"i": torch.arange(4)})
    assert group.rows(data, scale=Broadcast(2)).tensor("i").tolist() == [0, 2, 4, 6]
    assert group.save.__name__ == "save"
    with pytest.raises(TypeError, match=r"place\(\*args.*unexpected keyword argument 'path'"):
        group.place(path="p")


def held(kind: Any) -> type:
    function = register(dispatch_mode=Dispatch.ONE_TO_ALL)(lambda self, *values: values)
    member = partialmethod(function, 1) if kind is partialmethod else kind(function)
    return type("Held", (DispatchWorker,), {"odd": member})


@pytest.mark.parametrize("kind", [property, cached_property, partialmethod, classmethod, staticmethod])
def test_what_hides_a_registered_function_is_refused_by_name(kind: Any) -> None:
    with pytest.raises(WorkerClassError, match=rf"Held.odd is registered, but is a {kind.__name__}"):
        LocalWorkerGroup(held(kind), 1)


def test_an_object_that_looks_like_a_registered_function_is_refused_by_name() -> None:
    class Timed:
        def __init__(self, function: Any) -> None:
            update_wrapper(self, function)

        def __call__(self, *args: Any) -> Any: ...

    odd = type("Held", (DispatchWorker,), {"odd": Timed(vars(Wrapped)["save"])})
    with pytest.raises(WorkerClassError, match=r"Held.odd is registered, but is a Timed"):
        LocalWorkerGroup(odd, 1)


def test_a_registered_function_can_be_pickled_by_name() -> None:
    assert pickle.loads(pickle.dumps(Worker.plain)) is Worker.plain


@pytest.mark.parametrize("name", ["DP_COMPUTE_PROTO", "dp_compute_proto"])
def test_a_mode_given_as_text_is_told_the_member(name: Any) -> None:
    with pytest.raises(InvalidModeError, match=r"did you mean Dispatch\.DP_COMPUTE_PROTO, without quotes"):
        register(dispatch_mode=name)
    with pytest.raises(InvalidModeError, match=r"did you mean Execute\.RANK_ZERO, without quotes"):
        register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode="RANK_ZERO")  # type: ignore[call-overload]


def test_register_without_parentheses_is_told_so() -> None:
    def method(self: object) -> None: ...

    with pytest.raises(InvalidModeError, match=r"register has no mode for .*method: write it with parenth"):
        register(method)  # type: ignore[call-overload]
