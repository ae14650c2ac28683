"""Worker groups on Ray: resource pools, placement, actors and failures."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("verl-ray")
