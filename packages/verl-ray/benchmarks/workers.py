"""The worker of the benchmark, as a user of the library would write it."""

from typing import Any

from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto


class BenchWorker(Worker):
    """Counts and echoes; the methods differ only in how they are registered."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self, value: int) -> int:
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def broadcast(self, data: DataProto) -> int:
        return len(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    def broadcast_read_only(self, data: DataProto) -> int:
        return len(data)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def load(self, state: dict[str, Any]) -> int:
        return len(state)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    def load_read_only(self, state: dict[str, Any]) -> int:
        return len(state)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def echo(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def echo_later(self, data: DataProto) -> DataProto:
        return data

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def count(self, data: DataProto) -> int:
        return len(data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, read_only=True)
    def count_read_only(self, data: DataProto) -> int:
        return len(data)
