"""Where the time of calls goes, stage by stage and rank by rank, while a `with group.trace()` is open.

The driver's stages are timed here, the ranks' own by the workers, which report them with their answers. What
other hosts report is in the time of their own clocks, and moved as little as possible so that every call
begins after it was sent and ends before it was heard of.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import count
from os import PathLike
from pathlib import Path
from socket import gethostname
from typing import Any, NamedTuple, Protocol, Self, TypeAlias

from verl_protocol.tables import amount, html_table, text_table

from verl_dispatch.planning.plan import CallPlan, bytes_of_answers, bytes_of_calls
from verl_dispatch.workers.observed import Stamps

_MOST_OF_AN_ERROR = 500


class Stage(NamedTuple):
    """One stage of a call: of the driver, or of one rank.

    Attributes:
        name: plan, send or collect at the driver; queue, fetch or run at a rank.
        rank: whose it is; None for the driver.
        begin: seconds since the epoch, by the driver's clock.
        end: likewise.
        nbytes: tensor and array bytes that it moved; None where it moves none, or that is not known.
    """

    name: str
    rank: int | None
    begin: float
    end: float
    nbytes: int | None = None

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.begin


class CallObserver(Protocol):
    """Who is told of the calls of a group."""

    def sent(self, call: TracedCall) -> None:
        """A call was sent."""

    def ended(self, call: TracedCall) -> None:
        """The driver has its result, or its error."""


class TracedCall:
    """One call as the driver and its ranks timed it.

    Attributes:
        group: name of the group.
        source: tells groups of one name apart.
        method: name of the method.
        begin: when it began, in seconds since the epoch.
        ranks: the called ranks.
        bytes_out: tensor and array bytes of the arguments, rank by rank.
        bytes_sent: of all arguments; what several ranks share counts once.
        bytes_in: of the answers, as far as the driver has read them.
        error: how the call failed, if it did.
        shifts: by how much the times of each host are moved.
        context: of OpenTelemetry, in which the call was made.
    """

    def __init__(self, group: str, method: str, observers: Sequence[CallObserver], source: int = 0) -> None:
        self.group: str = group
        self.method: str = method
        self.source: int = source
        self.ranks: tuple[int, ...] = ()
        self.bytes_out: tuple[int, ...] = ()
        self.bytes_sent: int = 0
        self.bytes_in: int = 0
        self.error: str = ""
        self.shifts: Mapping[str, float] = {}
        self._observers = tuple(observers)
        self.begin: float = time.time()
        self._planned = self._sending = self._sent = self.begin
        self._collecting: float | None = None
        self._ended: float | None = None
        self._answered: Mapping[int, float] = {}
        self._stamps: Callable[[], Mapping[int, Stamps]] = dict
        # That of a call is made within the span in which the program is now.
        traced = _telemetry() is not None
        self.context: Any = import_module("opentelemetry.context").get_current() if traced else None

    # --- as the call goes on -------------------------------------------------------------------------------

    def planned(self, plan: CallPlan) -> None:
        """It is known what the ranks get."""
        self._planned, self.ranks = time.time(), plan.called_ranks
        self.bytes_out = plan.nbytes()
        self.bytes_sent = bytes_of_calls(plan.calls)
        self._sending = time.time()

    def sent(
        self, at: float, answered: Mapping[int, float], stamps: Callable[[], Mapping[int, Stamps]]
    ) -> None:
        """It is on its way.

        Args:
            at: when, by `time.perf_counter`.
            answered: seconds from then to each rank's answer, as they come.
            stamps: gives what the ranks reported, of those that have.
        """
        self._sent = time.time() - (time.perf_counter() - at)
        self._answered, self._stamps = answered, stamps
        for observer in self._observers:
            observer.sent(self)

    def collecting(self) -> None:
        """All answers are there, or the wait has failed."""
        self._collecting = time.time()

    def read(self, answers: Sequence[Any]) -> None:
        """The driver has these answers."""
        self.bytes_in += bytes_of_answers(answers)

    def ended(self, error: BaseException | None = None) -> None:
        """The result, or an error, is there; the first counts."""
        if self._ended is None:
            self._ended = time.time()
            self.error = "" if error is None else f"{type(error).__name__}: {error}"[:_MOST_OF_AN_ERROR]
            for observer in self._observers:
                observer.ended(self)

    # --- afterwards ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Take over what the ranks have reported by now."""
        stamps = dict(self._stamps())
        self._stamps = lambda: stamps

    @property
    def end(self) -> float:
        """When the last stage ended that is known."""
        return max(stage.end for stage in self.stages())

    @property
    def seconds(self) -> float:
        """From the begin to the end."""
        return self.end - self.begin

    def stages(self) -> list[Stage]:
        """Plan and send, then queue, fetch and run of each rank that has reported, then collect."""
        made = [
            Stage("plan", None, self.begin, self._planned),
            Stage("send", None, self._sending, self._sent, self.bytes_sent),
        ]
        sizes = dict(zip(self.ranks, self.bytes_out, strict=True))
        for rank, stamps in sorted(self._stamps().items()):
            began, fetched, ended = [at + self.shifts.get(stamps.host, 0.0) for at in stamps[1:4]]
            made.append(Stage("queue", rank, min(self._sent, began) if stamps.queued else began, began))
            made.append(Stage("fetch", rank, began, fetched, sizes.get(rank)))
            made.append(Stage("run", rank, fetched, ended))
        if self._ended is not None and self._collecting is not None:
            made.append(Stage("collect", None, self._collecting, self._ended, self.bytes_in))
        return made

    @property
    def slowest(self) -> Stage | None:
        """The longest stage of the rank that took longest; None where no rank has reported."""
        ranks: dict[int, list[Stage]] = {}
        for stage in self.stages():
            if stage.rank is not None:
                ranks.setdefault(stage.rank, []).append(stage)
        if not ranks:
            return None
        slowest = max(ranks.values(), key=lambda stages: sum(stage.seconds for stage in stages))
        return max(slowest, key=lambda stage: stage.seconds)

    def bounds(self) -> Iterator[tuple[str, float, float]]:
        """For each rank that has reported, its host, and by how much its times may be moved."""
        for rank, stamps in self._stamps().items():
            heard = self._sent + self._answered.get(rank, math.inf)
            yield stamps.host, self._planned - stamps.began, heard - stamps.ended

    def __repr__(self) -> str:
        return f"<{self.group}.{self.method}, {self.seconds * 1e3:.3f} ms>"


def clock_shifts(bounds: Iterable[tuple[str, float, float]]) -> dict[str, float]:
    """By how much to move the times of each host so that they agree with the driver's.

    As little as makes every call begin after it was sent and end before it was heard of; where that cannot
    be, because a clock was set meanwhile, halfway between the two.

    Args:
        bounds: a host, the least and the most that one call allows; seconds.

    >>> clock_shifts([("a", -0.1, 0.2), ("b", 4.9, 5.5), ("b", 5.0, 5.2)])
    {'a': 0.0, 'b': 5.0}
    """
    least: dict[str, float] = {}
    most: dict[str, float] = {}
    for host, low, high in bounds:
        least[host], most[host] = max(low, least.get(host, low)), min(high, most.get(host, high))
    return {host: _nearest_to_zero(low, most[host]) for host, low in least.items()}


def _nearest_to_zero(low: float, high: float) -> float:
    return min(max(0.0, low), high) if low <= high else (low + high) / 2


_HEAD = ("call", "group", "ms", "plan", "send", "queue", "fetch", "run", "collect", "out", "in", "slowest")


class Trace:
    """The calls made while `with group.trace(...) as trace:` is open.

    Printed, it is a table with a line for each call: milliseconds in each stage, those of the ranks for the
    slowest of them, bytes sent and read, and the slowest rank with its longest stage.

    Attributes:
        calls: the calls, in the order in which they were sent.
    """

    def __init__(self, groups: Sequence[Any], path: str | PathLike[str] | None = None) -> None:
        self.calls: list[TracedCall] = []
        self._groups, self._path = groups, path

    def sent(self, call: TracedCall) -> None:
        """Takes a call."""
        self.calls.append(call)

    def ended(self, call: TracedCall) -> None:
        """Does nothing: calls are looked at when the trace is read."""

    def __enter__(self) -> Self:
        for group in self._groups:
            group._observers.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:
            group._observers.remove(self)
        for call in self.calls:
            call.settle()
        self._align()
        _emit_spans(self.calls)
        if self._path is not None:
            self.write(self._path)

    def _align(self) -> None:
        here = gethostname()
        bounds = [each for call in self.calls for each in call.bounds() if each[0] != here]
        shifts = clock_shifts(bounds)
        for call in self.calls:
            call.shifts = shifts

    def write(self, path: str | PathLike[str]) -> None:
        """Writes the trace as JSON for https://ui.perfetto.dev and chrome://tracing."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"displayTimeUnit": "ms", "traceEvents": self.events()}))

    def events(self) -> list[dict[str, Any]]:
        """The events of the trace, in the Trace Event Format of Chrome.

        A process stands for a group, its threads for the driver, for what waits for each rank, and for the
        ranks. What overlaps gets further threads.
        """
        self._align()
        stages = [(stage, call) for call in self.calls for stage in call.stages()]
        free_from: dict[Track, float] = {}
        placed = [
            (stage, call, _placed(stage, call, free_from))
            for stage, call in sorted(stages, key=lambda each: each[0].begin)
        ]
        threads = {track: number for number, track in enumerate(sorted(free_from), 1)}
        processes = {track[:2]: number for track, number in reversed(threads.items())}
        origin = min((call.begin for call in self.calls), default=0.0)
        timed = [
            _event(stage, call, origin) | {"pid": processes[track[:2]], "tid": threads[track]}
            for stage, call, track in placed
        ]
        return [*_names(threads, processes), *timed]

    def __str__(self) -> str:
        return text_table(_HEAD, self._rows(), left=(0, 1, len(_HEAD) - 1))

    def _repr_html_(self) -> str:
        return html_table(_HEAD, self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        self._align()
        return [_row(call) for call in self.calls]


def _row(call: TracedCall) -> tuple[str, ...]:
    longest: dict[str, float] = {}
    for stage in call.stages():
        longest[stage.name] = max(stage.seconds, longest.get(stage.name, 0.0))
    spent = [f"{longest[name] * 1e3:.3f}" if name in longest else "-" for name in _HEAD[3:9]]
    slowest = call.slowest
    if call.error:
        told = call.error.partition(":")[0]
    elif slowest is None:
        told = "-"
    else:
        told = f"rank {slowest.rank}, {slowest.name} {slowest.seconds * 1e3:.3f}"
    sizes = amount(call.bytes_sent), amount(call.bytes_in)
    return call.method, call.group, f"{call.seconds * 1e3:.3f}", *spent, *sizes, told


def _event(stage: Stage, call: TracedCall, origin: float) -> dict[str, Any]:
    # In whole nanoseconds, so that stages which follow one another do not overlap by rounding.
    begin, end = [round((at - origin) * 1e6, 3) for at in (stage.begin, stage.end)]
    facts = {"rank": stage.rank, "bytes": stage.nbytes, "error": call.error or None}
    return {
        "name": f"{call.method}: {stage.name}",
        "cat": stage.name,
        "ph": "X",
        "ts": begin,
        "dur": round(max(0.0, end - begin), 3),
        "args": {name: value for name, value in facts.items() if value is not None},
    }


Track: TypeAlias = tuple[str, int, int, bool, int]
"""A thread in a viewer: group, its number, rank (-1: the driver), whether calls run there, which of many."""


def _placed(stage: Stage, call: TracedCall, free_from: dict[Track, float]) -> Track:
    """The first track of its kind that is free by then; stages come by their begin."""
    rank = -1 if stage.rank is None else stage.rank
    tracks = ((call.group, call.source, rank, stage.name != "queue", lane) for lane in count())
    track = next(track for track in tracks if stage.begin >= free_from.get(track, stage.begin))
    free_from[track] = stage.end
    return track


def _names(
    threads: Mapping[Track, int], processes: Mapping[tuple[str, int], int]
) -> Iterator[dict[str, Any]]:
    """The events that name processes and threads."""
    for (name, _), pid in processes.items():
        yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    for (group, source, rank, runs, lane), tid in threads.items():
        whose = "driver" if rank < 0 else f"rank {rank}" if runs else f"rank {rank} queue"
        name, pid = whose + f" ({lane + 1})" * (lane > 0), processes[group, source]
        yield {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


# --- The same calls as spans of OpenTelemetry, where its API is installed -----------------------------------


def _telemetry() -> Any:
    """The module `opentelemetry.trace`; None where it is not installed."""
    try:
        return import_module("opentelemetry.trace")
    except ImportError:
        return None


def _emit_spans(calls: Sequence[TracedCall]) -> None:
    """A span for each call, and within it one for each stage."""
    telemetry = _telemetry()
    if telemetry is None:
        return
    tracer = telemetry.get_tracer("verl_dispatch")
    for call in calls:
        facts = {"verl.bytes_sent": call.bytes_sent, "verl.bytes_in": call.bytes_in}
        span = tracer.start_span(
            f"{call.group}.{call.method}", call.context, attributes=facts, start_time=_nanoseconds(call.begin)
        )
        within = telemetry.set_span_in_context(span)
        for stage in call.stages():
            rank = {} if stage.rank is None else {"verl.rank": stage.rank}
            start = _nanoseconds(stage.begin)
            tracer.start_span(stage.name, within, attributes=rank, start_time=start).end(
                _nanoseconds(stage.end)
            )
        if call.error:
            span.set_status(telemetry.StatusCode.ERROR, call.error)
        span.end(_nanoseconds(call.end))


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
