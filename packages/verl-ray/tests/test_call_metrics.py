"""What a group with `metrics=True` counts; no Ray is needed to see it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, WorkerGroupError, register
from verl_protocol import DataProto
from verl_ray.calls import metrics


class Echo(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def same(self, batch: DataProto) -> DataProto:
        return batch

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self) -> None:
        raise ValueError("no")


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counter[Any]:
    found: Counter[Any] = Counter()

    class Instrument:
        def __init__(self, name: str, *_: Any) -> None:
            self.name = name

        def inc(self, value: float, tags: dict[str, str]) -> None:
            found[self.name, tags["group"], tags["method"]] += value  # type: ignore[assignment]

        def observe(self, value: float, tags: dict[str, str]) -> None:
            assert value > 0
            self.inc(1, tags)

    monkeypatch.setattr(metrics, "Counter", Instrument)
    monkeypatch.setattr(metrics, "Histogram", Instrument)
    return found


def test_calls_bytes_seconds_and_failures_are_counted(counted: Counter[Any]) -> None:
    with LocalWorkerGroup(Echo, 2, name_prefix="g") as made:
        group: Any = made
        group._observers.append(metrics.CallMetrics())
        group.same(DataProto.from_dict({"x": torch.zeros(4, 2)}))
        group.same.submit(DataProto.from_dict({"x": torch.zeros(2, 2)})).result()
        with pytest.raises(WorkerGroupError):
            group.fail()
    assert counted == {
        ("verl_calls", "Echo g", "same"): 2,
        ("verl_call_seconds", "Echo g", "same"): 2,
        ("verl_call_bytes_out", "Echo g", "same"): 48,
        ("verl_call_bytes_in", "Echo g", "same"): 48,
        ("verl_calls", "Echo g", "fail"): 1,
        ("verl_call_seconds", "Echo g", "fail"): 1,
        ("verl_failed_calls", "Echo g", "fail"): 1,
    }
