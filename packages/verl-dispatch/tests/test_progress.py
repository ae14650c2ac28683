"""The progress of a call over its ranks, as it is shown to people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, WorkerGroupError, register
from verl_dispatch.groups.progress import Progress


class Steps(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def step(self, fails: bool = False) -> int:
        if fails:
            raise ValueError("no")
        return self.rank


@pytest.fixture(params=[False, True], ids=["turns", "threads"])
def group(request: pytest.FixtureRequest) -> Iterator[Any]:
    with LocalWorkerGroup(Steps, 3, concurrent=request.param) as made:
        yield made


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return [re.sub(r"\d+\.\d s", "T s", line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_written_as_ranks_answer(group: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert group.step.options(progress=True)() == [0, 1, 2]
    said = lines(capsys)
    assert said[-1] == "step: 3 of 3 ranks have answered after T s"
    assert all(line.startswith("step: ") for line in said)


def test_it_is_shown_for_calls_that_are_asked_for_later_and_for_failures(
    group: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert group.step.options(progress=True).submit().result() == [0, 1, 2]
    assert "3 of 3 ranks" in lines(capsys)[-1]
    with pytest.raises(WorkerGroupError):
        group.step.options(progress=True)(fails=True)
    assert "3 of 3 ranks" in lines(capsys)[-1]


def test_nothing_is_shown_unless_asked_for(group: Any, capsys: pytest.CaptureFixture[str]) -> None:
    group.step()
    assert lines(capsys) == []


def test_who_is_missing_is_named_and_many_ranks_make_few_lines(capsys: pytest.CaptureFixture[str]) -> None:
    came: dict[int, None] = {}
    shown = Progress("fit", range(512), came)
    for rank in range(512):
        came[rank] = None
        shown.update()
    said = lines(capsys)
    assert len(said) == 16
    assert said[0] == "fit: 32 of 512 ranks have answered after T s"
    few: dict[int, None] = {0: None}
    Progress("fit", [0, 3, 7], few).update()
    assert lines(capsys) == ["fit: 1 of 3 ranks have answered after T s, waiting for rank 3, 7"]


def test_a_terminal_gets_a_bar(
    group: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("rich")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    group.step.options(progress=True)()
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "ranks have answered" not in said


def test_a_stream_shows_its_progress_too(group: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert sorted(group.step.options(progress=True).stream()) == [(0, 0), (1, 1), (2, 2)]
    assert "3 of 3 ranks" in lines(capsys)[-1]
