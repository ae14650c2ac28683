"""Groups that outlive their driver, and attaching to running workers."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
from ray.exceptions import RayActorError
from verl_dispatch import Dispatch, Worker, WorkerGroupError, register
from verl_ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    destroy_detached,
)
from verl_ray.errors import AttachError, NotTheOwnerError, PoolClosed, ResourceUnavailable

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


class Counter(Worker):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self) -> tuple[int, int]:
        self.count += 1
        return self.rank, self.count


@pytest.fixture(scope="module")
def detached(running_ray: None) -> Iterator[RayWorkerGroup[Counter]]:
    pool = RayResourcePool([2, 2], use_gpu=False, cpus_per_worker=0.1, detached=True)
    template = RayClassWithInitArgs(Counter)
    with pool, RayWorkerGroup(pool, template, detached=True, name_prefix="lasting") as group:
        assert template._options == {}
        yield group


@ray.remote(num_cpus=0)
class OtherDriver:
    """Gets a group that another driver started."""

    def use(self, group: RayWorkerGroup[Counter]) -> tuple[list[int], str]:
        ranks = [rank for rank, _ in group.add()]
        with pytest.raises(NotTheOwnerError, match="attached"):
            group.restart()
        group.shutdown()
        return ranks, group.master_port


def attach(**given: Any) -> RayWorkerGroup[Counter]:
    return RayWorkerGroup.from_detached(ray_cls_with_init=RayClassWithInitArgs(ray.remote(Counter)), **given)


def test_workers_are_ordered_by_the_rank_they_report(detached: RayWorkerGroup[Counter]) -> None:
    attached = attach(worker_names=detached.worker_names[::-1])
    assert [rank for rank, _ in attached.add()] == [0, 1, 2, 3]
    assert attached.worker_names == detached.worker_names
    assert attached.master_port == detached.master_port
    assert attached.startup_report() == {}
    with pytest.raises(NotTheOwnerError, match="attached"):
        attached.restart()
    attached.shutdown()
    for verb in (attached.add, attached.restart):
        with pytest.raises(WorkerGroupError, match="shut down"):
            verb()
    assert len(detached.add()) == 4


def test_holes_doubles_and_strangers_are_refused(detached: RayWorkerGroup[Counter]) -> None:
    names = detached.worker_names
    with pytest.raises(ValueError, match="rank 1 missing"):
        attach(worker_names=[names[0], names[2]])
    with pytest.raises(ValueError, match="rank 3 comes 2 times"):
        attach(worker_names=[*names, names[3]])
    with pytest.raises(AttachError, match="no actor named 'nobody'"):
        attach(worker_names=["nobody"])

    class Stranger:
        pass

    with pytest.raises(AttachError, match="not started by a worker group"):
        attach(worker_handles=[ray.remote(Stranger).options(num_cpus=0).remote()])


def test_handles_keep_their_order_and_may_come_twice(detached: RayWorkerGroup[Counter]) -> None:
    workers = detached.workers
    attached = attach(worker_handles=[workers[2], workers[0], workers[2]])
    assert [rank for rank, _ in attached.add()] == [2, 0, 2]
    assert attached.world_size == 3


@pytest.mark.parametrize(
    "given",
    [
        {"resource_pool": RayResourcePool([1], use_gpu=False)},
        {"worker_handles": ["handles"]},
        {"worker_env": {"A": "b"}},
        {"use_gpu": False},
        {"master_port": 29500},
        {"detached": True},
        {"wait": False},
    ],
    ids=lambda given: next(iter(given)),
)
def test_who_attaches_cannot_say_how_the_workers_start(given: dict[str, Any]) -> None:
    name = "worker_names" if "worker_handles" in given else next(iter(given))
    template = RayClassWithInitArgs(Counter)
    with pytest.raises(ValueError, match=rf"^{name} is .*expected none: .*those run already"):
        RayWorkerGroup(ray_cls_with_init=template, worker_names=["one"], **given)


def test_a_name_in_use_is_refused_and_its_owner_lives_on(detached: RayWorkerGroup[Counter]) -> None:
    assert isinstance(detached.resource_pool, RayResourcePool)
    template = RayClassWithInitArgs(Counter)
    with pytest.raises(ValueError, match=r"'lasting_Counter_0'.*another name_prefix.*from_detached"):
        RayWorkerGroup(detached.resource_pool, template, detached=True, name_prefix="lasting")
    assert detached.resource_pool.owners() == ["lasting"]
    assert len(detached.add()) == 4


def test_only_the_detached_group_is_detached(detached: RayWorkerGroup[Counter]) -> None:
    assert isinstance(detached.resource_pool, RayResourcePool)
    with RayWorkerGroup(detached.resource_pool, RayClassWithInitArgs(Counter)) as other:
        assert (other.is_detached, detached.is_detached) == (False, True)


def test_another_driver_finds_them_in_their_namespace_only(detached: RayWorkerGroup[Counter]) -> None:
    program = f"""
import ray
from verl_dispatch import Dispatch, Worker, register
from verl_ray import RayClassWithInitArgs, RayWorkerGroup
class Counter(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self): ...
def attach():
    return RayWorkerGroup.from_detached(
        worker_names={detached.worker_names!r}, ray_cls_with_init=RayClassWithInitArgs(Counter)
    )
ray.init("auto", log_to_driver=False)
try:
    attach()
except ValueError as error:
    print(error)
ray.shutdown()
ray.init("auto", namespace="verl_ray_tests", log_to_driver=False)
print([rank for rank, _ in attach().add()])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=False
    )
    assert "anonymous namespace" in done.stdout, done.stderr
    assert "[0, 1, 2, 3]" in done.stdout, done.stderr
    assert len(detached.add()) == 4


def test_who_attaches_can_restart_and_free_what_an_ended_driver_left(
    running_ray: None, free_resources: Callable[[], Any], wait_until_free: Callable[..., Any]
) -> None:
    before = free_resources()
    program = """
import ray
from verl_dispatch import Dispatch, Worker, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
class Counter(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self): ...
ray.init("auto", namespace="verl_ray_tests", log_to_driver=False)
pool = RayResourcePool([2], use_gpu=False, detached=True)
group = RayWorkerGroup(pool, RayClassWithInitArgs(Counter), detached=True, name_prefix="left")
print(*group.worker_names)
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    names = done.stdout.split()
    assert len(names) == 2, done.stderr
    counter: Any = Counter
    extra = RayClassWithInitArgs(counter, "extra")
    wrong = RayWorkerGroup.from_detached(worker_names=names, ray_cls_with_init=extra)
    with pytest.raises(TypeError, match="ray_cls_with_init has arguments of which no Counter can be made"):
        wrong.restart()
    group = attach(worker_names=names)
    ray.kill(group.workers[1])
    wait_until_gone(group.workers[1])
    with pytest.raises(WorkerGroupError, match="rank 1"):
        group.add()
    with pytest.raises(WorkerGroupError, match=r"broken .* call restart\(\)"):
        group.add()
    group.restart()
    assert group.add() == [(0, 1), (1, 1)]
    assert not set(group.worker_names) & set(names)
    # Shutting down lets go of them; they live on, and may be attached to.
    group.shutdown()
    assert attach(worker_names=group.worker_names).add() == [(0, 2), (1, 2)]
    destroy_detached(group.worker_names, placement_groups=True)
    assert wait_until_free(30.0, before) == before


def wait_until_gone(handle: Any) -> None:
    """Ray ends the worker of another driver some time after `ray.kill`."""
    with contextlib.suppress(RayActorError):
        while True:
            ray.get(handle.__ray_ready__.remote())


def test_a_fork_of_the_driver_is_told_so_and_does_not_wait_for_ever(
    detached: RayWorkerGroup[Counter],
) -> None:
    sent, unused = detached.add.submit(), RayResourcePool([1], use_gpu=False)
    uses = (detached.add, detached.restart, sent.result, unused.slots, detached.resource_pool.slots)  # type: ignore[union-attr]
    to_read, to_write = os.pipe()
    if not (child := os.fork()):
        said: list[str] = []
        for use in uses:
            try:
                use()
            except Exception as error:  # what it is shows in the parent
                said.append(str(error))
        detached.shutdown()
        os.write(to_write, json.dumps(said).encode())
        os._exit(0)
    os.close(to_write)
    with os.fdopen(to_read) as pipe:
        told = json.load(pipe)
    os.waitpid(child, 0)
    assert ["is a fork of driver" in each for each in told] == [True] * len(uses)
    assert len(sent.result()) == len(detached.add()) == 4


def test_a_driver_connected_by_ray_client_is_told_to_run_elsewhere(
    running_ray: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.util.client.ray.is_connected", lambda: True)
    with pytest.raises(ResourceUnavailable, match=r"ray:// address.*ray job submit"):
        RayResourcePool([1], use_gpu=False).slots()


def test_roles_of_attached_workers_can_be_spawned(running_ray: None) -> None:
    template = create_colocated_worker_cls({"one": RayClassWithInitArgs(Counter)})
    with (
        RayResourcePool([1], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, template) as group,
    ):
        attached = RayWorkerGroup.from_detached(worker_names=group.worker_names, ray_cls_with_init=template)
        assert attached.spawn(["one"])["one"].add() == [(0, 1)]


def test_detached_workers_can_be_ended_by_name(running_ray: None) -> None:
    pool = RayResourcePool([1], use_gpu=False, cpus_per_worker=0.1, detached=True)
    with pool:
        group = RayWorkerGroup(pool, RayClassWithInitArgs(Counter), detached=True, name_prefix="doomed")
        destroy_detached(group.worker_names)
        with pytest.raises(WorkerGroupError, match="rank 0"):
            group.add()
        destroy_detached(group.worker_names)
        group.shutdown()


def test_what_had_the_name_before_keeps_its_placement_groups(running_ray: None) -> None:
    sizes: dict[str, Any] = {"use_gpu": False, "cpus_per_worker": 0.1, "detached": True}
    with RayResourcePool([1], **sizes) as before, RayResourcePool([1], **sizes) as now:
        for pool in (before, now):
            group = RayWorkerGroup(pool, RayClassWithInitArgs(Counter), detached=True, name_prefix="again")
            names = group.worker_names
            if pool is before:
                group.shutdown()
        destroy_detached(names, placement_groups=True)
        assert before.lost_nodes() == ()
        with pytest.raises(PoolClosed, match="somebody else removed"):
            now.lost_nodes()


def test_a_group_handed_to_another_driver_is_attached_there(detached: RayWorkerGroup[Counter]) -> None:
    other: Any = OtherDriver
    assert ray.get(other.remote().use.remote(detached)) == ([0, 1, 2, 3], detached.master_port)
    assert len(detached.add()) == 4
    # A worker of the group may get it too, and whoever copies it.
    assert detached.execute_rank_zero_sync("__eq__", detached) is NotImplemented
    copied = copy.copy(detached)
    copied.shutdown()
    with pytest.raises(WorkerGroupError, match="shut down"):
        pickle.dumps(copied)
    assert len(detached.add()) == 4


def test_the_view_of_a_role_stays_one_where_it_is_handed_to() -> None:
    roles = create_colocated_worker_cls({"one": RayClassWithInitArgs(Counter)})
    with RayResourcePool([1], use_gpu=False) as pool, RayWorkerGroup(pool, roles) as group:
        view = group.spawn(["one"])["one"]
        assert ray.get(ray.put(view)).add() == [(0, 1)]
        assert ray.get(ray.put(group)).spawn(["one"])["one"].add() == [(0, 2)]
