"""What a trace makes of the times that it was told: clocks of other hosts, tracks, tables, spans."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import pytest
from verl_dispatch import Dispatch, LocalWorkerGroup, Trace, Worker, register
from verl_dispatch.conformance.seen import check_events
from verl_dispatch.groups.trace import TracedCall, clock_shifts
from verl_dispatch.planning.plan import CallPlan
from verl_dispatch.workers.observed import Stamps


def traced(stamps: Mapping[int, Stamps], answered: Mapping[int, float] | None = None) -> TracedCall:
    """A call that was sent just now to these ranks."""
    call = TracedCall("group", "method", [])
    call.planned(CallPlan.of({rank: ((), {}) for rank in stamps}))
    call.sent(time.perf_counter(), answered or {}, lambda: stamps)
    return call


def of(*calls: TracedCall) -> Trace:
    trace = Trace([])
    trace.calls.extend(calls)
    return trace


@pytest.mark.parametrize(
    ("bounds", "shift"),
    [
        ([(-1.0, 1.0)], 0.0),
        ([(-1.0, 1.0), (0.25, 0.5)], 0.25),
        ([(-3.0, -2.0), (-5.0, 7.0)], -2.0),
        ([(1.0, 2.0), (4.0, 5.0)], 3.0),
    ],
)
def test_clocks_are_moved_as_little_as_calls_allow(bounds: list[tuple[float, float]], shift: float) -> None:
    assert clock_shifts([("there", low, high) for low, high in bounds]) == {"there": shift}


def test_a_host_whose_clock_is_ahead_is_shown_within_its_call() -> None:
    now = time.time()
    call = traced({0: Stamps("elsewhere", now + 3600, now + 3601, now + 3602)}, {0: 2.5})
    of(call).events()
    queue, fetch, run = [stage for stage in call.stages() if stage.rank == 0]
    assert queue.begin >= call.begin
    assert run.end - call.begin < 3
    assert fetch.seconds == run.seconds == pytest.approx(1)


def test_times_of_this_host_are_left_as_they_are() -> None:
    from socket import gethostname

    now = time.time()
    call = traced({0: Stamps(gethostname(), now, now + 1, now + 2)}, {0: 0.5})
    of(call).events()
    assert call.stages()[-1].end == now + 2


def test_calls_that_overlap_stand_on_threads_of_their_own() -> None:
    now = time.time()
    calls = [traced({0: Stamps("a", now, now + 1, now + 5)}) for _ in range(3)]
    events = of(*calls).events()
    check_events({"traceEvents": events})
    runs = {event["tid"] for event in events if event.get("cat") == "run"}
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert len(runs) == 3
    assert {"rank 0", "rank 0 (2)", "rank 0 (3)"} <= names


def test_a_call_of_which_no_rank_has_reported_is_shown_as_far_as_it_is_known() -> None:
    call = traced({})
    assert [stage.name for stage in call.stages()] == ["plan", "send"]
    assert call.slowest is None
    assert str(of(call)).splitlines()[1].endswith("-")


def test_the_table_for_notebooks_is_escaped() -> None:
    call = TracedCall("<script>", "method", [])
    shown = of(call)._repr_html_()
    assert shown.startswith("<table>")
    assert "&lt;script&gt;" in shown
    assert "<script>" not in shown


class Slow(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def wait(self, seconds: float) -> float:
        return seconds

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise ValueError("no")


def test_groups_of_one_name_are_told_apart() -> None:
    with LocalWorkerGroup(Slow, 2) as one, LocalWorkerGroup(Slow, 2) as other:
        with one.trace(also=[other]) as trace:
            one.wait(0.0)
            other.wait(0.0)
        events = trace.events()
    assert len({event["pid"] for event in events}) == 2
    check_events({"traceEvents": events})


def test_calls_are_spans_within_the_span_of_the_program() -> None:
    sdk: Any = pytest.importorskip("opentelemetry.sdk.trace")
    export: Any = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    from opentelemetry import trace as telemetry
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    exporter = export.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    telemetry.set_tracer_provider(provider)
    with LocalWorkerGroup(Slow, 2) as group, group.trace():
        with telemetry.get_tracer("program").start_as_current_span("step"):
            group.wait(0.0)
        with pytest.raises(RuntimeError, match="no"):
            group.fail()
    spans = {span.name: span for span in exporter.get_finished_spans()}
    call = spans["Slow.wait"]
    assert call.parent.span_id == spans["step"].context.span_id
    assert spans["collect"].parent is not None
    assert not spans["Slow.fail"].status.is_ok
    ranks = {span.attributes.get("verl.rank") for span in exporter.get_finished_spans() if span.name == "run"}
    assert ranks == {0, 1}
    assert call.start_time <= spans["plan"].start_time


def test_what_is_no_group_is_refused_by_name() -> None:
    with LocalWorkerGroup(Slow, 1) as made:
        group: Any = made
        for also in (group, [group, "critic"]):
            with pytest.raises(TypeError, match=r"also is .*, expected groups, such as \[critic"):
                group.trace(also=also)
