"""Several roles in one process: views of one worker set, routed by (role, method)."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
import torch
from verl_dispatch import (
    Dispatch,
    LocalWorkerGroup,
    Worker,
    WorkerGroupError,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_dispatch.errors import NotTheOwnerError
from verl_protocol import DataProto
from verl_ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)

pytestmark = pytest.mark.timeout(120)


class Actor(Worker):
    def __init__(self, weights: Any) -> None:
        super().__init__()
        self.weights = weights
        self._register_dispatch_collect_info("m", self.rank, True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def b_c(self) -> tuple[str, int, int]:
        return "Actor.b_c", os.getpid(), self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def total(self) -> float:
        return float(self.process_group().all_reduce(self.weights.sum()[None]))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def slow(self) -> str:
        await asyncio.sleep(0.01)
        return "slow"

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("m"))
    def over_mesh(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def critics_name(self) -> str:
        critic = self.fused_worker_dict.get("a_b")
        return "none" if critic is None else str(critic.c()[0])

    @register(dispatch_mode=Dispatch.DIRECT_ROLLOUT_METHOD)
    async def generate(self, prompt: str) -> str:
        await asyncio.sleep(0)
        return f"{prompt}!"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def die(self) -> None:
        if self.rank == 1:
            os._exit(1)


class Critic(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def c(self) -> tuple[str, int, int]:
        return "Critic.c", os.getpid(), self.rank

    def unregistered(self) -> str:
        return "Critic.unregistered"


def templates() -> dict[str, RayClassWithInitArgs[Any]]:
    return {
        "a": RayClassWithInitArgs(ray.remote(Actor), weights=torch.ones(1 << 16)),
        "a_b": RayClassWithInitArgs(Critic),
    }


@pytest.fixture(scope="module")
def fused(running_ray: None) -> Iterator[RayWorkerGroup[Any]]:
    with (
        RayResourcePool([2], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, create_colocated_worker_cls_fused(templates())) as group,
    ):
        yield group


def test_roles_whose_names_are_prefixes_of_each_other_do_not_mix(fused: RayWorkerGroup[Any]) -> None:
    views = fused.spawn({"a", "a_b"})
    assert [name for name, *_ in views["a"].b_c()] == ["Actor.b_c"] * 2
    assert [name for name, *_ in views["a_b"].c()] == ["Critic.c"] * 2
    assert not hasattr(views["a"], "b_b_c")
    assert not hasattr(views["a"], "c")
    with pytest.raises(KeyError, match=r"unknown role 'x'; colocated roles: a \(Actor\), a_b \(Critic\)"):
        fused.spawn({"x"})


def test_roles_share_process_rank_and_address(fused: RayWorkerGroup[Any]) -> None:
    views = fused.spawn(["a", "a_b"])
    assert [pid for _, pid, _ in views["a"].b_c()] == [pid for _, pid, _ in views["a_b"].c()]
    assert [rank for *_, rank in views["a_b"].c()] == [0, 1]
    assert views["a"].total() == [float(1 << 17)] * 2
    assert views["a"].master_port == fused.master_port


def test_async_methods_meshes_and_any_method_work_through_a_view(fused: RayWorkerGroup[Any]) -> None:
    views = fused.spawn(["a", "a_b"])
    assert views["a"].slow() == ["slow"] * 2
    batch = DataProto.from_dict(tensors={"i": torch.arange(4)})
    assert views["a"].over_mesh(batch).tensor("i").tolist() == [0, 1, 2, 3]
    assert views["a_b"].execute_all_sync("unregistered") == ["Critic.unregistered"] * 2


def test_fused_roles_reach_each_other_and_fuse_names_them(fused: RayWorkerGroup[Any]) -> None:
    fused.fuse({"a", "a_b"})
    assert fused.a.critics_name() == ["Critic.c"] * 2
    assert fused.role("a_b", Critic).c() == fused.a_b.c()
    with pytest.raises(ValueError, match="Critic"):
        fused.role("a_b", Actor)


def test_direct_methods_are_called_on_the_worker_without_the_roles_name(fused: RayWorkerGroup[Any]) -> None:
    assert ray.get(fused.workers[0].generate.remote("hi")) == "hi!"
    with pytest.raises(NotImplementedError):
        fused.spawn(["a"])["a"].generate("hi")


def test_only_the_parent_ends_its_workers(fused: RayWorkerGroup[Any]) -> None:
    view = fused.spawn(["a"])["a"]
    for refused in (view.shutdown, view.restart):
        with pytest.raises(NotTheOwnerError, match=r"view of role 'a'.* or resource_pool\.shutdown\(\)"):
            refused()
    with view:
        assert len(view.b_c()) == 2
    assert len(view.b_c()) == 2


def test_the_raw_class_names_its_roles_and_runs_in_process_too() -> None:
    raw = create_colocated_worker_raw_cls(templates())
    assert raw.raw_cls_dict == {"a": Actor, "a_b": Critic}
    with LocalWorkerGroup(raw, 2) as group:
        assert [name for name, *_ in group.spawn(["a_b"])["a_b"].c()] == ["Critic.c"] * 2
        assert group.execute_all_sync("call_role", "a", "critics_name") == ["Critic.c"] * 2


def test_options_of_roles_are_joined_and_conflicts_named() -> None:
    roles = templates()
    roles["a"].update_options({"num_cpus": 0.05})
    assert create_colocated_worker_cls(roles).user_options()["num_cpus"] == 0.05
    roles["a_b"].update_options({"num_cpus": 0.01})
    with pytest.raises(ValueError, match="num_cpus differs between a and a_b"):
        create_colocated_worker_cls(roles)


class Tidy(Worker):
    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def close(self) -> None:
        self.note("closed")

    def note(self, what: str) -> None:
        with self.notes.open("a") as file:
            file.write(f"{type(self).__name__} {self.rank} {what}\n")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class TidyOnRay(Tidy):
    async def __ray_shutdown__(self) -> None:
        await asyncio.sleep(0.1)
        self.note("shut down")
        raise OSError("only logged")


@pytest.mark.cluster
@pytest.mark.usefixtures("running_ray")
def test_workers_clean_up_before_they_are_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes = tmp_path / "notes"
    roles = {
        "one": RayClassWithInitArgs(Tidy, notes),
        "two": RayClassWithInitArgs(TidyOnRay, notes),
        "none": RayClassWithInitArgs(Critic),
    }
    with RayResourcePool([1], use_gpu=False, cpus_per_worker=0.1) as pool:
        with RayWorkerGroup(pool, create_colocated_worker_cls(roles)) as group:
            # A hook that is still to come when the time is up does not run.
            monkeypatch.setattr("verl_ray.group.launch._CLEAN_UP_S", 0.5)
            group.spawn(["one"])["one"].sleep(600)
            group.restart()
            assert not notes.exists()
            monkeypatch.undo()
            group.restart()
            assert notes.read_text().splitlines() == ["Tidy 0 closed", "TidyOnRay 0 shut down"]
        assert len(notes.read_text().splitlines()) == 4


@pytest.mark.cluster
@pytest.mark.usefixtures("running_ray")
def test_views_share_failure_restart_and_generation() -> None:
    with (
        RayResourcePool([2], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, create_colocated_worker_cls(templates())) as group,
    ):
        views = group.spawn(["a", "a_b"])
        assert views["a"].critics_name() == ["none"] * 2
        with pytest.raises(WorkerGroupError):
            views["a"].die()
        with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'die' on rank 1"):
            views["a_b"].c()
        group.restart()
        assert [rank for *_, rank in views["a_b"].c()] == [0, 1]
        assert views["a_b"].generation == views["a"].generation == 1
        group.shutdown()
        with pytest.raises(WorkerGroupError, match="shut down"):
            views["a"].b_c()
