"""What is special about the in-process group: turns and threads, environment, interruption, life."""

import asyncio
import contextlib
import gc
import itertools
import linecache
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import pytest
import torch
from verl_dispatch.errors import CallTimeout, CollectiveError, WorkerGroupError
from verl_dispatch.groups.pool import ClassWithInitArgs
from verl_dispatch.local.group import LocalWorkerGroup
from verl_dispatch.methods.decorator import register
from verl_dispatch.methods.functions import make_nd_compute_dataproto_dispatch_fn
from verl_dispatch.modes import Dispatch
from verl_dispatch.planning.mesh import Mesh
from verl_dispatch.planning.options import CallOptions
from verl_dispatch.workers.worker import Worker
from verl_protocol import DataProto

pytestmark = pytest.mark.timeout(60)
VARIABLES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("RAY_LOCAL_WORLD_SIZE", "WG_PREFIX", "WG_BACKEND"),
)


class Probe(Worker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.args, self.kwargs = args, kwargs
        self.built_with = variables()
        self.log: list[Any] = []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen(self) -> dict[str, str | None]:
        return variables()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seen_at_start(self) -> dict[str, str | None]:
        return self.built_with

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def given(self) -> Any:
        return self.args, self.kwargs

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def run(self, function: Any) -> Any:
        return function(self)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def run_async(self, value: int) -> int:
        await asyncio.sleep(0)
        return value + self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def note(self, value: Any) -> list[Any]:
        self.log.append(value)
        return list(self.log)


def variables() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in VARIABLES}


def threads_of(group_name: str) -> int:
    return sum(thread.name.startswith(f"{group_name}-rank") for thread in threading.enumerate())


@pytest.fixture(params=[False, True], ids=["turns", "threads"])
def concurrent(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def group(concurrent: bool) -> Iterator[Any]:
    with LocalWorkerGroup(Probe, 3, concurrent=concurrent) as made:
        yield made


@pytest.fixture
def turns() -> Iterator[Any]:
    with LocalWorkerGroup(Probe, 3, name_prefix="actor") as made:
        yield made


@pytest.fixture
def threads() -> Iterator[Any]:
    with LocalWorkerGroup(Probe, 3, concurrent=True) as made:
        yield made


# --- environment ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [None, "kept"])
def test_each_rank_sees_torchruns_variables_while_it_runs(
    monkeypatch: pytest.MonkeyPatch, before: Any
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False) if before is None else monkeypatch.setenv(name, before)
    outside = variables()
    with LocalWorkerGroup(Probe, 2, name_prefix="actor") as group:
        for found in (group.seen(), group.seen_at_start()):
            assert [(each["RANK"], each["LOCAL_RANK"]) for each in found] == [("0", "0"), ("1", "1")]
            for each in found:
                assert each["WORLD_SIZE"] == each["LOCAL_WORLD_SIZE"] == each["RAY_LOCAL_WORLD_SIZE"] == "2"
                assert (each["WG_PREFIX"], each["WG_BACKEND"]) == ("actor", "local")
                assert (each["MASTER_ADDR"], each["MASTER_PORT"]) == (group.master_address, group.master_port)
        assert variables() == outside


def test_the_table_of_the_process_is_left_alone(turns: Any) -> None:
    # To add a name there moves the table, under the eyes of threads whose C code reads it: they crash.
    outside = shell_variables()
    assert turns.run(lambda _: shell_variables()) == [outside] * 3
    assert turns.run(lambda _: shell_variables(os.environ).split()[:2]) == [[str(n), "3"] for n in range(3)]


def test_variables_are_put_back_when_a_rank_fails(turns: Any) -> None:
    outside = variables()
    with pytest.raises(WorkerGroupError):
        turns.run(lambda worker: worker.nothing_of_the_kind)
    assert variables() == outside


def test_a_group_used_inside_a_worker_does_not_disturb_it(turns: Any) -> None:
    def inner(worker: Probe) -> Any:
        with LocalWorkerGroup(Probe, 2) as group:
            found = [each["RANK"] for each in group.seen()]
        return found, os.environ["RANK"], os.environ["WORLD_SIZE"]

    assert turns.run(inner) == [(["0", "1"], str(rank), "3") for rank in range(3)]


@pytest.mark.parametrize("inner", [False, True], ids=["inner turns", "inner threads"])
def test_ranks_that_drive_groups_know_who_is_who(group: Any, inner: bool) -> None:
    outside = variables()
    with LocalWorkerGroup(Probe, 1) as shared:

        def drive(worker: Probe) -> Any:
            with LocalWorkerGroup(Probe, 2, concurrent=inner) as own:
                found = [own.run(lambda each: (each.rank, each.world_size)) for _ in range(3)]
            shared.run_async(worker.rank)
            shared.note(worker.rank)
            return found, worker.rank

        assert group.run(drive) == [([[(0, 2), (1, 2)]] * 3, rank) for rank in range(3)]
        assert [sorted(log[:-1]) for log in shared.note("last")] == [[0, 1, 2]]
    assert variables() == outside


def test_variables_are_put_back_after_two_threads_used_groups(turns: Any) -> None:
    outside = variables()
    with LocalWorkerGroup(Probe, 2) as other:
        calls = [lambda: turns.run(pause), lambda: other.run(pause)]
        together = [threading.Thread(target=call) for call in calls]
        for thread in together:
            thread.start()
        for thread in together:
            thread.join()
    assert variables() == outside


def test_what_comes_between_any_two_lines_leaves_the_environment_as_it_was(turns: Any) -> None:
    outside = variables()
    with LocalWorkerGroup(Probe, 2) as other:

        def stop() -> None:
            raise KeyboardInterrupt

        for between in (stop, other.seen):
            for number in itertools.count(1):
                with contextlib.suppress(KeyboardInterrupt):
                    if not happens_before_line(number, between, turns.seen):
                        break
                assert variables() == outside
                if between is stop:
                    turns.restart()
            assert number > 30


def happens_before_line(number: int, between: Callable[[], object], call: Callable[[], object]) -> bool:
    """Whether so many lines that write the variables are run by the call; `between` comes before the last."""
    left, before = number, sys.gettrace()

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if frame.f_code.co_name not in ("environment_of", "_leave"):
            return None
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
        # Where a lock is taken or let go, nothing comes in between but a trace.
        if event == "line" and not line.lstrip().startswith("with "):
            left -= 1
            if left == 0:
                sys.settrace(before)
                between()
        return trace

    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return left <= 0


ENDS: dict[str, type[BaseException]] = {
    "with an error": WorkerGroupError,
    "with an interruption": KeyboardInterrupt,
}


@pytest.mark.parametrize("before", [None, "kept"])
@pytest.mark.parametrize("ends", ["well", *ENDS])
def test_what_a_worker_does_to_torchruns_variables_ends_with_its_call(
    turns: Any, monkeypatch: pytest.MonkeyPatch, before: Any, ends: str
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False) if before is None else monkeypatch.setenv(name, before)
    monkeypatch.setenv("OF_THE_DRIVER", "1")
    outside, shown = variables(), shell_variables()

    def meddle(worker: Probe) -> None:
        del os.environ["RANK"], os.environ["MASTER_PORT"]
        os.environ["WORLD_SIZE"], os.environ["OF_THE_DRIVER"] = "7", "2"
        if ends == "with an error":
            raise ValueError
        if ends == "with an interruption" and worker.rank == 1:
            raise KeyboardInterrupt

    with pytest.raises(ENDS[ends]) if ends in ENDS else contextlib.nullcontext():
        turns.run(meddle)
    assert (variables(), shell_variables()) == (outside, shown)
    assert os.environ["OF_THE_DRIVER"] == "2"


def shell_variables(env: Mapping[str, str] | None = None) -> str:
    """The variables as a child process gets them, with the table of this process unless told otherwise."""
    command = "echo " + " ".join(f"${name}" for name in VARIABLES)
    return subprocess.check_output(["/bin/sh", "-c", command], text=True, env=env)


def test_a_call_leaves_nothing_for_the_garbage_collector(turns: Any) -> None:
    def garbage_of_50_calls() -> int:
        gc.collect()
        for each in range(50):
            turns.note(each)
        return gc.collect()

    turns.note(0)
    gc.disable()
    try:
        # What a call leaves behind would be 50 times something, each time; threads that end leave some once.
        assert min(garbage_of_50_calls() for _ in range(3)) < 50
    finally:
        gc.enable()


def pause(_: Any) -> None:
    time.sleep(0.02)


def test_ranks_in_threads_leave_the_environment_alone(threads: Any) -> None:
    assert threads.seen() == [variables()] * 3
    assert threads.run(lambda worker: (worker.rank, worker.local_rank)) == [(0, 0), (1, 1), (2, 2)]


def test_worker_made_inside_a_worker_knows_the_rank(group: Any) -> None:
    found = group.run(lambda _: (Worker().rank, Worker().world_size))
    assert found == [(0, 3), (1, 3), (2, 3)]


# --- making a group ---------------------------------------------------------------------------------------


def test_arguments_reach_the_constructor_as_copies(concurrent: bool) -> None:
    weights = torch.zeros(2)
    with LocalWorkerGroup(Probe, 2, weights, concurrent=concurrent, lr=[0.1]) as group:
        group.run(lambda worker: worker.args[0].add_(worker.rank + 1))
        weights.add_(100)
        assert [float(args[0][0]) for args, _ in group.given()] == [1.0, 2.0]
        assert [kwargs for _, kwargs in group.given()] == [{"lr": [0.1]}] * 2


def test_class_with_init_args_is_a_class_and_its_arguments() -> None:
    with LocalWorkerGroup(ClassWithInitArgs(Probe, 1, concurrent="mine"), 1) as group:
        assert group.given() == [((1,), {"concurrent": "mine"})]


@pytest.mark.parametrize("world_size", [0, -1, 1.5, "2", True])
def test_world_size_is_checked(world_size: Any) -> None:
    with pytest.raises(ValueError, match="world_size"):
        LocalWorkerGroup(Probe, world_size)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"name_prefix": 5}, "name_prefix must be a str, got 5"),
        ({"name_prefix": None}, "name_prefix must be a str, got None"),
        ({"name_prefix": b"actor"}, "name_prefix must be a str, got b'actor'"),
        ({"name_prefix": "a\0b"}, "name_prefix must not have a null character"),
        ({"concurrent": "yes"}, "concurrent must be True or False, got 'yes'"),
    ],
)
def test_options_are_checked(options: Any, problem: str) -> None:
    with pytest.raises((TypeError, ValueError), match=problem):
        LocalWorkerGroup(Probe, 1, **options)


@pytest.mark.parametrize("cls", [Probe(), 3, "Probe"] if "RANK" in os.environ else [3, "Probe", None])
def test_class_is_checked(cls: Any) -> None:
    with pytest.raises(TypeError, match="cls must be a class"):
        LocalWorkerGroup(cls, 1)


def test_constructor_that_fails_leaves_no_threads() -> None:
    class Failing(Worker):
        def __init__(self) -> None:
            super().__init__()
            raise ValueError(f"no model on {self.rank}")

    with pytest.raises(WorkerGroupError, match="no model on 1") as caught:
        LocalWorkerGroup(Failing, 2, concurrent=True, name_prefix="failing")
    assert caught.value.method == "__init__"
    assert threads_of("failing") == 0


def test_ranks_may_meet_in_their_constructors() -> None:
    class Meeting(Worker):
        def __init__(self) -> None:
            super().__init__()
            self.total = int(self.process_group().all_reduce(torch.tensor(self.rank)))

        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def get(self) -> int:
            return self.total

    with LocalWorkerGroup(Meeting, 3, concurrent=True) as group:
        assert group.get() == [3, 3, 3]


# --- running ----------------------------------------------------------------------------------------------


def test_a_breakpoint_in_a_worker_stops_the_calling_thread(
    turns: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped: list[tuple[int, int]] = []

    def hook() -> None:
        worker = sys._getframe(1).f_locals["worker"]
        stopped.append((worker.rank, threading.get_ident()))

    monkeypatch.setattr(sys, "breakpointhook", hook)

    def method(worker: Probe) -> None:
        breakpoint()

    turns.run(method)
    assert stopped == [(rank, threading.get_ident()) for rank in range(3)]


def test_ranks_in_threads_run_at_the_same_time(threads: Any) -> None:
    barrier = threading.Barrier(3)
    assert threads.run(lambda worker: barrier.wait(timeout=10) >= 0) == [True] * 3


def test_calls_of_a_rank_run_in_order(group: Any) -> None:
    for value in range(5):
        group.note.options(blocking=False)(value)
    assert group.note(5) == [[0, 1, 2, 3, 4, 5]] * 3


def test_non_blocking_call_returns_before_the_ranks_are_done(threads: Any) -> None:
    gate = threading.Event()
    futures = threads.run.options(blocking=False)(lambda _: gate.wait(10))
    assert not any(future.done() for future in futures)
    gate.set()
    assert [future.result(timeout=10) for future in futures] == [True] * 3


def test_futures_cannot_be_cancelled_once_sent(group: Any) -> None:
    [future, *_] = group.run.options(blocking=False)(lambda worker: worker.rank)
    assert not future.cancel()
    assert future.result() == 0


def test_async_methods_run_under_an_event_loop_and_without_one(group: Any) -> None:
    async def program() -> tuple[Any, Any, Any]:
        awaited = await group.run_async.submit(20)
        [future, *_] = group.run_async.options(blocking=False)(30)
        return group.run_async(10), awaited, await future

    assert group.run_async(0) == [0, 1, 2]
    assert asyncio.run(program()) == ([10, 11, 12], [20, 21, 22], 30)
    assert group.run_async(0) == [0, 1, 2]


def test_answers_stream_as_they_come(threads: Any) -> None:
    gates = [threading.Event() for _ in range(3)]
    stream = threads.run.stream(lambda worker: gates[worker.rank].wait(10) and worker.rank)
    for rank in (2, 0, 1):
        gates[rank].set()
        assert next(stream) == (rank, rank)
    assert list(stream) == []


def test_stream_is_bounded_and_fails_fast(threads: Any) -> None:
    gate = threading.Event()

    def method(worker: Probe) -> int:
        if worker.rank == 1:
            raise KeyError("boom")
        gate.wait(10)
        return worker.rank

    with pytest.raises(CallTimeout) as caught:
        list(threads.run.options(timeout_s=0.1).stream(lambda _: gate.wait(10)))
    assert caught.value.unanswered_ranks == [0, 1, 2]
    gate.set()
    assert threads.run(lambda worker: worker.rank) == [0, 1, 2]
    gate.clear()
    stream = threads.run.stream(method)
    with pytest.raises(WorkerGroupError, match="boom") as failed:
        list(stream)
    assert failed.value.unanswered_ranks == [0, 2]
    gate.set()


def test_a_failure_after_the_end_of_a_call_that_ran_out_of_time_is_not_told_again(
    threads: Any, caplog: pytest.LogCaptureFixture
) -> None:
    gate = threading.Event()

    def fail(worker: Probe) -> None:
        gate.wait(10)
        raise KeyError("too late")

    with pytest.raises(CallTimeout):
        threads.run.options(timeout_s=0.1)(fail)
    gate.set()
    assert threads.run(lambda worker: worker.rank) == [0, 1, 2]
    gc.collect()
    assert "nobody read it" not in caplog.text


def test_waiting_is_bounded_by_the_wait_and_not_by_the_work(group: Any) -> None:
    started = group.run.submit(lambda _: time.sleep(0.2))
    assert started.result(timeout=30) == [None] * 3
    started = group.run.submit(pause)
    deadline = time.monotonic() + 10
    while not started.done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert started.result(timeout=0.001) == [None] * 3


@pytest.mark.parametrize("slow", [0, 2])
def test_traced_calls_tell_when_each_rank_answered(group: Any, slow: int) -> None:
    with group.trace() as trace:
        group.run(lambda worker: time.sleep(0.5 * (worker.rank == slow)))
    [record] = trace.calls
    assert record.method == "run"
    assert (record.slowest.rank, record.slowest.name) == (slow, "run")
    assert record.slowest.seconds >= 0.5


def test_seeds_of_a_program_are_not_touched(group: Any) -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    group.note(torch.ones(3))
    assert torch.equal(torch.rand(3), expected)


# --- failure and life -------------------------------------------------------------------------------------


def test_traceback_begins_in_the_users_code(turns: Any) -> None:
    with pytest.raises(WorkerGroupError) as caught:
        turns.run(lambda worker: worker.nothing)
    text = caught.value.errors[0].traceback
    assert "local_rank.py" not in text
    assert "test_local_group.py" in text
    assert "actor" in str(caught.value)
    assert isinstance(caught.value.__cause__, AttributeError)


def test_a_rank_that_fails_wakes_those_that_wait_for_it(threads: Any) -> None:
    def method(worker: Probe) -> None:
        if worker.rank == 1:
            raise KeyError("boom")
        worker.process_group().barrier()

    with pytest.raises(WorkerGroupError, match="boom") as caught:
        threads.run(method)
    assert caught.value.failed_ranks == [0, 1, 2]
    assert isinstance(caught.value.errors[0].cause, CollectiveError)
    assert threads.run(lambda worker: int(worker.process_group().all_reduce(torch.tensor(1)))) == [3, 3, 3]


def test_a_call_on_one_rank_cannot_meet_the_others(threads: Any) -> None:
    with pytest.raises(WorkerGroupError, match="rank 1 was not called"):
        threads.execute_rank_zero_sync("run", lambda worker: worker.process_group().barrier())


@pytest.mark.parametrize("blocking", [True, False])
def test_a_rank_that_ends_itself_breaks_the_group(group: Any, blocking: bool) -> None:
    leave = group.run.options(blocking=blocking)
    with pytest.raises(WorkerGroupError, match="SystemExit"):
        (lambda answer: answer if blocking else answer[1].result(timeout=10))(leave(end_itself_on_one))
    with pytest.raises(WorkerGroupError, match="broken by an earlier failure in 'run' on rank 1"):
        group.seen()


def end_itself_on_one(worker: Probe) -> None:
    if worker.rank == 1:
        raise SystemExit(3)


def test_interruption_leaves_a_group_that_says_so(turns: Any) -> None:
    def method(worker: Probe) -> None:
        if worker.rank == 1:
            raise KeyboardInterrupt

    outside = variables()
    with pytest.raises(KeyboardInterrupt):
        turns.run(method)
    assert variables() == outside
    with pytest.raises(
        WorkerGroupError, match=r"broken by an interruption of 'run' .* on ranks 1, 2; restart\(\)"
    ):
        turns.seen()
    turns.restart()
    assert len(turns.seen()) == 3


def test_restart_drops_what_was_before(group: Any) -> None:
    [future, *_] = group.note.options(blocking=False)(1)
    assert future.result() == [1]
    started = group.note.submit(2)
    port = group.master_port
    group.restart()
    assert group.generation == 1
    assert group.master_port != port
    assert group.note(3) == [[3]] * 3
    for read in (future.result, started.result):
        with pytest.raises(WorkerGroupError, match=r"generation 0 .*restarted"):
            read()


def test_restarts_cut_off_calls_of_other_threads_and_nothing_else_happens_to_them(group: Any) -> None:
    restarted, last = threading.Event(), 20

    def call(method: Any) -> None:
        while True:
            is_over = restarted.is_set()
            try:
                assert [answer % 10 for answer in method(10)] == [0, 1, 2]
            except WorkerGroupError:
                # Only a call that was sent before the last restart was over may be cut off.
                assert not is_over
            if is_over:
                return

    with ThreadPoolExecutor() as threads:
        methods = [group.run_async, lambda value: group.run_async.submit(value).result()]
        calls = [threads.submit(call, method) for method in methods]
        for _ in range(last):
            group.restart()
        restarted.set()
        for each in calls:
            each.result(30)
    assert group.generation == last


def test_shutdown_wakes_everybody_and_ends_the_threads() -> None:
    group = LocalWorkerGroup(Probe, 2, concurrent=True, name_prefix="ended")
    futures = group.run.options(blocking=False)(
        lambda worker: worker.rank or worker.process_group().barrier()
    )
    group.shutdown()
    group.shutdown()
    with pytest.raises(WorkerGroupError):
        futures[0].result(timeout=10)
    assert threads_of("ended") == 0
    with pytest.raises(WorkerGroupError, match="shut down"):
        group.restart()


def test_shutdown_does_not_wait_for_a_rank_that_never_comes_back() -> None:
    gate = threading.Event()
    group = LocalWorkerGroup(Probe, 2, concurrent=True)
    futures = group.run.options(blocking=False)(lambda worker: worker.rank or gate.wait(30))
    assert futures[1].result(timeout=10) == 1
    started = time.monotonic()
    group.shutdown()
    assert time.monotonic() - started < 5
    with pytest.raises(WorkerGroupError, match="shut down"):
        futures[0].result(timeout=10)
    gate.set()


@pytest.mark.parametrize("error", [asyncio.CancelledError, GeneratorExit, StopIteration])
def test_whatever_a_method_ends_with_is_its_failure(group: Any, error: type[BaseException]) -> None:
    def end(_: Probe) -> None:
        raise error

    with pytest.raises(WorkerGroupError) as caught:
        group.run(end)
    assert {type(failure.cause) for failure in caught.value.errors.values()} == {error}
    assert group.note(1) == [[1]] * 3


def test_what_cannot_be_copied_is_named(group: Any) -> None:
    with pytest.raises(WorkerGroupError, match=r"argument 0 .* of method 'note' cannot be pickled.*lock"):
        group.note(threading.Lock())
    with pytest.raises(WorkerGroupError, match=r"the answer of method 'run' cannot be pickled.*lock"):
        group.run(lambda _: threading.Lock())


@pytest.mark.parametrize("end", ["shutdown", "restart"])
def test_a_call_of_another_thread_learns_that_the_group_has_ended(turns: Any, end: str) -> None:
    def end_it(worker: Probe) -> None:
        if worker.rank == 0:
            thread = threading.Thread(target=getattr(turns, end))
            thread.start()
            thread.join()

    with pytest.raises(WorkerGroupError, match=r"shut down or restarted while|been restarted since"):
        turns.run(end_it)


@pytest.mark.parametrize("end", ["shutdown", "restart"])
def test_a_group_may_end_while_an_async_method_runs(end: str) -> None:
    ended: list[int] = []

    class Closing(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        async def run(self, function: Any) -> None:
            thread = threading.Thread(target=function)
            thread.start()
            thread.join()

        async def close(self) -> None:
            ended.append(self.rank)

    with LocalWorkerGroup(Closing, 1) as group:
        with contextlib.suppress(WorkerGroupError):
            group.run(lambda: getattr(group, end)())
        assert ended == [0]
        if end == "restart":
            assert group.run(lambda: None) == [None]
    gc.collect()  # an event loop that was left open is a warning


def test_a_call_sent_into_the_shutdown_is_answered() -> None:
    group: Any = LocalWorkerGroup(Probe, 2, concurrent=True)
    # As if the shutdown came between the look at the group and the sending.
    plan, options = group.seen.plan(), CallOptions()
    group.shutdown()
    call = group._send(plan, options)
    with pytest.raises(WorkerGroupError, match="shut down"):
        call.wait(10)


def test_answers_of_calls_that_are_done_are_not_kept(threads: Any) -> None:
    call = threads._send(threads.note.plan(1), CallOptions())
    kept = weakref.ref(call)
    call.wait(10)
    del call
    threads.note(2)
    gc.collect()
    assert kept() is None


def test_a_forgotten_group_ends_its_threads() -> None:
    group = LocalWorkerGroup(Probe, 2, concurrent=True, name_prefix="forgotten")
    group.note(1)
    assert threads_of("forgotten") == 2
    del group
    gc.collect()
    deadline = time.monotonic() + 10
    while threads_of("forgotten") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads_of("forgotten") == 0


def test_workers_are_there_for_a_look_inside(group: Any) -> None:
    assert [worker.rank for worker in group.workers] == [0, 1, 2]
    assert group.worker_names[1].endswith(":1")
    assert set(group.startup_report()) >= {"placement_s", "actors_s", "init_s", "slowest_rank"}
    assert group.start_worker_aliveness_check() is None


class Relay(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def begin(self, batch: Any) -> Any:
        raise KeyError("no such row")

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def go_on(self, batch: Any) -> Any:
        return batch

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("replicas"), blocking=False)
    def refused_by_rank_1(self, batch: Any) -> Any:
        if self.rank == 1:
            time.sleep(0.1)
            raise KeyError("unread")
        return batch

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def ask_others(self, batch: Any) -> Any:
        with LocalWorkerGroup(Relay, 1) as group:
            return group.begin.call(batch)


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_call_that_got_the_future_of_a_failed_one_fails_like_that_one(concurrent: bool) -> None:
    batch = DataProto.from_dict(tensors={"x": torch.arange(4)})
    with LocalWorkerGroup(Relay, 2, concurrent=concurrent) as group:
        for given in (group.begin(batch), group.go_on(group.begin(batch)), group.begin(batch).chunk(1)[0]):
            with pytest.raises(WorkerGroupError) as caught:
                group.go_on.call(given)
            assert caught.value.method == "begin"
            assert isinstance(caught.value.errors[0].cause, KeyError)
            assert str(caught.value).count("Traceback") == 1
            assert "an argument of method 'go_on'" in caught.value.__notes__[0]
        with pytest.raises(WorkerGroupError) as caught:
            group.ask_others(batch)
        assert caught.value.method == "ask_others"


@pytest.mark.parametrize("concurrent", [False, True])
def test_a_future_fails_also_where_a_rank_did_whose_answer_is_not_read(concurrent: bool) -> None:
    batch = DataProto.from_dict(tensors={"x": torch.arange(4)})
    with LocalWorkerGroup(Relay, 2, concurrent=concurrent) as group:
        group.add_mesh(Mesh.from_sizes("replicas", {"dp": 1, "tp": 2}))
        later = group.refused_by_rank_1(batch)
        if concurrent:
            with pytest.raises(CallTimeout) as late:
                later.get(0.01)
            assert late.value.unanswered_ranks == [1]
        reads: list[Callable[[], Any]] = [future.get for future in (later, *later.chunk(2))]
        reads += [lambda: group.go_on.call(group.refused_by_rank_1(batch))]
        reads += [lambda: group.go_on(group.go_on(group.refused_by_rank_1(batch))).get()]
        for read in reads:
            with pytest.raises(WorkerGroupError, match=r"'refused_by_rank_1'.*\n.*unread") as caught:
                read()
            assert caught.value.failed_ranks == [1]
