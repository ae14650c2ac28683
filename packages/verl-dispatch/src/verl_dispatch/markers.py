"""What a caller wraps an argument in to say how it travels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Broadcast"]

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Broadcast(Generic[T_co]):
    """Marks an argument of a splitting mode that every worker gets as it is.

    Example:
        >>> Broadcast({"lr": 1e-6}).value
        {'lr': 1e-06}
    """

    value: T_co


def unwrapped(value: object) -> object:
    """What is inside a marker, or the value itself."""
    return value.value if isinstance(value, Broadcast) else value
