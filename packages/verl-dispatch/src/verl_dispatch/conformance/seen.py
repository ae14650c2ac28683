"""What is seen of calls: traces of every verb, in a format that viewers read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from verl_dispatch.conformance.backend import Backend, SharedGroups, batch, failure_of, later

ROW_BYTES = 16
"""Bytes of the tensors in a row of `batch`."""


def check_events(written: Mapping[str, Any]) -> None:
    """Asserts that this is in Chrome's Trace Event Format, with complete events that do not overlap."""
    names: dict[str, set[Any]] = {"process_name": set(), "thread_name": set()}
    threads: dict[Any, list[tuple[float, float]]] = {}
    for event in written["traceEvents"]:
        assert isinstance(event["name"], str)
        assert all(type(event[key]) is int for key in ("pid", "tid"))
        if event["ph"] == "M":
            assert isinstance(event["args"]["name"], str)
            key = event["pid"] if event["name"] == "process_name" else (event["pid"], event["tid"])
            names[event["name"]].add(key)
        else:
            assert event["ph"] == "X"
            assert isinstance(event["cat"], str)
            assert all(isinstance(event[key], (int, float)) and event[key] >= 0 for key in ("ts", "dur"))
            key = event["pid"], event["tid"]
            threads.setdefault(key, []).append((event["ts"], event["ts"] + event["dur"]))
    assert set(threads) <= names["thread_name"]
    assert {pid for pid, _ in threads} <= names["process_name"]
    for spans in threads.values():
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(sorted(spans)))


class TestNotebooks(SharedGroups):
    """What notebooks show."""

    def test_groups_plans_and_traces_are_tables(self, group: Any) -> None:
        with group.trace() as trace:
            group.rows(batch(4))
        plan = group.one_to_all.plan("<b>")
        for shown in (group, plan, trace):
            html = shown._repr_html_()
            assert html.startswith("<table>")
            assert html.endswith("</table>")
            assert "<b>" not in html
        assert "<td>over_pairs</td>" in group._repr_html_()
        assert "get_dispatch_collect" not in group._repr_html_()
        assert "&lt;b&gt;" in plan._repr_html_()


class TestRecords(SharedGroups):
    """Calls that are written into files where they run."""

    def test_a_call_that_fails_is_written_down_and_the_error_says_where(
        self, group: Any, tmp_path: Path
    ) -> None:
        with group.record(tmp_path / "calls"):
            group.rows(batch(8))
            error = failure_of(group.raise_on, 1)
        [path] = (tmp_path / "calls").iterdir()
        assert str(path) in str(error)
        facts = json.loads(path.read_bytes().partition(b"\n")[0])
        assert (facts["method"], facts["rank"], facts["world_size"]) == ("raise_on", 1, 4)
        assert "boom" in facts["error"]

    def test_every_call_is_written_down_on_request_async_ones_too(self, group: Any, tmp_path: Path) -> None:
        with group.record(tmp_path, on="all"):
            group.one_to_all_async(1)
            later(group.rows)(batch(8)).get()
        group.one_to_all(1)
        written = [path.name.split("-")[:2] for path in tmp_path.iterdir()]
        methods = ("one_to_all_async", "rows")
        assert sorted(written) == [[method, f"rank{rank}"] for method in methods for rank in range(4)]


def stages_of(call: Any) -> list[tuple[str, int | None]]:
    return [(stage.name, stage.rank) for stage in call.stages()]


def stages(*ranks: int) -> list[tuple[str, int | None]]:
    """What is timed of a call of these ranks, until it is collected."""
    of_ranks = [(name, rank) for rank in ranks for name in ("queue", "fetch", "run")]
    return [("plan", None), ("send", None), *of_ranks]


COLLECT = ("collect", None)


class TestTraces(SharedGroups):
    """Calls on a group of 4, while it is traced."""

    def test_the_stages_of_every_verb_are_timed(self, backend: Backend, group: Any) -> None:
        with group.trace() as trace:
            group.rows(batch(8))
            group.rows.submit(batch(8)).result()
            list(group.rows.stream(batch(8)))
            backend.resolved(later(group.rows)(batch(8)))
            backend.resolved(group.execute_all_async("one_to_all", 1))
            group.execute_rank_zero_sync("one_to_all", 1)
        called, submitted, *not_collected, zero = map(stages_of, trace.calls)
        assert called == submitted == [*stages(0, 1, 2, 3), COLLECT]
        assert not_collected == [stages(0, 1, 2, 3)] * 3
        assert zero == [*stages(0), COLLECT]
        assert all(stage.seconds >= 0 for call in trace.calls for stage in call.stages())

    def test_bytes_are_those_of_the_rows(self, group: Any) -> None:
        with group.trace() as trace:
            group.rows(batch(8))
        [call] = trace.calls
        sizes = {stage.name: stage.nbytes for stage in call.stages() if stage.rank in (None, 3)}
        assert (sizes["send"], sizes["fetch"]) == (8 * ROW_BYTES, 2 * ROW_BYTES)
        assert sizes["collect"] == call.bytes_in >= 8 * ROW_BYTES

    def test_the_slowest_rank_and_stage_are_named(self, group: Any) -> None:
        with group.trace() as trace:
            group.sleep(0.02)
        [call] = trace.calls
        assert call.slowest.name == "run"
        assert call.slowest.seconds >= 0.02
        assert call.seconds >= call.slowest.seconds
        head, line = str(trace).splitlines()
        assert head.split()[:9] == ["call", "group", "ms", "plan", "send", "queue", "fetch", "run", "collect"]
        assert f"rank {call.slowest.rank}, run" in line

    def test_only_ranks_that_are_called_have_stages(self, group: Any) -> None:
        with group.trace() as trace:
            group.one_to_one({1: "b", 3: "d"})
        assert stages_of(trace.calls[0]) == [*stages(1, 3), COLLECT]

    def test_a_call_that_fails_says_so(self, group: Any) -> None:
        with group.trace() as trace:
            failure_of(group.raise_on, 1)
        [call] = trace.calls
        assert call.error.startswith("WorkerGroupError: ")
        assert "WorkerGroupError" in str(trace)

    def test_what_is_written_is_a_chrome_trace(self, group: Any, single: Any, tmp_path: Path) -> None:
        path = tmp_path / "trace.json"
        with group.trace(path, also=[single]):
            started = [group.rows.submit(batch(8)) for _ in range(3)]
            single.one_to_all(1)
            for each in started:
                each.result()
        written = json.loads(path.read_text())
        check_events(written)
        begun = {(event["pid"], event["name"]) for event in written["traceEvents"] if event["ph"] == "X"}
        assert {name for _, name in begun} >= {"rows: run", "rows: collect", "one_to_all: plan"}
        assert len({pid for pid, _ in begun}) == 2

    def test_nothing_is_kept_outside_a_trace(self, group: Any) -> None:
        with group.trace() as trace:
            pass
        group.one_to_all(1)
        assert trace.calls == []
        assert len(str(trace).splitlines()) == 1
