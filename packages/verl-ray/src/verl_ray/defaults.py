"""Default values that a function can tell from the same value said outright."""

from __future__ import annotations

__all__ = ["UnsaidFloat", "UnsaidInt", "UnsaidStr", "is_unsaid"]


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
