"""DataProto: the batch that travels between a driver and its workers."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("verl-protocol")
