"""Actors that import what a worker imports, and nothing else: this file is all that their processes read."""


class BareActor:
    """Imports nothing."""

    def ping(self) -> int:
        return 1


class TorchActor(BareActor):
    """Imports torch when it is made."""

    def __init__(self) -> None:
        import torch

        self.threads = torch.get_num_threads()


class BatchActor(TorchActor):
    """Imports torch and tensordict when it is made."""

    def __init__(self) -> None:
        super().__init__()
        import tensordict  # noqa: F401
