"""Ranks that fail, die or stay silent, and what becomes of the group."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from verl_dispatch.conformance import workers
from verl_dispatch.conformance.backend import Backend, SharedGroups, batch
from verl_dispatch.errors import CallTimeout, WorkerGroupError


class TestFailures(SharedGroups):
    """Failures that a group outlives, on a group of 4."""

    def test_error_says_who_what_and_where(self, group: Any) -> None:
        with pytest.raises(WorkerGroupError) as caught:
            group.raise_on(1, message="no such weight")
        error = caught.value
        assert error.method == "raise_on"
        assert error.failed_ranks == [1]
        assert error.unanswered_ranks == []
        assert isinstance(error.errors[1].cause, KeyError)
        text = str(error)
        for part in ("raise_on", "rank 1", "KeyError", "no such weight", "pid", "node", "workers.py"):
            assert part in text

    def test_all_failed_ranks_are_named(self, group: Any) -> None:
        with pytest.raises(WorkerGroupError) as caught:
            group.write_into(5)
        assert caught.value.failed_ranks == [0, 1, 2, 3]

    def test_group_stays_usable_if_every_rank_answered(self, group: Any) -> None:
        with pytest.raises(WorkerGroupError):
            group.raise_on(1)
        assert group.is_usable
        assert [each[0] for each in group.one_to_all(1)] == [0, 1, 2, 3]

    def test_failure_shows_when_the_answer_is_read(self, backend: Backend, group: Any) -> None:
        references = group.raise_on.options(blocking=False)(2)
        assert backend.value_of(references[0]) == 0
        with pytest.raises(Exception, match="boom"):
            backend.value_of(references[2])

    def test_failure_of_a_part_shows_where_the_batch_is_used(self, group: Any) -> None:
        made = group.rows.options(blocking=False)(batch(4).select(["x"]))
        for part in (made, made.chunk(2)[1]):
            with pytest.raises(WorkerGroupError, match="'i'") as caught:
                part.get()
            assert caught.value.failed_ranks == [0, 1, 2, 3]
        with pytest.raises(WorkerGroupError):
            group.rows(made)

    @pytest.mark.parametrize("verb", ["submit", "stream"])
    def test_every_verb_raises_it(self, group: Any, verb: str) -> None:
        started = group.raise_on.submit(3) if verb == "submit" else group.raise_on.stream(3)
        with pytest.raises(WorkerGroupError, match="boom"):
            started.result() if verb == "submit" else list(started)

    def test_calls_may_be_bounded(self, group: Any) -> None:
        with pytest.raises(CallTimeout) as caught:
            group.sleep.options(timeout_s=0.2)(0.5)
        assert caught.value.unanswered_ranks == [0, 1, 2, 3]
        assert group.sleep.options(timeout_s=60)(0) == [0, 1, 2, 3]

    def test_call_future_may_be_waited_for_again(self, group: Any, slow: None) -> None:
        made = group.sleep.submit(0.5)
        with pytest.raises(CallTimeout):
            made.result(timeout=0.05)
        assert made.result(timeout=60) == [0, 1, 2, 3]

    def test_collectives_work_or_say_why_not(self, backend: Backend, group: Any) -> None:
        if backend.ranks_meet:
            assert group.sum_of_ranks() == [6, 6, 6, 6]
        else:
            with pytest.raises(WorkerGroupError, match="concurrent=True"):
                group.sum_of_ranks()


class TestLifecycle(SharedGroups):
    """Groups that are made, broken, restarted and ended."""

    def test_death_breaks_the_group_until_it_is_restarted(self, backend: Backend) -> None:
        group: Any = backend.make_group(workers.ModesWorker, 2, label="kept")
        with group:
            old = group.one_to_all.options(blocking=False)(1)
            backend.resolved(old)
            ports = {each["master"] for each in group.identity()}
            with pytest.raises(WorkerGroupError) as caught:
                group.exit_on(1)
            assert caught.value.failed_ranks == [1]
            assert not group.is_usable
            with pytest.raises(
                WorkerGroupError, match=r"broken by an earlier failure in 'exit_on' on rank 1"
            ):
                group.one_to_all(1)
            group.restart()
            assert group.is_usable
            assert group.generation == 1
            assert [each["label"] for each in group.identity()] == ["kept", "kept"]
            assert {each["master"] for each in group.identity()} != ports

    def test_silence_after_a_failure_breaks_the_group(self, backend: Backend, slow: None) -> None:
        with backend.make_group(workers.ModesWorker, 2) as group:
            group.one_to_all(1)
            started = time.monotonic()
            with pytest.raises(WorkerGroupError) as caught:
                group.sleep(8, but_rank=1)
            assert time.monotonic() - started < 6
            assert caught.value.failed_ranks == [1]
            assert caught.value.unanswered_ranks == [0]
            with pytest.raises(WorkerGroupError, match=r"broken by an earlier failure in 'sleep' on rank 1"):
                group.one_to_all(1)

    def test_shutdown_ends_it_for_good(self, backend: Backend) -> None:
        group: Any = backend.make_group(workers.PlainWorker, 1)
        with group as entered:
            assert entered is group
            assert group.get() == ["plain"]
        group.shutdown()
        assert not group.is_usable
        with pytest.raises(WorkerGroupError, match="shut down"):
            group.get()

    def test_workers_clean_up_when_the_group_ends(self, backend: Backend, tmp_path: Path) -> None:
        notes = tmp_path / "notes"
        with backend.make_group(workers.ClosingWorker, 2, notes) as group:
            group.restart()
            assert sorted(notes.read_text().split()) == ["0", "1"]
        assert sorted(notes.read_text().split()) == ["0", "0", "1", "1"]

    def test_constructor_that_fails_is_named(self, backend: Backend) -> None:
        with pytest.raises(WorkerGroupError) as caught:
            backend.make_group(workers.FailingWorker, 2)
        assert 1 in caught.value.failed_ranks
        assert "no model here" in str(caught.value)

    def test_worker_that_never_calls_super(self, backend: Backend) -> None:
        with backend.make_group(workers.SilentWorker, 2) as group:
            assert group.get() == [(0, 2), (1, 2)]
