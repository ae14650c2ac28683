"""Failures of workers: told at once, with all that is known, and what the group may do afterwards."""

from __future__ import annotations

import gc
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
import torch
from ray.exceptions import (
    ActorDiedError,
    NodeDiedError,
    ObjectStoreFullError,
    OutOfMemoryError,
    RayError,
    WorkerCrashedError,
)
from verl_dispatch import (
    Broadcast,
    CallTimeout,
    Dispatch,
    Worker,
    WorkerGroupError,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_protocol import DataProto
from verl_ray import Death, RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, Watch
from verl_ray.wire.refs import hear

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("shared_ray"), pytest.mark.timeout(120)]

GONE: list[RayError] = [
    ActorDiedError(),
    NodeDiedError("lost"),
    OutOfMemoryError("killed for memory"),
    WorkerCrashedError(),
]


class Locked(Exception):
    """Cannot be pickled."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class NeverText(Exception):
    """Cannot be told in UTF-8."""

    def __str__(self) -> str:
        return "odd \ud800"


class TwoFacts(Exception):
    """Can be pickled, and not be made again."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} is not {two}")


class Frail(Worker):
    """Fails in the way asked for, on rank 1."""

    def __init__(self, given: int = 0) -> None:
        super().__init__()
        self.given, self.state = given, 0
        self._register_dispatch_collect_info("all", self.rank, True)
        self._register_dispatch_collect_info("copies", 0, self.rank == 0)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, how: str, others_s: float = 600.0) -> int:
        if self.rank == 1:
            if how == "raise":
                raise KeyError("boom")
            os._exit(3)
        time.sleep(others_s)  # stands for a rank stuck in a collective
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_all(self) -> None:
        raise ValueError(f"rank {self.rank} says no")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail_oddly(self, how: str) -> None:
        if how == "locked":
            raise Locked("cannot travel")
        if how == "two facts":
            raise TwoFacts(1, 2)
        if how == "no text":
            try:
                raise KeyError("behind \ud800")
            except KeyError as error:
                raise ValueError("half \ud800 a pair") from error
        if how == "never text":
            raise NeverText
        raise ValueError("start" + "x" * 3_000_000 + "end")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self) -> int:
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wait_at(self, gate: Path) -> int:
        while not gate.exists():
            time.sleep(0.01)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    def die_quietly(self) -> None:
        if self.rank == 1:
            os._exit(1)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def about(self) -> tuple[int, int, int, int, str]:
        return self.rank, self.given, self.state, os.getpid(), os.environ["MASTER_PORT"]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def set_state(self, state: int) -> None:
        self.state = state

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def add(self, given: Any) -> int:
        self.state += 1
        return self.state

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def batch(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def wait_batch(self, data: DataProto, gate: Path) -> DataProto:
        self.wait_at(gate)
        return data

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("copies"), blocking=False)
    def copied(self, data: DataProto) -> DataProto:
        if self.rank in data.meta_info["failing"]:
            raise KeyError("unread")
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def bad_batch(self, data: DataProto) -> DataProto:
        raise KeyError("no batch")

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def slow_batch(self, data: DataProto) -> DataProto:
        time.sleep(600)
        return data


@contextmanager
def frail(world: int, **options: Any) -> Iterator[RayWorkerGroup[Frail]]:
    """A group on a pool of its own."""
    template = RayClassWithInitArgs(Frail, 7)
    with (
        RayResourcePool([world], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, template, name_prefix="frail", **options) as group,
    ):
        yield group


@pytest.mark.parametrize("how", ["raise", "die"])
def test_the_first_failure_ends_the_call_while_others_hang(how: str) -> None:
    with frail(2) as group:
        begin = time.monotonic()
        with pytest.raises(WorkerGroupError) as caught:
            group.fail(how)
        assert time.monotonic() - begin < 20
        assert caught.value.failed_ranks == [1]
        assert caught.value.unanswered_ranks == [0]
        with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'fail' on rank 1"):
            group.ping()


def test_errors_say_where_and_the_group_lives_on_if_all_answered() -> None:
    with frail(2) as group:
        with pytest.raises(WorkerGroupError) as caught:
            group.fail("raise", 0.0)
        text = str(caught.value)
        assert all(piece in text for piece in ("frail", "fail", "rank 1", "KeyError", "pid", "node", "boom"))
        assert isinstance(caught.value.errors[1].cause, KeyError)
        assert caught.value.errors[1].pid == group.about()[1][3]
        with pytest.raises(WorkerGroupError) as all_failed:
            group.fail_all()
        assert all_failed.value.failed_ranks == [0, 1]
        with pytest.raises(WorkerGroupError, match="no batch"):
            group.bad_batch(rows(2)).get()
        # The answer of rank 1 is read by nobody; that it failed shows all the same.
        copies = group.copied(rows(2, failing=[1]))
        for future in (copies, *copies.chunk(2)):
            with pytest.raises(WorkerGroupError, match="unread") as unread:
                future.get()
            assert unread.value.failed_ranks == [1]
        # So it does for who never reads the future, but hands it on, and on.
        for hand_on in (group.batch.call, lambda given: group.batch(group.batch(given)).get()):
            with pytest.raises(WorkerGroupError, match=r"'copied'.*\n.*unread") as handed_on:
                hand_on(group.copied(rows(2, failing=[1])))
            assert handed_on.value.failed_ranks == [1]
        fine = group.copied(rows(2, failing=[]))
        assert len(group.batch(fine).get()) == 2
        assert len(fine.get()) == 2
        with pytest.raises(WorkerGroupError, match=r"'fail_all'.*\n.*rank 0 says no"):
            list(group.fail_all.stream())
        said = {
            "locked": "Locked: cannot travel",
            "two facts": "TwoFacts: 1 is not 2",
            "no text": r"ValueError: half \ud800 a pair",
            "never text": r"NeverText: odd \ud800",
            "huge": "xend",
        }
        for how, text in said.items():
            with pytest.raises(WorkerGroupError) as odd:
                group.fail_oddly(how)
            assert odd.value.failed_ranks == [0, 1]
            assert text in str(odd.value)
            assert len(str(odd.value)) < 30_000
        assert group.ping() == [0, 1]
        # What cannot be pickled for a later rank reaches no earlier one.
        for given in (threading.Lock(), [threading.Lock()], {"ref": ray.put(1), "lock": threading.Lock()}):
            with pytest.raises(TypeError, match=r"'given'.* cannot be pickled"):
                group.add(["fine", given])
        assert group.add([0, 1]) == [1, 1]


def test_a_call_that_only_some_ranks_got_breaks_the_group() -> None:
    with frail(2) as group:
        group.ping()
        [remotes] = group._executor._remotes.values()
        full = SimpleNamespace(remote=lambda *_: (_ for _ in ()).throw(ObjectStoreFullError))
        remotes[1] = full
        with pytest.raises(ObjectStoreFullError):
            group.ping()
        with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'ping' on rank 1"):
            group.ping()


def rows(count: int, **meta_info: Any) -> DataProto:
    return DataProto.from_dict(tensors={"i": torch.arange(count)}, meta_info=meta_info)


def test_a_deadline_names_the_silent_ranks_and_the_group_stays(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    with frail(2) as group:
        with pytest.raises(CallTimeout) as caught:
            group.wait_at.options(timeout_s=0.5)(gate)
        assert caught.value.unanswered_ranks == [0, 1]
        gate.touch()
        assert group.wait_at.options(timeout_s=60)(gate) == [0, 1]
        late = group.ping.submit()
        assert late.result(30) == [0, 1]


def test_a_group_refuses_once_its_pool_is_gone() -> None:
    with frail(2) as group:
        assert isinstance(group.resource_pool, RayResourcePool)
        group.resource_pool.shutdown()
        begin = time.monotonic()
        with pytest.raises(WorkerGroupError, match="shut down"):
            group.ping()
        assert time.monotonic() - begin < 2
    group.shutdown()
    with pytest.raises(WorkerGroupError, match="shut down"):
        group.restart()


def test_a_restart_brings_new_workers_in_the_same_places() -> None:
    restored: list[int] = []

    def restore(group: RayWorkerGroup[Frail]) -> None:
        restored.append(group.generation)
        group.set_state(5)
        if group.generation == 2:
            raise KeyError("no checkpoint")

    with frail(2, on_restart=restore) as group:
        old, old_port = group.about(), group.master_port
        assert group.mesh("all").dp_ranks == (0, 1)
        stale, stale_refs = group.batch(rows(2)), group.execute_all_async("ping")
        with pytest.raises(WorkerGroupError):
            group.fail("die", 0.0)
        group.restart()
        new = group.about()
        assert [about[:3] for about in new] == [(0, 7, 5), (1, 7, 5)]
        assert not {about[3] for about in old} & {about[3] for about in new}
        assert group.generation == 1
        assert restored == [1]
        assert {about[4] for about in new} == {group.master_port} != {old_port}
        assert group._dispatch_info == {}
        for refused in (
            lambda: group.batch(stale),
            stale.get,
            stale.row_count,
            lambda: group.set_state(stale_refs[0]),
            lambda: group.execute_rank_zero("set_state", state=stale_refs[1]),
            lambda: group.execute_rank_zero("set_state", {"within": [stale_refs[1]]}),
            lambda: group.batch(rows(2, within=stale_refs[0])),
        ):
            with pytest.raises(WorkerGroupError, match="generation 0"):
                refused()
        with pytest.raises(KeyError, match="no checkpoint"):
            group.restart()
        with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'on_restart'"):
            group.about()
        group.restart()
        assert [about[2] for about in group.about()] == [5, 5]


def test_a_watch_tells_of_a_death_once_and_calls_are_refused() -> None:
    seen: list[Death] = []
    with frail(2) as group:
        watch = group.watch(every_s=0.2, on_death=seen.append)
        group.die_quietly()
        wait_for(lambda: bool(seen))
        time.sleep(0.6)
        assert [(death.ranks, death.generation) for death in seen] == [([1], 0)]
        assert "exit" in seen[0].cause.lower()
        with pytest.raises(WorkerGroupError, match="broken"):
            group.ping()
    assert len(seen) == 1
    assert not watch.thread.is_alive()
    assert watch.thread.daemon


def test_a_shutdown_is_no_death_and_a_restart_is_watched_on() -> None:
    seen: list[Death] = []
    with frail(2) as group:
        watch = group.watch(seen.append, 0.1)
        time.sleep(0.3)
        group.restart()
        time.sleep(0.3)
        assert seen == []
        group.die_quietly()
        wait_for(lambda: bool(seen))
        assert seen[0].generation == 1
    assert not watch.thread.is_alive()
    assert not [thread for thread in threading.enumerate() if "verl-ray-watch" in thread.name]


def test_a_rank_killed_for_memory_breaks_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    def hear_of_a_kill(ref: Any, take: Callable[[Any, BaseException | None], object]) -> None:
        hear(ref, lambda rank, error: take(None, GONE[2]) if rank == 1 else take(rank, error))

    with frail(2) as group:
        monkeypatch.setattr("verl_ray.calls.call.soon_here", lambda refs, left_s: {})
        monkeypatch.setattr("verl_ray.calls.call.hear", hear_of_a_kill)
        with pytest.raises(WorkerGroupError, match="killed for memory") as caught:
            group.ping()
        assert caught.value.failed_ranks == [1]
        with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'ping' on rank 1"):
            group.ping()


def test_a_failure_names_the_group_that_made_an_argument(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate = tmp_path / "gate"
    template = RayClassWithInitArgs(Frail, 7)
    with (
        RayResourcePool([2], use_gpu=False, cpus_per_worker=0.1) as pool,
        RayWorkerGroup(pool, template, name_prefix="maker", wait=False) as maker,
        RayWorkerGroup(pool, template, name_prefix="taker") as taker,
    ):
        pids = [about[3] for about in maker.about()]
        # Now all have torch: a rank that comes later for its import would count as silent.
        assert len(taker.batch(maker.batch(rows(2))).get()) == 2
        # Who hangs is named, and so is who raised, whether the argument is a reference or a batch to come.
        made, made_batch = (
            maker.execute_all_async("wait_at", gate),
            maker.wait_batch(rows(2), Broadcast(gate)),
        )
        late: list[tuple[str, Callable[[], object]]] = [
            ("(an earlier call)", lambda: taker.add.options(timeout_s=0.2)(made)),
            ("wait_batch", lambda: taker.batch.options(timeout_s=0.2).call(made_batch)),
        ]
        for method, use in late:
            with pytest.raises(
                CallTimeout, match=rf"'maker', method '{re.escape(method)}': no answer"
            ) as hung:
                use()
            assert hung.value.unanswered_ranks == [0, 1]
        gate.touch()
        failing: list[Callable[[], object]] = [
            lambda: taker.add(maker.execute_all_async("fail_all")),
            lambda: taker.batch(maker.bad_batch(rows(2))).get(),
            lambda: taker.batch(taker.batch(maker.bad_batch(rows(2)))).get(),
            lambda: taker.batch.options(blocking=True)(maker.bad_batch(rows(2))),
            lambda: maker.bad_batch.options(remote=True)(rows(2)).get(),
            lambda: maker.bad_batch.options(remote=True, blocking=True)(rows(2)),
        ]
        for use in failing:
            with pytest.raises(WorkerGroupError, match=r"'maker', method '(fail_all|bad_batch)'") as raised:
                use()
            told = raised.value
            assert told.failed_ranks
            assert [told.errors[rank].pid for rank in told.failed_ranks] == [
                pids[r] for r in told.failed_ranks
            ]
        assert taker.ping() == maker.ping() == [0, 1]
        # Of what has been told, Ray prints nothing.
        gc.collect()
        assert "Unhandled error" not in caplog.text
        lost, lost_batch = maker.execute_all_async("fail", "die", 0.0), maker.batch(rows(2))
        dying: list[Callable[[], object]] = [lambda: taker.add(lost), lambda: taker.batch.call(lost_batch)]
        for use in dying:
            with pytest.raises(WorkerGroupError, match=r"'maker', .* failed on rank 1") as died:
                use()
            assert died.value.errors[1].pid == pids[1]
        assert taker.ping() == [0, 1]
        with pytest.raises(WorkerGroupError, match=r"'maker'.* broken by an earlier failure"):
            maker.ping()


@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_a_watch_tells_of_every_way_to_be_gone(error: RayError) -> None:
    seen: list[Death] = []
    gone = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: ray.put(error)))
    here = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: ray.put(True)))
    watch = Watch(lambda: (0, {0: here, 1: gone}), seen.append, 0.05)
    wait_for(lambda: bool(seen))
    watch.stop()
    assert [(death.ranks, death.cause) for death in seen] == [([1], str(error))]


@pytest.mark.parametrize("end", ["restart", "shutdown"])
def test_who_waits_hears_at_once_who_ended_the_workers(end: str) -> None:
    with frail(2) as group, ThreadPoolExecutor(3) as threads:
        future = group.slow_batch(rows(2))
        waiting = [threads.submit(wait) for wait in (future.get, future.row_count, group.ping)]
        time.sleep(0.5)
        getattr(group, end)()
        if end == "restart":
            # Nobody waits for the new workers too, and the failure is not booked on them.
            assert all(future.done() for future in waiting)
            assert group.ping() == [0, 1]
        for each in waiting:
            with pytest.raises(WorkerGroupError, match=rf"{end}\(\).* ended the workers"):
                each.result(10)


def wait_for(condition: Callable[[], bool], timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
