"""Values as users give them: defaults told from the same value said outright, counts told from the rest."""

from __future__ import annotations

from typing import SupportsIndex

__all__ = ["UnsaidFloat", "UnsaidInt", "UnsaidStr", "as_count", "is_unsaid"]


class UnsaidInt(int):
    """An int that nobody asked for: the default of a parameter."""


class UnsaidFloat(float):
    """A float that nobody asked for: the default of a parameter."""


class UnsaidStr(str):
    """A str that nobody asked for: the default of a parameter."""


def is_unsaid(value: object) -> bool:
    """Whether the caller left the parameter out.

    >>> is_unsaid(UnsaidInt(10)), is_unsaid(10), UnsaidInt(10) == 10
    (True, False, True)
    """
    return isinstance(value, (UnsaidInt, UnsaidFloat, UnsaidStr))


def as_count(value: object) -> int | None:
    """The value as a whole number of at least 1 (numpy's included), None if it is anything else.

    >>> as_count(3), as_count(0), as_count(True), as_count("3")
    (3, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        return None
    number = value.__index__()
    return number if number >= 1 else None
