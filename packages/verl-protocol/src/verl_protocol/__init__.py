"""DataProto: the batch that travels between a driver and its workers.

Nothing here needs Ray. What is imported is imported when first asked for: torch with the first class that
needs it, tensordict, which takes seconds more, when a `.batch` is first read. The names are in the stub.
"""

from importlib.metadata import version

from verl_protocol._lazy import names_of_stub

__version__ = version("verl-protocol")
__getattr__, __dir__, __all__ = names_of_stub(__name__)
