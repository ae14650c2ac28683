"""Calls, bytes and seconds of groups as metrics of Ray, for its dashboard and Prometheus."""

from __future__ import annotations

from ray.util.metrics import Counter, Histogram
from verl_dispatch.groups.trace import TracedCall

_TAGS = ("group", "method")
_SECONDS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000]


class CallMetrics:
    """Counts the calls of a group whose `CallObserver` it is.

    `verl_calls` and `verl_failed_calls`; `verl_call_bytes_out` and `verl_call_bytes_in`; `verl_call_seconds`.
    Seconds and bytes of answers are those of calls whose result the driver has read.
    """

    def __init__(self) -> None:
        self._calls = Counter("verl_calls", "Calls of worker groups.", _TAGS)
        self._failed = Counter("verl_failed_calls", "Calls of worker groups that failed.", _TAGS)
        self._bytes_out = Counter("verl_call_bytes_out", "Bytes of tensors in arguments of calls.", _TAGS)
        self._bytes_in = Counter("verl_call_bytes_in", "Bytes of tensors in answers that were read.", _TAGS)
        self._seconds = Histogram("verl_call_seconds", "Seconds that calls took.", _SECONDS, _TAGS)

    def sent(self, call: TracedCall) -> None:
        """Counts a call and its arguments."""
        tags = {"group": call.group, "method": call.method}
        self._calls.inc(1, tags)
        if call.bytes_sent:
            self._bytes_out.inc(call.bytes_sent, tags)

    def ended(self, call: TracedCall) -> None:
        """Counts what came of it."""
        tags = {"group": call.group, "method": call.method}
        self._seconds.observe(call.seconds, tags)
        if call.error:
            self._failed.inc(1, tags)
        if call.bytes_in:
            self._bytes_in.inc(call.bytes_in, tags)
