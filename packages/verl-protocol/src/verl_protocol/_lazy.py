"""Public names of a package that are imported when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["names_on_demand"]


def names_on_demand(namespace: dict[str, Any], homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A `__getattr__` for a package, which keeps what it has imported.

    Args:
        namespace: `globals()` of the package.
        homes: the module of the package that each public name is in.
    """
    package = namespace["__name__"]

    def __getattr__(name: str) -> Any:  # noqa: N807
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = namespace[name] = getattr(import_module(f"{package}.{home}"), name)
        return value

    return __getattr__
