"""How one call on a worker group is spread over its workers and its answers put together."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("verl-dispatch")
