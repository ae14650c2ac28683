"""Worker groups on Ray: resource pools, placement, actors and failures."""

from importlib.metadata import version

from verl_ray._clock import IMPORTED_AT as _IMPORTED_AT  # noqa: F401 - starts the clock before other imports

# isort: split
from verl_protocol._lazy import names_of_stub

__version__ = version("verl-ray")
__getattr__, __dir__, __all__ = names_of_stub(__name__)
