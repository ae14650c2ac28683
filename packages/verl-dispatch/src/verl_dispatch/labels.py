"""How messages name an argument."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Labels"]


class Labels:
    """Names the arguments of one method; without a method, by position and keyword only."""

    __slots__ = ("method", "parameters", "start")

    def __init__(self, method: str = "", parameters: Sequence[str] = (), start: int = 0) -> None:
        self.method = method
        self.parameters = parameters
        self.start = start

    def positional(self, index: int) -> str:
        """Positional argument `index`, for example `argument 0 ('batch') of method 'update'`."""
        index += self.start
        name = f" ({self.parameters[index]!r})" if index < len(self.parameters) else ""
        return f"argument {index}{name}{self._of()}"

    def keyword(self, name: str) -> str:
        """Keyword argument `name`."""
        return f"argument {name!r}{self._of()}"

    def all(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
        """Names of all these arguments, positional ones first."""
        return [
            *(self.positional(index) for index in range(len(args))),
            *(self.keyword(name) for name in kwargs),
        ]

    def after(self, count: int) -> Labels:
        """The same names for what follows the first `count` arguments."""
        return Labels(self.method, self.parameters, self.start + count)

    def _of(self) -> str:
        return f" of method {self.method!r}" if self.method else ""


UNNAMED = Labels()
