"""How one call on a worker group is spread over its workers and its answers put together."""

from importlib.metadata import version

from verl_protocol._lazy import names_of_stub

__version__ = version("verl-dispatch")
__getattr__, __dir__, __all__ = names_of_stub(__name__)
