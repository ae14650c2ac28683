"""Workers whose class needs no torch, on a cluster of their own: others' processes may have imported it."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import ray
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, WorkerGroupError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(120)]


class Rules(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def echo(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def later(self, value: Any) -> Any:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def loaded(self) -> set[str]:
        return {"torch", "tensordict"}.intersection(sys.modules)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def judge(self, data: Any) -> Any:
        data.non_tensor_batch["right"] = data.non_tensor_batch["answer"] == "4"
        return data


@pytest.mark.usefixtures("no_ray")
def test_torch_is_imported_when_a_batch_comes_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_preload_python_modules", raising=False)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    with (
        RayResourcePool([1], use_gpu=False) as pool,
        RayWorkerGroup(pool, RayClassWithInitArgs(Rules)) as group,
    ):
        values: list[Any] = [3, {"reward": 0.5, "words": ["a"]}, [1, (2, None)], np.arange(1000)]
        for value in values:
            np.testing.assert_equal([group.echo(value), group.later(value)], [[value], [value]])
            np.testing.assert_equal(group.echo.options(read_only=True)(value), [value])
        with pytest.raises(WorkerGroupError, match="no such rule"):
            group.echo(ValueError("no such rule"))
        assert group.loaded() == [set()]
        judged = group.judge(DataProto.from_dict(non_tensors={"answer": ["4", "5"]}))
        assert judged.non_tensor_batch["right"].tolist() == [True, False]
        assert group.loaded() == [{"torch"}]
