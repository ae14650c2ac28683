"""Binding: what a group offers of its worker class, what it keeps of a method, and what it refuses."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from verl_dispatch import Dispatch, Execute, LocalWorkerGroup, Worker, WorkerGroup, register
from verl_dispatch.errors import NotPicklableError, UnknownMethodError, WorkerClassError, WorkerGroupError
from verl_dispatch.groups.group import RESERVED_NAMES


class Calculator(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, x: int, y: int = 1) -> int:
        """Adds."""
        return x + y

    @register(dispatch_mode=Dispatch.RANK_ZERO, blocking=False)
    def first(self) -> int:
        return self.rank

    def hidden(self) -> str:
        return "not registered"


@pytest.fixture(scope="module")
def group() -> Any:
    return LocalWorkerGroup(Calculator, 2)


def test_a_bound_method_keeps_signature_docstring_and_modes(group: Any) -> None:
    assert list(inspect.signature(group.add).parameters) == ["x", "y"]
    assert group.add.__doc__ == Calculator.add.__doc__
    assert group.add.__name__ == "add"
    assert group.add.dispatch_mode is Dispatch.ONE_TO_ALL
    assert group.add.execute_mode is Execute.ALL
    assert (group.add.blocking, group.first.blocking) == (True, False)
    assert "add" in dir(group)
    assert "hidden" not in dir(group)
    assert (
        repr(group.add)
        == "<add(x: int, y: int = 1) -> int of <LocalWorkerGroup[Calculator] of 2>, ONE_TO_ALL>"
    )


@pytest.mark.parametrize(
    ("args", "kwargs", "problem"),
    [
        ((), {}, "missing a required argument: 'x'"),
        ((1, 2, 3), {}, "too many positional arguments"),
        ((1,), {"z": 2}, "unexpected keyword argument 'z'"),
        ((1,), {"x": 2}, "multiple values for argument 'x'"),
        ((), {"y": 2}, "missing a required argument: 'x'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_sent(
    group: Any, args: tuple[Any, ...], kwargs: dict[str, Any], problem: str
) -> None:
    with pytest.raises(TypeError, match=rf"add\(x: int, y: int = 1\) -> int: .*{problem}"):
        group.add(*args, **kwargs)


def test_unknown_names_list_the_known_ones_and_guess(group: Any) -> None:
    with pytest.raises(
        UnknownMethodError, match=r"no registered method 'ad'; maybe 'add'\?; registered methods: .*add"
    ):
        group.ad  # noqa: B018
    for unknown in (group.call, group.bind, group.submit):
        with pytest.raises(AttributeError, match="'hidden'"):
            unknown("hidden")
    assert not hasattr(group, "hidden")


def test_of_the_known_names_those_of_the_base_class_are_not_shown(group: Any) -> None:
    with pytest.raises(UnknownMethodError) as caught:
        group.zzz()
    shown = str(caught.value).split("registered methods: ")[1].split(", ")
    assert "add" in shown
    assert not [name for name in shown if hasattr(Worker, name)]
    bare: Any = LocalWorkerGroup(Worker, 1)
    with pytest.raises(UnknownMethodError, match="registered methods: none"):
        bare.zzz()


def test_a_method_without_register_is_told_so(group: Any) -> None:
    with pytest.raises(UnknownMethodError, match="Calculator has it, but without @register"):
        group.hidden()
    with pytest.raises(UnknownMethodError, match=r"'Calculator\.hidden'.*Calculator has it, but without"):
        group.call(Calculator.hidden)


def test_what_is_of_each_method_is_told_so(group: Any) -> None:
    with pytest.raises(UnknownMethodError, match=r"'options' is of each method: group\.method\.options"):
        group.options(auto_padding=True)


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "the group": lambda group: group,
    "a method": lambda group: group.add,
    "the methods": lambda group: group.methods,
}


@pytest.mark.parametrize("do", [pickle.dumps, copy.deepcopy], ids=["pickle", "deepcopy"])
@pytest.mark.parametrize("holder", HOLDERS)
def test_groups_are_not_pickled(group: Any, holder: str, do: Callable[[Any], Any]) -> None:
    with pytest.raises(NotPicklableError, match=r"LocalWorkerGroup\[Calculator\].* belongs to the program"):
        do(HOLDERS[holder](group))


def test_a_group_is_not_copied_but_its_methods_may_be(group: Any) -> None:
    with pytest.raises(NotPicklableError, match="cannot be pickled, copied"):
        copy.copy(group)
    assert copy.copy(group.methods).add(1) == copy.copy(group.add)(1) == [2, 2]


def test_futures_of_an_in_process_group_are_not_pickled(group: Any) -> None:
    for future in (group.execute_all_async("add", 1)[0], group.add.submit(1)):
        for do in (pickle.dumps, copy.deepcopy):
            with pytest.raises(NotPicklableError, match=r"call result\(\) and send the value"):
                do(future)


def test_a_group_sent_to_a_worker_says_what_to_do_instead(group: Any) -> None:
    with pytest.raises(WorkerGroupError, match="get_fused_worker_by_name"):
        group.add(group)


def test_methods_are_reached_by_every_door(group: Any) -> None:
    assert group.methods.add(1) == group.call(Calculator.add, 1) == group.call("add", 1) == [2, 2]
    assert group.bind(Calculator.add)(1, y=2) == group.on.add(1, y=2) == [3, 3]
    assert {"add", "first"} <= set(dir(group.methods))
    assert {method.__name__ for method in group.methods} >= {"add", "first"}


@pytest.mark.parametrize(
    "name", sorted(RESERVED_NAMES | {"_send", "_check_usable", "_dispatch_info", "__init__"})
)
def test_names_that_the_group_needs_are_refused_before_any_worker_is_built(name: str) -> None:
    built: list[int] = []

    def method(self: Any) -> int:
        built.append(1)
        return 1

    registered = register(dispatch_mode=Dispatch.ONE_TO_ALL)(method)
    cls = type("A", (Worker,), {name: registered})
    with pytest.raises(WorkerClassError, match=f"'{name}'.*reserved"):
        LocalWorkerGroup(cls, 1)
    assert built == []


def test_every_public_name_of_a_group_is_reserved() -> None:
    for cls in (WorkerGroup, LocalWorkerGroup):
        public = {name for name in dir(cls) if not name.startswith("_")}
        assert public <= RESERVED_NAMES, public - RESERVED_NAMES
    public = {name for name in LocalWorkerGroup(Calculator, 1).__dict__ if not name.startswith("_")}
    assert public - {"add", "first"} - set(Worker.__dict__) <= RESERVED_NAMES


def test_an_override_must_keep_its_registration() -> None:
    class Forgot(Calculator):
        def add(self, x: int, y: int = 1) -> int:
            return 0

    class Changed(Calculator):
        @register(dispatch_mode=Dispatch.DP_COMPUTE)
        def add(self, x: int, y: int = 1) -> int:
            return 0

    class Kept(Calculator):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def add(self, x: int, y: int = 1) -> int:
            return -super().add(x, y)

    with pytest.raises(WorkerClassError, match=r"Forgot.add overrides .*Calculator.add without @register"):
        LocalWorkerGroup(Forgot, 1)
    with pytest.raises(WorkerClassError, match=r"Changed.add .* with DP_COMPUTE instead of ONE_TO_ALL"):
        LocalWorkerGroup(Changed, 1)
    assert LocalWorkerGroup(Kept, 2).add(1) == [-2, -2]


def test_a_group_subclass_is_asked_before_its_workers() -> None:
    class Rounded(LocalWorkerGroup[Calculator]):
        def add(self, x: int) -> Any:
            return self.methods.add(int(x) + 1)

    assert Rounded(Calculator, 2).add(1.7) == [3, 3]  # type: ignore[arg-type]


def test_a_function_generator_binds_what_it_likes() -> None:
    seen: dict[str, Any] = {}

    def generate(group: Any, name: str, **functions: Any) -> Any:
        seen[name] = functions
        return lambda *args: f"{name}{args}"

    group: Any = WorkerGroup()
    assert set(group._bind_worker_method(Calculator, generate)) >= {"add", "first"}
    assert group.add(3) == "add(3,)"
    assert set(seen["first"]) == {"dispatch_fn", "collect_fn", "execute_fn", "blocking"}
    assert seen["first"]["blocking"] is False
    assert seen["add"]["execute_fn"] == group.execute_all


def test_a_base_group_says_what_a_backend_must_supply() -> None:
    group: Any = WorkerGroup()
    group._world_size = 1
    group._bind_worker_method(Calculator)
    with pytest.raises(NotImplementedError):
        group.add(1)


@pytest.mark.parametrize("signature_of", ["positional_only", "keyword_only", "many"])
def test_signatures_of_every_kind_bind(signature_of: str) -> None:
    class Kinds(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def positional_only(self, x: int, /) -> int:
            return x

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def keyword_only(self, *, x: int) -> int:
            return x

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def many(self, *values: Any, **named: Any) -> Any:
            return sum(values) + sum(named.values())

    group: Any = LocalWorkerGroup(Kinds, 1)
    accepted = {"positional_only": ((3,), {}), "keyword_only": ((), {"x": 3}), "many": ((1,), {"x": 2})}
    args, kwargs = accepted[signature_of]
    assert group.methods.__getattr__(signature_of)(*args, **kwargs) == [3]
    if signature_of != "many":
        with pytest.raises(TypeError, match=signature_of):
            group.call(signature_of, *((), {}) if args else (3,))
