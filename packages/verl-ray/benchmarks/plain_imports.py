"""Actors that import what a worker imports, and nothing else: this file is all that their processes read."""


class TorchActor:
    """Imports torch when it is made."""

    def __init__(self) -> None:
        import torch

        self.threads = torch.get_num_threads()

    def ping(self) -> int:
        return self.threads


class BatchActor(TorchActor):
    """Imports torch and tensordict when it is made."""

    def __init__(self) -> None:
        super().__init__()
        import tensordict  # noqa: F401
