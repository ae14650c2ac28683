"""Methods named by the function on their class: `group.call(Trainer.method, ...)`; and what cannot be one."""

import re
from types import FunctionType
from typing import Any, cast

import pytest
from verl_dispatch import Dispatch, Execute, LocalWorkerGroup, Worker, register, register_dispatch_mode
from verl_dispatch.errors import UnknownMethodError, WorkerClassError
from verl_dispatch.typed_modes import Arg, Mode, Ref, Res


class Base(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def size(self) -> str:
        return "base"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def name(self) -> str:
        return "name"

    def hidden(self) -> None: ...


class Derived(Base):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def size(self) -> str:
        return "derived"


class Stranger(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def size(self) -> str:
        return "stranger"


@pytest.fixture(scope="module")
def group() -> LocalWorkerGroup[Derived]:
    return LocalWorkerGroup(Derived, 2)


@pytest.mark.parametrize("method", [Derived.size, Base.size])
def test_the_workers_own_method_runs_also_where_a_base_names_it(
    group: LocalWorkerGroup[Derived], method: Any
) -> None:
    assert group.call(method) == ["derived", "derived"]
    assert group.bind(method)() == ["derived", "derived"]
    assert group.submit(method).result() == ["derived", "derived"]
    assert sorted(group.stream(method)) == [(0, "derived"), (1, "derived")]


def test_inherited_methods_are_known_by_either_class(group: LocalWorkerGroup[Derived]) -> None:
    assert group.call(Derived.name) == group.call(Base.name) == ["name", "name"]


@pytest.mark.parametrize("method", [Stranger.size, Base.hidden, len, 3])
def test_a_method_that_the_workers_do_not_have_is_refused(
    group: LocalWorkerGroup[Derived], method: Any
) -> None:
    name = getattr(method, "__qualname__", repr(method))
    with pytest.raises(UnknownMethodError, match=f"has no registered method '{re.escape(name)}'"):
        group.call(method)


def test_a_base_of_a_class_that_has_the_method_is_no_reference_for_its_own_group() -> None:
    with pytest.raises(UnknownMethodError, match=r"'Derived.size'"):
        LocalWorkerGroup(Base, 1).call(cast(Any, Derived.size))


def test_an_override_must_keep_the_execute_mode() -> None:
    class Changed(Base):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
        def size(self) -> str:
            return ""

    with pytest.raises(WorkerClassError, match="with execute mode RANK_ZERO instead of ALL"):
        LocalWorkerGroup(Changed, 1)


@pytest.mark.parametrize("kind", [classmethod, staticmethod])
def test_only_methods_of_a_worker_can_be_registered(kind: Any) -> None:
    function = register(dispatch_mode=Dispatch.ONE_TO_ALL)(lambda first: first)
    cls = type("Odd", (Worker,), {"odd": kind(function)})
    with pytest.raises(WorkerClassError, match=rf"Odd.odd is registered, but is a {kind.__name__}"):
        LocalWorkerGroup(cls, 1)


@pytest.mark.parametrize("function", [lambda: 1, lambda *, x=1: x, lambda **named: named])
def test_a_method_takes_its_worker(function: Any) -> None:
    odd = type("Odd", (Worker,), {"odd": register(dispatch_mode=Dispatch.ONE_TO_ALL)(function)})
    with pytest.raises(WorkerClassError, match=r"Odd.odd is registered, but is a function without self"):
        LocalWorkerGroup(odd, 1)


def test_any_name_is_a_keyword_of_a_method() -> None:
    class Named(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def f(me, /, **named: int) -> dict[str, int]:  # noqa: N805
            return named

    group: Any = LocalWorkerGroup(Named, 1)
    named = {"self": 1, "method": 2, "args": 3, "group": 4}
    assert group.f(**named) == group.f.call(**named) == group.f.submit(**named).result() == [named]
    assert list(group.f.stream(**named)) == [(0, named)]
    assert group.f.plan(**named).calls[0].kwargs == named


def test_the_types_of_a_mode_change_nothing_at_run_time() -> None:
    class Adding(Mode[Arg, Res, Ref[Res]]):
        """Arguments to all; the sum of the answers."""

    def to_all(group: Any, value: int) -> Any:
        return ([value] * group.world_size,), {}

    mode = cast(Adding, register_dispatch_mode("TEST_ADDING", to_all, lambda group, answers: sum(answers)))
    try:

        class Adder(Worker):
            @register(dispatch_mode=mode)
            def add(self, value: int) -> int:
                return value

        assert type(vars(Adder)["add"]) is FunctionType
        assert LocalWorkerGroup(Adder, 3).call(Adder.add, 2) == 6
    finally:
        Dispatch.remove("TEST_ADDING")
