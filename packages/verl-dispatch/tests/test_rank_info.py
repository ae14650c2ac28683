"""Who a worker is: what the backend says, what torchrun's variables say, and what is neither."""

import pytest
from verl_dispatch.errors import MissingRankVariablesError
from verl_dispatch.workers.rank import RankInfo
from verl_dispatch.workers.site import SITE, WorkerSite, building
from verl_dispatch.workers.worker import Worker
from verl_protocol.errors import InvalidValueError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "fe80::1",
    "MASTER_PORT": "29500",
}


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TORCHRUN, "WG_PREFIX", "WG_BACKEND"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


def place(worker: Worker) -> tuple[int, int, int, int]:
    return worker.rank, worker.world_size, worker.local_rank, worker.local_world_size


@pytest.mark.usefixtures("torchrun")
def test_worker_outside_a_group_reads_torchruns_variables() -> None:
    worker = Worker()
    assert place(worker) == (3, 8, 1, 2)
    assert (worker._rank, worker._world_size) == (3, 8)
    assert worker.get_master_addr_port() == ("fe80::1", "29500")


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE"])
@pytest.mark.usefixtures("torchrun")
def test_missing_variable_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(missing)
    with pytest.raises(KeyError, match=f"{missing} not set"):
        Worker()


@pytest.mark.parametrize(("name", "value"), [("RANK", "one"), ("RANK", "8"), ("RANK", "-1")])
@pytest.mark.usefixtures("torchrun")
def test_unusable_variable_is_an_error(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidValueError, match=f"{value}"):
        Worker()


@pytest.mark.usefixtures("torchrun")
def test_what_the_backend_says_goes_before_the_environment() -> None:
    with building(WorkerSite(RankInfo(rank=1, world_size=2))):
        worker = Worker()
    assert place(worker) == (1, 2, 0, 1)


def test_class_that_never_calls_super_still_knows_its_rank() -> None:
    class Silent(Worker):
        def __init__(self, value: int) -> None:
            self.seen = (self.rank, value)

    with building(WorkerSite(RankInfo(rank=1, world_size=2))):
        worker = Silent(7)
    assert worker.seen == (1, 7)
    assert worker.world_size == 2


@pytest.mark.usefixtures("torchrun")
@pytest.mark.parametrize("inner_first", [True, False])
def test_worker_made_inside_another_reads_the_environment(inner_first: bool) -> None:
    class Outer(Worker):
        def __init__(self) -> None:
            if inner_first:
                self.inner = Worker()
            super().__init__()
            if not inner_first:
                self.inner = Worker()

    with building(WorkerSite(RankInfo(rank=0, world_size=2))):
        outer = Outer()
    assert place(outer) == (0, 2, 0, 1)
    assert place(outer.inner) == (3, 8, 1, 2)


def test_inner_worker_stands_where_its_worker_stands_if_the_environment_is_silent() -> None:
    site = WorkerSite(RankInfo(rank=1, world_size=2))
    with building(site):
        Worker()
        assert place(Worker())[:2] == (1, 2)
    token = SITE.set(site)
    assert place(Worker())[:2] == (1, 2)
    SITE.reset(token)
    with pytest.raises(MissingRankVariablesError):
        Worker()


@pytest.mark.usefixtures("torchrun")
def test_environment_of_many_ranks_in_one_process_is_not_asked() -> None:
    with building(WorkerSite(RankInfo(rank=1, world_size=2), sets_environment=False)):
        Worker()
        assert place(Worker())[:2] == (1, 2)


def test_environment_and_rank_info_say_the_same() -> None:
    info = RankInfo(2, 4, 0, 2, "10.0.0.1", "29500", "actor", "local")
    assert RankInfo.from_environment(info.environment()) == info
    assert info.environment() == {
        "RANK": "2",
        "WORLD_SIZE": "4",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "2",
        "RAY_LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WG_PREFIX": "actor",
        "WG_BACKEND": "local",
    }
