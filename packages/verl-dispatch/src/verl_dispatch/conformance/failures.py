"""Ranks that fail, die or stay silent, and what becomes of the group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from verl_dispatch.conformance import workers
from verl_dispatch.conformance.backend import Backend, SharedGroups, batch, failure_of, later, said, within
from verl_dispatch.errors import CallTimeout, WorkerGroupError


class TestFailures(SharedGroups):
    """Failures that a group outlives, on a group of 4."""

    def test_error_says_who_what_and_where(self, group: Any) -> None:
        error = failure_of(group.raise_on, 1, message="no such weight")
        assert (error.method, error.failed_ranks, error.unanswered_ranks) == ("raise_on", [1], [])
        assert isinstance(error.errors[1].cause, KeyError)
        for part in ("raise_on", "rank 1", "KeyError", "no such weight", "pid", "node", "workers.py"):
            assert part in str(error)

    def test_all_failed_ranks_are_named(self, group: Any) -> None:
        assert failure_of(group.write_into, 5).failed_ranks == [0, 1, 2, 3]

    def test_group_stays_usable_if_every_rank_answered(self, group: Any) -> None:
        failure_of(group.raise_on, 1)
        assert group.is_usable
        assert group.one_to_all(1) == said(1)

    def test_failure_shows_when_the_answer_is_read(self, backend: Backend, group: Any) -> None:
        references = later(group.raise_on)(2)
        assert backend.value_of(references[0]) == 0
        with pytest.raises(Exception, match="boom"):
            backend.value_of(references[2])

    def test_failure_of_a_part_shows_where_the_batch_is_used(self, group: Any) -> None:
        made = later(group.rows)(batch(4).select(["x"]))
        for part in (made, made.chunk(2)[1]):
            error = failure_of(part.get)
            assert error.failed_ranks == [0, 1, 2, 3]
            assert "'i'" in str(error)
        failure_of(group.rows, made)

    @pytest.mark.parametrize("verb", ["submit", "stream"])
    def test_every_verb_raises_it(self, group: Any, verb: str) -> None:
        started = group.raise_on.submit(3) if verb == "submit" else group.raise_on.stream(3)
        with pytest.raises(WorkerGroupError, match="boom"):
            started.result() if verb == "submit" else list(started)

    def test_calls_may_be_bounded(self, group: Any) -> None:
        with pytest.raises(CallTimeout) as caught:
            group.sleep.options(timeout_s=0.2)(0.5)
        assert caught.value.unanswered_ranks == [0, 1, 2, 3]
        assert group.is_usable
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
            backend.resolved(later(group.one_to_all)(1))
            ports = {each["master"] for each in group.identity()}
            assert failure_of(group.raise_on, 1, kind=SystemExit).failed_ranks == [1]
            assert not group.is_usable
            told = str(failure_of(group.one_to_all, 1))
            assert "broken by an earlier failure in 'raise_on' on rank 1" in told
            group.restart()
            assert group.is_usable
            assert group.generation == 1
            assert [each["label"] for each in group.identity()] == ["kept", "kept"]
            assert {each["master"] for each in group.identity()} != ports

    def test_silence_after_a_failure_breaks_the_group(self, backend: Backend, slow: None) -> None:
        with backend.make_group(workers.ModesWorker, 2) as group:
            group.one_to_all(1)
            with within(6):
                error = failure_of(group.sleep, 8, but_rank=1)
            assert (error.failed_ranks, error.unanswered_ranks) == ([1], [0])
            assert "broken by an earlier failure in 'sleep' on rank 1" in str(failure_of(group.one_to_all, 1))

    def test_shutdown_ends_it_for_good(self, backend: Backend) -> None:
        group: Any = backend.make_group(workers.PlainWorker, 1)
        with group as entered:
            assert entered is group
            assert group.get() == ["plain"]
        group.shutdown()
        assert not group.is_usable
        assert "shut down" in str(failure_of(group.get))

    def test_workers_clean_up_when_the_group_ends(self, backend: Backend, tmp_path: Path) -> None:
        notes = tmp_path / "notes"
        with backend.make_group(workers.ClosingWorker, 2, notes) as group:
            group.restart()
            assert sorted(notes.read_text().split()) == ["0", "1"]
        assert sorted(notes.read_text().split()) == ["0", "0", "1", "1"]

    def test_constructor_that_fails_is_named(self, backend: Backend) -> None:
        error = failure_of(backend.make_group, workers.FailingWorker, 2)
        assert 1 in error.failed_ranks
        assert "no model here" in str(error)

    def test_worker_that_never_calls_super(self, backend: Backend) -> None:
        with backend.make_group(workers.SilentWorker, 2) as group:
            assert group.get() == [(0, 2), (1, 2)]
