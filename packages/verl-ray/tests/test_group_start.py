"""Starting and ending groups: parameters, refusals, start-up failures, and that nothing is left behind."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError
from verl_dispatch import Dispatch, Worker, WorkerGroupError, register
from verl_dispatch.groups.pool import ResourcePool
from verl_ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourceUnavailable,
    create_colocated_worker_cls,
)
from verl_ray.errors import StartTimeout
from verl_ray.group import launch

pytestmark = [pytest.mark.usefixtures("shared_ray"), pytest.mark.timeout(120)]
Resources = Callable[[], dict[str, float]]


class Wide(Worker):
    def __init__(self, width: int) -> None:
        self.width = width


class Plain(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def environment(self, name: str) -> str | None:
        return os.environ.get(name)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ident(self) -> tuple[int, int, str, str]:
        return self.rank, self.world_size, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]


class NoWorker:
    """Knows nothing of Worker, and still reads its rank."""

    def __init__(self) -> None:
        self.rank = os.environ["RANK"]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> str:
        return self.rank


class ForgetsSuper(Worker):
    def __init__(self, word: str) -> None:
        self.word = word

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def who(self) -> tuple[int, str]:
        return self.rank, self.word


class Refuses(Worker):
    """Rank 1 cannot be built; the others wait for it, as init_process_group does."""

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        if self.rank == 1:
            raise ValueError("no such checkpoint")
        time.sleep(wait_s)


def pool(*sizes: int, **options: Any) -> RayResourcePool:
    return RayResourcePool(list(sizes) or [1], use_gpu=False, **{"cpus_per_worker": 0.1, **options})


def test_pools_may_be_uneven() -> None:
    with pool(2, 1) as places, RayWorkerGroup(places, RayClassWithInitArgs(Plain)) as group:
        assert sorted(group.ident()) == [(0, 3, "0", "2"), (1, 3, "1", "2"), (2, 3, "0", "1")]


def test_any_class_forms_a_group() -> None:
    with pool() as places:
        with RayWorkerGroup(places, RayClassWithInitArgs(NoWorker)) as group:
            assert group.who() == ["0"]
        with RayWorkerGroup(places, RayClassWithInitArgs(ForgetsSuper, "x")) as forgetful:
            assert forgetful.who() == [(0, "x")]


def test_options_environment_and_class_name_are_kept() -> None:
    template = RayClassWithInitArgs(ray.remote(num_cpus=0.05)(Plain))
    template.update_options({"runtime_env": {"env_vars": {"X": "1"}}})
    kept = dict(template._options)
    os.environ["MY_FLAG"] = "yes"
    with (
        pool(1) as places,
        RayWorkerGroup(places, template, worker_env={"Y": "2"}, forward_env="MY_FLAG") as group,
    ):
        assert [group.environment(name) for name in ("X", "Y", "MY_FLAG")] == [["1"], ["2"], ["yes"]]
        assert group.environment("WG_BACKEND") == ["ray"]
        assert group.environment("WG_PREFIX") == [group.name_prefix]
        assert group.environment("CUDA_VISIBLE_DEVICES") == [""]
        names = ray.get(
            [worker.__ray_call__.remote(lambda it: type(it).__name__) for worker in group.workers]
        )
        assert names == ["Plain"]
    assert template._options == kept


@pytest.mark.parametrize(
    ("keywords", "error", "pattern"),
    [
        ({"name_prefx": "x"}, TypeError, "name_prefx.*did you mean 'name_prefix'"),
        ({"width": 4, "ray_cls_with_init": Plain}, ValueError, r"RayClassWithInitArgs\(Plain, width=4\)"),
        (
            {"width": 4, "ray_cls_with_init": RayClassWithInitArgs(Wide, 4)},
            TypeError,
            r"'width'; the constructor's go to RayClassWithInitArgs\(Wide, width=\.\.\.\)",
        ),
        ({"worker_envs": {}}, TypeError, "worker_envs.*'worker_env'"),
        ({"worker_env": {"RANK": "7"}}, ValueError, "RANK"),
        ({"forward_env": ["CUDA_VISIBLE_DEVICES"]}, ValueError, "CUDA_VISIBLE_DEVICES"),
        ({"detached": True}, ValueError, "detached workers .* detached pool"),
        ({"use_gpu": True}, ValueError, "use_gpu"),
        ({"master_port": "29500"}, ValueError, "both"),
        ({"profile_steps": [1]}, ValueError, "worker_nsight_options"),
        ({"resource_pool": None}, ValueError, "resource_pool is None, expected a RayResourcePool"),
        ({"resource_pool": ResourcePool([1])}, ValueError, "resource_pool is .* expected a RayResourcePool"),
        ({"ray_cls_with_init": Plain}, ValueError, "ray_cls_with_init is .* expected a RayClassWithInitArgs"),
        ({"ray_wait_register_center_timeout": "5"}, TypeError, "ray_wait_register_center_timeout .* got '5'"),
        ({"wait": "no"}, TypeError, "wait must be True or False, got 'no'"),
        ({"bin_pack": "no"}, TypeError, "bin_pack must be True or False"),
        ({"use_gpu": "no"}, TypeError, "use_gpu must be True or False"),
        ({"on_restart": 5}, ValueError, "on_restart is 5, expected a function"),
        ({"worker_env": "X=1"}, TypeError, "worker_env must be a dict"),
        ({"forward_env": 5}, TypeError, "forward_env must be a list of strs"),
        ({"resource_pool": None, "worker_handles": 5}, TypeError, "worker_handles must be a list"),
        ({"resource_pool": None, "worker_names": [5]}, TypeError, "worker_names must be a str, got 5"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_anything_starts(
    keywords: dict[str, Any], error: type[Exception], pattern: str, free_resources: Resources
) -> None:
    before = free_resources()
    with pytest.raises(error, match=pattern):
        RayWorkerGroup(
            **{"resource_pool": pool(), "ray_cls_with_init": RayClassWithInitArgs(Plain), **keywords}
        )
    assert free_resources() == before


@pytest.mark.parametrize("name", ["execute_all", "spawn", "world_size", "shutdown", "workers"])
def test_methods_named_like_the_groups_own_are_refused(name: str) -> None:
    method = register(dispatch_mode=Dispatch.ONE_TO_ALL)(lambda self: 1)
    with pytest.raises(ValueError, match=f"'{name}'.*reserved"):
        RayWorkerGroup(pool(), RayClassWithInitArgs(type("A", (Worker,), {name: method})))


def test_a_constructor_argument_that_cannot_be_pickled_is_named() -> None:
    lock: Any = threading.Lock()
    template = RayClassWithInitArgs(ForgetsSuper, lock)
    roles = create_colocated_worker_cls({"one": RayClassWithInitArgs(Plain), "two": template})
    for given in (template, roles):
        with (
            pool() as places,
            pytest.raises(TypeError, match=r"argument 0 of method 'ForgetsSuper\.__init__' cannot"),
        ):
            RayWorkerGroup(places, given)


def test_a_failing_constructor_is_told_at_once_and_leaves_nothing(wait_until_free: Resources) -> None:
    with pool(2) as places:
        begin = time.monotonic()
        with pytest.raises(WorkerGroupError, match="no such checkpoint") as caught:
            RayWorkerGroup(places, RayClassWithInitArgs(Refuses, 600.0), name_prefix="refusing")
        assert time.monotonic() - begin < 60
        assert caught.value.failed_ranks == [1]
        assert caught.value.unanswered_ranks == [0]
        assert caught.value.errors[1].pid is not None
        with RayWorkerGroup(places, RayClassWithInitArgs(NoWorker)) as group:
            assert group.world_size == 2


class RunsOutOfTime:
    def __init__(self) -> None:
        raise GetTimeoutError("the reward model did not answer")


def test_a_constructor_that_itself_runs_out_of_time_is_told_as_any_failure() -> None:
    with pool(1) as places, pytest.raises(WorkerGroupError, match="the reward model did not") as caught:
        RayWorkerGroup(places, RayClassWithInitArgs(RunsOutOfTime))
    assert caught.value.failed_ranks == [0]


def test_a_start_that_takes_too_long_is_bounded_and_says_what_it_waits_for(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_LOOK_S", 0.2)
    monkeypatch.setattr(launch, "_SAID_AFTER_S", 0.5)
    with pool(1) as places, caplog.at_level("INFO", "verl_ray"):
        with pytest.raises(StartTimeout, match="ray_wait_register_center_timeout") as caught:
            RayWorkerGroup(places, RayClassWithInitArgs(Refuses, 600.0), ray_wait_register_center_timeout=6)
        assert caught.value.unanswered_ranks == [0]
    said = [record for record in caplog.records if "are still" in record.message]
    assert [record.levelname for record in said] == ["INFO", "WARNING"]
    pattern = r"after \d s ranks \[0\] are still (waiting for a process|in their cons)"
    assert all(re.search(pattern, record.message) for record in said)


def test_a_start_says_whose_actors_are_on_its_place() -> None:
    with pool(1, max_colocate_count=1) as places:
        first = RayWorkerGroup(places, RayClassWithInitArgs(NoWorker), name_prefix="first")
        [name], handles = first.worker_names, first.workers
        del first
        gc.collect()
        with pytest.raises(StartTimeout, match=rf"on the place of rank 0 lives '{name}' .* ray.kill"):
            RayWorkerGroup(places, RayClassWithInitArgs(NoWorker), ray_wait_register_center_timeout=3)
        ray.kill(handles[0])
        RayWorkerGroup(places, RayClassWithInitArgs(NoWorker)).shutdown()


def test_groups_start_side_by_side() -> None:
    with pool() as places:
        templates = [RayClassWithInitArgs(ForgetsSuper, word) for word in "ab"]
        groups = [RayWorkerGroup(places, template, wait=False) for template in templates]
        assert [group.who() for group in groups] == [[(0, word)] for word in "ab"]
        assert len({group.master_port for group in groups}) == 2
        for group in groups:
            group.shutdown()


def test_ports_come_from_the_range_and_run_out() -> None:
    with pool(1) as places:
        one = RayWorkerGroup(places, RayClassWithInitArgs(NoWorker), master_port_range=(29370, 29371))
        assert one.master_port == "29370"
        with pytest.raises(ResourceUnavailable, match="29370-29371"):
            RayWorkerGroup(places, RayClassWithInitArgs(NoWorker), master_port_range=(29370, 29371))
        one.shutdown()
        given: dict[str, Any] = {"master_addr": "127.0.0.1", "master_port": 29371}
        with RayWorkerGroup(places, RayClassWithInitArgs(NoWorker), **given) as two:
            assert (two.master_address, two.master_port) == ("127.0.0.1", "29371")


def test_exactly_as_many_groups_as_the_pool_has_room_for() -> None:
    # Six times a sixth of a GPU, rounded to Ray's ten-thousandths, is either less than one GPU or more.
    with RayResourcePool([1], max_colocate_count=6, cpus_per_worker=0.1) as places:
        groups = [RayWorkerGroup(places, RayClassWithInitArgs(Plain), wait=False) for _ in range(6)]
        with pytest.raises(ResourceUnavailable, match="6 of 6"):
            RayWorkerGroup(places, RayClassWithInitArgs(Plain))
        masks = [group.environment("CUDA_VISIBLE_DEVICES") for group in groups]
        assert masks == masks[:1] * 6
        assert masks[0] != [""]
        groups[0].shutdown()
        with RayWorkerGroup(places, RayClassWithInitArgs(NoWorker)) as next_one:
            assert next_one.who() == ["0"]
        for group in groups:
            group.shutdown()


def test_groups_that_ask_a_whole_cpu_each_leave_one_another_room() -> None:
    template = RayClassWithInitArgs(NoWorker)
    template.update_options({"num_cpus": 1})
    with RayResourcePool([1], use_gpu=False, max_colocate_count=2, timeout_s=20) as places:
        groups = [RayWorkerGroup(places, template, wait=False) for _ in range(2)]
        assert [group.who() for group in groups] == [["0"], ["0"]]
        for group in groups:
            group.shutdown()


def test_gpu_workers_see_their_own_device() -> None:
    with RayResourcePool([2], max_colocate_count=2) as places:
        with RayWorkerGroup(places, RayClassWithInitArgs(Plain)) as group:
            masks = [mask for mask in group.environment("CUDA_VISIBLE_DEVICES") if mask]
            assert len(set(masks)) == 2
        with RayWorkerGroup(places, RayClassWithInitArgs(Plain), use_gpu=False) as cpu_group:
            assert cpu_group.environment("CUDA_VISIBLE_DEVICES") == ["", ""]


def test_the_group_says_which_accelerator_a_pool_means() -> None:
    with (
        RayResourcePool([2]) as places,
        RayWorkerGroup(places, RayClassWithInitArgs(Plain), device_name="npu") as group,
    ):
        assert places.accelerator == "NPU"
        assert set(group.environment("ASCEND_RT_VISIBLE_DEVICES")) == {"0", "1"}


def test_an_exception_in_the_block_ends_the_workers() -> None:
    with pool() as places:
        with pytest.raises(KeyboardInterrupt), RayWorkerGroup(places, RayClassWithInitArgs(Plain)) as group:
            raise KeyboardInterrupt
        with pytest.raises(WorkerGroupError, match="shut down"):
            group.ident()


def test_a_dropped_group_frees_its_workers_and_its_share() -> None:
    with pool(1, max_colocate_count=1) as places:
        group = RayWorkerGroup(places, RayClassWithInitArgs(Plain))
        pid = ray.get(group.workers[0].__ray_call__.remote(lambda worker: os.getpid()))
        del group
        gc.collect()
        deadline = time.monotonic() + 20
        while process_lives(pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not process_lives(pid)
        RayWorkerGroup(places, RayClassWithInitArgs(NoWorker)).shutdown()


def process_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
