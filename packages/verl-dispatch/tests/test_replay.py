"""A call that was recorded on one rank runs again in another process, under pdb."""

from __future__ import annotations

import json
import pickle
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from verl_dispatch import ClassWithInitArgs, Dispatch, LocalWorkerGroup, Worker, WorkerGroupError, register
from verl_dispatch.errors import NotPicklableError, NotTheOwnerError
from verl_dispatch.local.replay import RecordedCall, main
from verl_dispatch.workers.roles import create_colocated_worker_raw_cls
from verl_protocol import DataProto, DataProtoFuture


class Scorer(Worker):
    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.scale = scale

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def score(self, batch: DataProto, *, limit: int = 3) -> DataProto:
        x = batch.tensor("x")
        if x.shape[0] > limit or self.rank == 1:
            batch.batch["x"] = x * 0
            raise ValueError(f"rank {self.rank} got {tuple(x.shape)}")
        return DataProto.from_dict({"y": x * self.scale})

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def draw(self) -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(1))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def copy_later(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, materialize_futures=False)
    def sum_of(self, later: DataProtoFuture[DataProto]) -> int:
        return int(later.get().tensor("x").sum())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, materialize_futures=False)
    async def sum_of_async(self, later: DataProtoFuture[DataProto]) -> int:
        return int((await later).tensor("x").sum())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, materialize_futures=False)
    def failure_of(self, later: DataProtoFuture[DataProto]) -> list[int]:
        try:
            later.get()
        except WorkerGroupError as error:
            return error.failed_ranks
        return []

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def keep(self, value: Any) -> int:
        raise KeyError("kept")


@pytest.fixture(params=[False, True], ids=["turns", "threads"])
def group(request: pytest.FixtureRequest) -> Iterator[Any]:
    with LocalWorkerGroup(Scorer, 2, scale=3.0, concurrent=request.param) as made:
        yield made


def files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.exists() else []


def failed_call(group: Any, folder: Path) -> tuple[Path, WorkerGroupError]:
    with group.record(folder), pytest.raises(WorkerGroupError) as caught:
        group.score(DataProto.from_dict({"x": torch.ones(4, 5)}))
    [path] = files(folder)
    return path, caught.value


def test_a_failure_says_where_its_call_lies(group: Any, tmp_path: Path) -> None:
    path, error = failed_call(group, tmp_path / "calls")
    assert f": {sys.executable} -m verl_dispatch replay {path} --unpickle" in str(error)
    assert path.name.startswith("score-rank1-")
    facts = RecordedCall.read(path).facts
    assert (facts["call"], facts["rank"], facts["world_size"]) == ("Scorer.score", 1, 2)
    assert facts["error"] == "ValueError: rank 1 got (2, 5)"


def test_a_call_runs_again_as_it_was_before_its_method_changed_anything(group: Any, tmp_path: Path) -> None:
    path, _ = failed_call(group, tmp_path)
    with closing(RecordedCall.read(path)) as call:
        with pytest.raises(ValueError, match=r"rank 1 got \(2, 5\)"):
            call.run()
        (batch,), named = call.opened[2][:2]
        assert (batch.tensor("x").sum(), named, call.rank.worker.scale) == (10, {}, 3.0)


def test_every_call_is_kept_on_request_with_its_random_state(group: Any, tmp_path: Path) -> None:
    with group.record(tmp_path, on="all"):
        drawn = group.draw()
    group.draw()
    assert sorted(RecordedCall.read(path).facts["rank"] for path in files(tmp_path)) == [0, 1]
    for path in files(tmp_path):
        with closing(RecordedCall.read(path)) as call:
            assert call.run() in drawn


def doubled(function: Callable[..., int]) -> Callable[..., int]:
    return lambda *args: 2 * function(*args)


class Renamed(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @doubled
    def twice(self, value: int) -> int:
        return value

    also_twice = twice


def test_a_method_is_recorded_by_its_own_name_whatever_its_function_is_called(tmp_path: Path) -> None:
    with LocalWorkerGroup(Renamed, 1) as group, group.record(tmp_path, on="all"):
        assert [group.twice(2), group.also_twice(3)] == [[4], [6]]
    for path, (name, value) in zip(files(tmp_path), [("also_twice", 6), ("twice", 4)], strict=True):
        assert path.name.startswith(f"{name}-rank0-")
        with closing(RecordedCall.read(path)) as call:
            assert (call.facts["call"], call.run()) == (f"Renamed.{name}", value)


def test_futures_that_a_method_gets_unresolved_are_kept_with_their_values(group: Any, tmp_path: Path) -> None:
    later = group.copy_later(DataProto.from_dict({"x": torch.arange(4)}))
    assert len(later.get()) == 4
    with group.record(tmp_path, on="all"):
        for method in (group.sum_of, group.sum_of_async):
            assert method(later) == [6, 6]
    assert [path.name.split("-")[0] for path in files(tmp_path)][::2] == ["sum_of", "sum_of_async"]
    for path in files(tmp_path):
        with closing(RecordedCall.read(path)) as call:
            assert call.run() == 6


def test_a_method_that_reads_its_futures_hears_of_their_failure_itself(
    group: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    failed = group.score.options(blocking=False)(DataProto.from_dict({"x": torch.ones(8)}))
    with pytest.raises(WorkerGroupError):
        failed.get()
    with group.record(tmp_path, on="all"):
        assert group.failure_of(failed) == [[0, 1], [0, 1]]
    assert files(tmp_path) == []
    assert sum("failure_of on rank" in text and "not be recorded" in text for text in caplog.messages) == 2


def test_nothing_is_written_where_nothing_fails_or_the_recording_has_ended(
    group: Any, tmp_path: Path
) -> None:
    with group.record(tmp_path):
        group.draw()
    with pytest.raises(WorkerGroupError):
        group.keep(1)
    assert files(tmp_path) == []


def test_recording_goes_on_after_a_restart(group: Any, tmp_path: Path) -> None:
    with group.record(tmp_path):
        group.restart()
        with pytest.raises(WorkerGroupError):
            group.keep(1)
    assert len(files(tmp_path)) == 2


def test_what_cannot_be_written_is_said_beside_the_failure(group: Any, tmp_path: Path) -> None:
    lock = threading.Lock()
    with group.record(tmp_path), pytest.raises(WorkerGroupError, match="kept") as caught:
        group.keep(lambda: lock)
    assert "could not be recorded: an argument cannot be pickled" in str(caught.value)
    file = tmp_path / "file"
    file.write_text("")
    with group.record(file / "under"), pytest.raises(WorkerGroupError, match="could not be recorded"):
        group.keep(1)


def test_what_cannot_be_recorded_is_refused(group: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'error' or 'all'"):
        group.record(tmp_path, on="never")
    unknown: Any = Scorer
    lock = threading.Lock()
    with (
        LocalWorkerGroup(unknown, 1, lambda: lock) as odd,
        pytest.raises(NotPicklableError, match=r"Scorer, or an argument of its constructor"),
    ):
        odd.record(tmp_path)
    roles = LocalWorkerGroup(create_colocated_worker_raw_cls({"a": Scorer}), 1)
    with roles, pytest.raises(NotTheOwnerError, match="record"):
        roles.role("a").record(tmp_path)


def test_a_call_of_a_role_runs_again_beside_the_other_roles(tmp_path: Path) -> None:
    class Local(Scorer):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def other(self) -> Any:
            return self.fused_worker_dict["a"].scale

    roles = {"a": ClassWithInitArgs(Scorer, 7.0), "b": ClassWithInitArgs(Local)}
    with LocalWorkerGroup(create_colocated_worker_raw_cls(roles), 1) as group:
        view: Any = group.role("b")
        with group.record(tmp_path, on="all"):
            assert view.other() == [7.0]
    [path] = files(tmp_path)
    with closing(RecordedCall.read(path)) as call:
        assert call.run() == 7.0


# --- the command line -------------------------------------------------------------------------------------


def test_a_file_is_unpickled_only_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was unpickled",)

    facts = {"format": "verl-dispatch call 1", "call": "Scorer.score", "rank": 0, "world_size": 1}
    facts |= {"host": "there", "pid": 1, "error": None, "method": "score", "role": None, "main": None}
    path = tmp_path / "trap.call"
    path.write_bytes(json.dumps(facts).encode() + b"\n" + pickle.dumps(Trap()))
    assert main(["replay", str(path)]) == 2
    assert "Scorer.score on rank 0 of 1, recorded on node there" in (said := capsys.readouterr().out)
    assert "--unpickle" in said


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"\x80\x05"])
def test_another_file_is_named_as_such(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    assert main(["replay", str(path), "--unpickle"]) == 2
    assert main(["replay", str(tmp_path / "missing")]) == 2
    said = capsys.readouterr().out
    assert "is no recorded call" in said
    assert "No such file" in said


PROGRAM = """
import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, WorkerGroupError, register

class Adder(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def add(self, one, other):
        total = one + other
        return total

if __name__ == "__main__":
    with LocalWorkerGroup(Adder, 2) as group, group.record("calls", on="all"):
        group.add(torch.ones(2), torch.ones(2))
        try:
            group.add(torch.ones(2), torch.ones(3))
        except WorkerGroupError:
            pass
"""


def replayed(path: Path, *options: str, commands: str = "") -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "verl_dispatch", "replay", str(path), "--unpickle", *options],
        input=commands,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_a_class_of_the_program_itself_is_found_and_pdb_stops_where_it_failed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    subprocess.run([sys.executable, str(program)], cwd=tmp_path, check=True, timeout=120)
    calls = {bool(RecordedCall.read(path).facts["error"]): path for path in files(tmp_path / "calls")}
    assert len(files(tmp_path / "calls")) == 4
    code, said = replayed(calls[False])
    assert (code, said.splitlines()[-1]) == (0, "the call returned tensor([2., 2.])")
    code, said = replayed(calls[True], commands="p other.shape\nq\n")
    assert code == 1
    assert "-> total = one + other" in said
    assert "torch.Size([3])" in said
    code, said = replayed(calls[False], "--trace", commands="p one\nn\np total\nc\n")
    assert code == 0
    assert "-> total = one + other" in said
    assert "(Pdb) tensor([2., 2.])" in said
    code, said = replayed(calls[False], "--trace", commands="q\n")
    assert (code, said.splitlines()[-1]) == (1, "(Pdb) the call was not run to its end")


def test_a_replay_starts_no_group_of_a_program_without_a_guard(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace('__name__ == "__main__"', "True"))
    subprocess.run([sys.executable, str(program)], cwd=tmp_path, check=True, timeout=120)
    before = files(tmp_path / "calls")
    code, said = replayed(before[0])
    assert code == 2
    assert f"{program} runs for the classes that it defines, and starts a worker group" in said
    assert files(tmp_path / "calls") == before


def test_what_a_program_without_a_file_defines_is_in_the_recorded_one(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-"], input=PROGRAM, text=True, cwd=tmp_path, check=True, timeout=120)
    calls = {bool(RecordedCall.read(path).facts["error"]): path for path in files(tmp_path / "calls")}
    code, said = replayed(calls[False])
    assert (code, said.splitlines()[-1]) == (0, "the call returned tensor([2., 2.])")


def test_a_program_that_was_started_as_a_module_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    package = tmp_path / "adding"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "settings.py").write_text("FOLDER = 'calls'\n")
    (package / "program.py").write_text("from .settings import FOLDER\n" + PROGRAM)
    subprocess.run([sys.executable, "-m", "adding.program"], cwd=tmp_path, check=True, timeout=120)
    calls = {bool(RecordedCall.read(path).facts["error"]): path for path in files(tmp_path / "calls")}
    code, said = replayed(calls[False])
    assert (code, said.splitlines()[-1]) == (0, "the call returned tensor([2., 2.])")


def test_a_class_in_a_module_beside_the_program_is_found(tmp_path: Path) -> None:
    adder, guard, driver = PROGRAM.partition("if __name__")
    module, program = tmp_path / "adders.py", tmp_path / "program.py"
    module.write_text(adder)
    program.write_text("from adders import *\n" + guard + driver)
    subprocess.run([sys.executable, str(program)], cwd=tmp_path, check=True, timeout=120)
    calls = {bool(RecordedCall.read(path).facts["error"]): path for path in files(tmp_path / "calls")}
    code, said = replayed(calls[False])
    assert (code, said.splitlines()[-1]) == (0, "the call returned tensor([2., 2.])")
    module.unlink()
    code, said = replayed(calls[False])
    assert (code, said.splitlines()[-1]) == (
        2,
        "It cannot be unpickled here: ModuleNotFoundError: No module named 'adders'; "
        "name its folder in PYTHONPATH",
    )
