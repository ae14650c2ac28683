"""What a worker offers to its own methods and to the group."""

import inspect
import socket
from typing import Any

import numpy as np
import pytest
import torch
from verl_dispatch import LocalWorkerGroup, WorkerGroupError
from verl_dispatch.methods.decorator import MAGIC_ATTR
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.workers.rank import RankInfo
from verl_dispatch.workers.site import WorkerSite, building
from verl_dispatch.workers.worker import Worker
from verl_protocol.errors import InvalidTypeError


@pytest.fixture
def worker() -> Worker:
    with building(WorkerSite(RankInfo(rank=1, world_size=4, master_addr="127.0.0.1", master_port="29500"))):
        return Worker()


def test_registered_meshes_are_kept_by_name(worker: Worker) -> None:
    worker._register_dispatch_collect_info("actor", 1, True)
    worker._register_dispatch_collect_info("rollout", np.int64(0), False)
    assert worker._query_dispatch_info("rollout") == 0
    assert worker._query_collect_info("actor") is True
    assert worker.query_collect_info("rollout") is False
    assert worker.get_dispatch_collect() == {
        "dispatch_dp_rank": {"actor": 1, "rollout": 0},
        "collect_dp_rank": {"actor": True, "rollout": False},
    }


def test_mesh_registered_twice_is_an_error_and_changes_nothing(worker: Worker) -> None:
    worker._register_dispatch_collect_info("actor", 1, True)
    with pytest.raises(ValueError, match=r"mesh 'actor' is already registered .* dp rank 1 and collect=True"):
        worker._register_dispatch_collect_info("actor", 0, False)
    assert worker._query_dispatch_info("actor") == 1


def test_unknown_mesh_lists_the_registered_ones(worker: Worker) -> None:
    worker._register_dispatch_collect_info("m", 0, True)
    for query in (worker._query_dispatch_info, worker._query_collect_info, worker.query_collect_info):
        with pytest.raises(KeyError, match=r"'nope'.*registered meshes: m"):
            query("nope")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        *(
            (("m", dp_rank, True), "mesh 'm': dp_rank is .*a whole number")
            for dp_rank in ("0", 0.5, None, True)
        ),
        *((("m", 0, flag), "mesh 'm': is_collect is .*or False") for flag in ("False", None, 2, 0.0)),
        *(((name, 0, True), "its name is .*, expected a text") for name in (3, None, "")),
    ],
)
def test_what_is_registered_is_of_the_right_kind(worker: Worker, entry: Any, problem: str) -> None:
    with pytest.raises(InvalidTypeError, match=problem):
        worker._register_dispatch_collect_info(*entry)
    assert worker.get_dispatch_collect()["dispatch_dp_rank"] == {}


@pytest.mark.parametrize("flag", [True, 1, np.bool_(True), torch.tensor(True)])
@pytest.mark.parametrize("dp_rank", [1, np.int64(1), torch.tensor(1)])
def test_scalars_of_numpy_and_torch_are_numbers(worker: Worker, dp_rank: Any, flag: Any) -> None:
    worker._register_dispatch_collect_info("m", dp_rank, flag)
    found = worker.get_dispatch_collect()
    assert found == {"dispatch_dp_rank": {"m": 1}, "collect_dp_rank": {"m": True}}
    assert type(found["dispatch_dp_rank"]["m"]) is int


def test_all_meshes_of_a_wrapped_worker_are_taken_over(worker: Worker) -> None:
    worker.set_dispatch_collect("a", {"a": 1, "b": 0}, {"a": False, "b": True})
    assert worker.get_dispatch_collect() == {
        "dispatch_dp_rank": {"a": 1, "b": 0},
        "collect_dp_rank": {"a": False, "b": True},
    }


def test_the_only_mesh_of_a_wrapped_worker_takes_the_given_name(worker: Worker) -> None:
    for name in ("actor", "ref"):
        worker.set_dispatch_collect(name, {"train": 2}, {"train": True})
    assert worker.get_dispatch_collect()["dispatch_dp_rank"] == {"actor": 2, "ref": 2}


@pytest.mark.parametrize(
    ("dispatch", "collect"), [({"a": 0}, {"b": True}), ({"a": 0, "b": 1}, {"a": True}), ({}, {})]
)
def test_dispatch_and_collect_must_name_the_same_meshes(
    worker: Worker, dispatch: dict[str, int], collect: dict[str, bool]
) -> None:
    with pytest.raises(ValueError, match="same meshes"):
        worker.set_dispatch_collect("m", dispatch, collect)


def test_taking_over_is_all_or_nothing(worker: Worker) -> None:
    worker._register_dispatch_collect_info("b", 3, True)
    with pytest.raises(ValueError, match="mesh 'b' is already registered"):
        worker.set_dispatch_collect("x", {"a": 1, "b": 0}, {"a": False, "b": True})
    assert worker.get_dispatch_collect()["dispatch_dp_rank"] == {"b": 3}


def test_available_address_can_be_listened_on(worker: Worker) -> None:
    address, port = worker.get_available_master_addr_port()
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, int(port)))


def test_visible_devices(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker.get_cuda_visible_devices() == "not set"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with building(WorkerSite(RankInfo(rank=0, world_size=1))):
        assert Worker(cuda_visible_devices="2,3").get_cuda_visible_devices() == "2,3"
    with pytest.raises(WorkerGroupError, match="cuda_visible_devices must be a str, got 5"):
        LocalWorkerGroup(Worker, 1, 5)  # type: ignore[call-overload]


def test_env_keys_are_those_of_torchrun() -> None:
    assert set(Worker.env_keys()) == {
        *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "CUDA_VISIBLE_DEVICES",
    }


def test_functions_sent_to_workers_run_there(worker: Worker) -> None:
    assert worker.execute_func_rank_zero(lambda a, b: a - b, 5, b=2) == 3
    run: Any = worker.execute_with_func_generator
    assert run(lambda this, add: this.rank + add, 10) == 11


def test_registered_modes_of_the_base_class() -> None:
    def marks(name: str) -> tuple[Any, Any]:
        found = getattr(getattr(Worker, name), MAGIC_ATTR)
        return found["dispatch_mode"], found["execute_mode"]

    assert marks("execute_func_rank_zero") == (Dispatch.ALL_TO_ALL, Execute.RANK_ZERO)
    assert marks("execute_with_func_generator") == (Dispatch.DP_COMPUTE_PROTO_WITH_FUNC, Execute.ALL)
    for name in (
        "_query_dispatch_info",
        "_query_collect_info",
        "get_dispatch_collect",
        "set_dispatch_collect",
    ):
        assert marks(name) == (Dispatch.ONE_TO_ALL, Execute.ALL)


def test_users_may_use_the_names_that_a_worker_needs_for_itself() -> None:
    class Mine(Worker):
        def __init__(self) -> None:
            super().__init__()
            self._process_group = self._meshes = self._rank_info = self.place = "mine"

    with building(WorkerSite(RankInfo(rank=0, world_size=1))):
        worker = Mine()
    worker._register_dispatch_collect_info("m", 0, True)
    assert worker.rank == 0
    assert worker.process_group().world_size == 1
    assert worker._process_group == "mine"


def test_signature_of_the_class_is_that_of_its_constructor() -> None:
    class Same(Worker):
        pass

    class Other(Worker):
        def __init__(self, lr: float) -> None:
            super().__init__()

    assert list(inspect.signature(Worker).parameters) == ["cuda_visible_devices"]
    assert list(inspect.signature(Same).parameters) == ["cuda_visible_devices"]
    assert list(inspect.signature(Other).parameters) == ["lr"]
