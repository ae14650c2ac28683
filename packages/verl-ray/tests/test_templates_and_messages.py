"""What a group is started from and what its calls look like on the wire: without a cluster."""

from __future__ import annotations

import asyncio
import functools
import pickle
import subprocess
import sys
import threading
import types
from typing import Any

import pytest
import ray
import torch
from ray._private.async_compat import has_async_methods
from verl_dispatch import ClassWithInitArgs, Dispatch, Worker, register
from verl_dispatch.methods.registered import registered_methods
from verl_dispatch.planning.plan import RankCall
from verl_dispatch.workers.rank import RankInfo
from verl_dispatch.workers.roles import arguments_apart, roles_of
from verl_protocol import DataProto, DataProtoFuture
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from verl_ray.calls.packing import Packer, is_worth_storing
from verl_ray.wire.message import ONE_READER, Answer, Slot, open_message, packed, prepare_answer
from verl_ray.worker.actor import (
    ANY_METHOD,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    derive_actor_class,
    routes_of,
)
from verl_ray.worker.host import Assignment, Host, WorkerReport, startup_times

REMOTE: Any = ray.remote
METHOD: Any = ray.method


class Sample(Worker):
    seen: tuple[Any, ...]

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls)
        made.seen = args
        return made

    def __init__(self, word: str) -> None:
        self.word = word

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def say(self, x: Any = None) -> Any:
        return self.word, x


class AsyncSample(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def say(self) -> str:
        await asyncio.sleep(0)
        return "later"


def test_options_of_remote_are_kept_and_later_ones_win() -> None:
    wrapped = REMOTE(num_cpus=2, max_concurrency=3)(Sample)
    template: RayClassWithInitArgs[Any] = RayClassWithInitArgs(wrapped, "x")
    template.update_options({"num_cpus": 1})
    template.set_additional_resource({"disk": 1})
    options = template.user_options()
    assert (options["num_cpus"], options["max_concurrency"], options["resources"]) == (1, 3, {"disk": 1})
    assert template.user_class is Sample
    assert template.cls is wrapped
    cloudpickle: Any = ray.cloudpickle
    again = pickle.loads(cloudpickle.dumps(template))
    assert again.args == ("x",)


def test_what_ray_adds_to_a_signature_is_none_of_the_callers_business() -> None:
    REMOTE(Sample)
    assert list(registered_methods(Sample)["say"].signature.parameters) == ["x"]


def test_async_classes_make_asyncio_actors_only_where_calls_may_interleave() -> None:
    template: RayClassWithInitArgs[Any] = RayClassWithInitArgs(AsyncSample)
    assert not has_async_methods(template.actor_class().__ray_metadata__.modified_class)
    template.update_options({"max_concurrency": 9})
    assert template.user_options()["max_concurrency"] == 9
    assert has_async_methods(template.actor_class().__ray_metadata__.modified_class)
    roles = create_colocated_worker_cls({"a": RayClassWithInitArgs(AsyncSample)})
    roles.update_options({"max_concurrency": 9})
    assert has_async_methods(roles.actor_class().__ray_metadata__.modified_class)


def test_only_classes_make_templates() -> None:
    with pytest.raises(TypeError, match="expected a worker class"):
        RayClassWithInitArgs(lambda: 1)


class Grouped:
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def report(self) -> None: ...

    METHOD(concurrency_group="io")(report)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: RayClassWithInitArgs(REMOTE(concurrency_groups={"io": 2})(AsyncSample)), "groups is"),
        (lambda: RayClassWithInitArgs(AsyncSample).update_options({"concurrency_groups": {"a": 2}}), "is"),
        (lambda: RayClassWithInitArgs(Grouped), "concurrency_group of Grouped.report is 'io'"),
        (lambda: create_colocated_worker_cls({"a": RayClassWithInitArgs(Grouped)}), "Grouped.report"),
    ],
)
def test_concurrency_groups_are_refused_when_the_template_is_made(make: Any, named: str) -> None:
    with pytest.raises(ValueError, match=rf"{named}.*max_concurrency"):
        make()


@pytest.mark.parametrize(
    ("option", "way"),
    [
        ("name", "name_prefix"),
        ("scheduling_strategy", "get_placement_groups"),
        ("placement_group", "get_placement_groups"),
        ("lifetime", "detached=True"),
        ("get_if_exists", "from_detached"),
        ("max_restarts", r"group\.restart\(\)"),
    ],
)
def test_options_for_which_a_group_has_its_own_way_are_refused(option: str, way: str) -> None:
    with pytest.raises(ValueError, match=f"{option} of the options of Sample is .*{way}"):
        RayClassWithInitArgs(Sample, "x").update_options({option: "detached"})


def test_options_of_remote_are_refused_alike() -> None:
    with pytest.raises(ValueError, match=r"lifetime of the options of Sample is 'detached'"):
        RayClassWithInitArgs(REMOTE(lifetime="detached")(Sample))


def test_none_where_options_or_roles_go_is_none_or_is_named() -> None:
    template: RayClassWithInitArgs[Any] = RayClassWithInitArgs(Sample, "x")
    template.update_options(None)
    template.set_additional_resource(None)
    assert template.user_options() == {}
    nothing: Any = None
    with pytest.raises(ValueError, match="class_dict=None, expected a dict of role"):
        create_colocated_worker_cls(nothing)
    plain: Any = {"a": AsyncSample}
    assert roles_of(create_colocated_worker_cls(plain).user_class) == plain
    with pytest.raises(TypeError, match="options must be a dict"):
        template.update_options([("num_cpus", 1)])  # type: ignore[arg-type]


@pytest.mark.parametrize("fused", [False, True])
def test_roles_are_given_by_plain_templates_too(fused: bool) -> None:
    make = create_colocated_worker_cls_fused if fused else create_colocated_worker_cls
    template = make({"a": ClassWithInitArgs(Sample, "x"), "b": RayClassWithInitArgs(Sample, "y")})
    assert [spec.args for spec in template.constructions()[1:]] == [("x",), ("y",)]


def test_the_arguments_of_roles_do_not_travel_with_the_class() -> None:
    roles = create_colocated_worker_cls({"a": RayClassWithInitArgs(Sample, "x" * 1_000_000)})
    cloudpickle: Any = ray.cloudpickle
    with arguments_apart():
        assert len(cloudpickle.dumps(derive_actor_class(roles.user_class))) < 500_000
    again = pickle.loads(cloudpickle.dumps(roles))
    assert again.constructor_arguments()[0][0][0].args == ("x" * 1_000_000,)


def test_the_actor_class_waits_and_keeps_its_name() -> None:
    derived: Any = derive_actor_class(Sample)
    assert (derived.__name__, derived.__module__) == ("Sample", Sample.__module__)
    assert issubclass(derived, Sample)
    assert issubclass(derived, Host)
    waiting = derived()
    assert not hasattr(waiting, "word")
    runners = {route.method.name: route.runner for route in routes_of(Sample)}
    assert hasattr(derived, runners["say"])
    assert hasattr(derived, ANY_METHOD)


def test_routes_of_roles_never_meet() -> None:
    class Other(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def b_say(self) -> None: ...

    roles = create_colocated_worker_cls(
        {"a": RayClassWithInitArgs(Other), "a_b": RayClassWithInitArgs(Sample, "x")}
    )
    runners = [route.runner for route in routes_of(roles.user_class)]
    assert len(set(runners)) == len(runners)


def test_calls_without_arguments_send_none() -> None:
    assert Packer({}).pack(RankCall(0), ONE_READER) == ()
    assert open_message(None, ()) == ((), {}, ONE_READER)


def test_messages_carry_values_and_slots() -> None:
    big = torch.arange(4)
    message, *refs = Packer({id(big): "the reference"}).pack(
        RankCall(0, (big, 1), {"k": big}), Answer("many")
    )
    assert refs == ["the reference"]
    # Ray carries bytes as they are, and would make a pickle of anything else.
    assert isinstance(message, bytes)
    args, kwargs, answer = open_message(message, ("filled",))
    assert (args, kwargs, answer) == (("filled", 1), {"k": "filled"}, Answer("many"))


def test_tensors_in_a_message_arrive_writable() -> None:
    [message] = Packer({}).pack(RankCall(0, ({"w": torch.ones(3)},)), ONE_READER)
    (weights,), _, _ = open_message(pickle.loads(pickle.dumps(message, protocol=5)), ())
    assert weights["w"].add_(1).tolist() == [2.0, 2.0, 2.0]


def test_row_counts_of_futures_are_filled_in() -> None:
    future: DataProtoFuture[Any] = DataProtoFuture(DataProto.concat, [], row_counts=[])
    future.row_counts = [Slot(0), 3]
    (filled,), _, _ = open_message(pickle.dumps(((future,), {}, None), protocol=5), (5,))
    assert filled.row_counts == [5, 3]


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (1, False),
        ("short", False),
        ("x" * 200_000, True),
        ({"lr": 1e-6, "steps": [1, 2]}, False),
        (torch.zeros(8), False),
        (torch.zeros(100_000), True),
        ({"w": torch.zeros(100_000)}, True),
        (object(), True),
        (list(range(1000)), True),
    ],
)
def test_shared_values_are_stored_when_large_or_unknown(value: Any, stored: bool) -> None:
    assert is_worth_storing(value) is stored


def test_answers_come_as_asked() -> None:
    batch = DataProto.from_dict(tensors={"i": torch.arange(3)})
    assert prepare_answer(batch, Answer(dropped=True)) is None
    carried, rows = prepare_answer(batch, Answer("many", with_rows=True))
    assert rows == 3
    arrived = pickle.loads(pickle.dumps(carried, protocol=5))
    assert arrived.open("one").tensor("i").tolist() == [0, 1, 2]
    assert prepare_answer(7, ONE_READER) == 7
    settings = types.SimpleNamespace(batch_size=4)
    assert prepare_answer(settings, Answer(with_rows=True))[1] == 0
    for answer in (ONE_READER, Answer("many")):
        with pytest.raises(TypeError, match=r"the answer of method 'say' cannot be pickled.*lock"):
            pickle.dumps(prepare_answer([threading.Lock()], answer, "say"))
    with pytest.raises(TypeError, match="the answer of method 'say' cannot be pickled"):
        pickle.dumps(prepare_answer([threading.Lock()], Answer(with_rows=True), "say")[0])


def test_methods_of_our_classes_travel_by_name() -> None:
    batch = DataProto.from_dict(tensors={"i": torch.arange(3)})
    made, joined, counted = pickle.loads(
        pickle.dumps(packed([DataProto.from_dict, DataProto.concat, batch.__len__], "one"))
    )
    assert (made, joined, counted()) == (DataProto.from_dict, DataProto.concat, 3)


def test_what_goes_by_a_name_of_ours_and_is_something_else_travels_as_it_is() -> None:
    class Reversed(DataProto):
        def keep(self) -> Any:
            return super().__len__

        def __len__(self) -> int:
            return -7

    @functools.wraps(DataProto.concat)
    def wrapper(parts: Any) -> str:
        return "wrapped"

    sent = [Reversed.from_dict(tensors={"i": torch.arange(3)}).keep(), wrapper]
    inherited, wrapped = pickle.loads(pickle.dumps(packed(sent, "one")))
    assert (inherited(), wrapped([])) == (3, "wrapped")


def test_the_slowest_rank_is_the_one_ready_last() -> None:
    def report(rank: int, loaded_at: float, imports_s: float, constructor_s: float) -> WorkerReport:
        who = Assignment(RankInfo(rank=rank, world_size=2))
        return WorkerReport(who, "n", "ip", 1, loaded_at, imports_s, constructor_s)

    times = startup_times([report(0, 11.0, 2.0, 0.5), report(1, 10.0, 1.0, 4.0)], requested_at=10.0)
    assert (times["processes_s"], times["imports_s"], times["init_s"]) == (1.0, 2.0, 4.0)
    assert (times["actors_s"], times["slowest_rank"], times["constructors_s"]) == (3.0, 1, (0.5, 4.0))
    assert startup_times([report(0, 5.0, 0.0, 0.0)], requested_at=10.0)["processes_s"] == 0.0


def test_importing_the_package_imports_no_tensordict() -> None:
    program = (
        "import sys, verl_ray; verl_ray.RayWorkerGroup; verl_ray.RayResourcePool\n"
        "print(sorted({'tensordict', 'torch._dynamo', 'rich', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("limit", [-1, 0, float("nan"), "soon", True])
def test_a_time_limit_of_a_start_that_is_none_is_named(limit: Any) -> None:
    pool = RayResourcePool([1], use_gpu=False)
    with pytest.raises((TypeError, ValueError), match=r"^ray_wait_register_center_timeout must be a number"):
        RayWorkerGroup(pool, RayClassWithInitArgs(Sample, "x"), ray_wait_register_center_timeout=limit)


class Named:
    def __init__(self) -> None:
        self.name = "Ada"

    def __repr__(self) -> str:
        return f"<{self.name}>"


def test_a_worker_goes_by_its_label_until_its_own_repr_can_tell() -> None:
    worker: Any = derive_actor_class(Named)("group Named rank 1")
    assert repr(worker) == "group Named rank 1"
    Named.__init__(worker)
    worker._verl_report = None
    assert repr(worker) == "<Ada>"
