"""PPO and GRPO post-training on the three packages."""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("verl-examples")
