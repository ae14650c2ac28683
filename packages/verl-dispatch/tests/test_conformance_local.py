"""The in-process group passes the conformance suite, with ranks that take turns and with ranks in threads."""

from collections.abc import Mapping
from typing import Any

import pytest
from verl_dispatch.conformance import *  # noqa: F403
from verl_dispatch.conformance import Backend
from verl_dispatch.groups.group import WorkerGroup
from verl_dispatch.local.group import LocalWorkerGroup
from verl_dispatch.workers.roles import create_colocated_worker_raw_cls


class LocalBackend(Backend):
    def __init__(self, concurrent: bool) -> None:
        self.ranks_meet = concurrent

    def make_group(self, cls: type, world_size: int, *args: Any, **kwargs: Any) -> WorkerGroup[Any, Any]:
        return LocalWorkerGroup(cls, world_size, *args, concurrent=self.ranks_meet, **kwargs)

    def make_colocated(
        self, classes: Mapping[str, type], world_size: int, *, fused: bool
    ) -> WorkerGroup[Any, Any]:
        return self.make_group(create_colocated_worker_raw_cls(classes, fused=fused), world_size)


@pytest.fixture(scope="session", params=[False, True], ids=["turns", "threads"])
def backend(request: pytest.FixtureRequest) -> Backend:
    return LocalBackend(request.param)
