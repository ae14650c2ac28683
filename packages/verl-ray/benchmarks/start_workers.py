"""Workers whose start is measured: each imports as much as the plain actor beside it, see `plain_imports`."""

from typing import Any

from verl_dispatch import Dispatch, Worker, register


class BareWorker(Worker):
    """Imports nothing."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ping(self, value: int) -> int:
        return value


class TorchWorker(BareWorker):
    """Imports torch when it is made."""

    def __init__(self) -> None:
        super().__init__()
        import torch

        self.threads = torch.get_num_threads()


class BatchWorker(TorchWorker):
    """Imports tensordict as well, when it reads a batch."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def touch(self, data: Any) -> int:
        return len(data.batch.keys())
