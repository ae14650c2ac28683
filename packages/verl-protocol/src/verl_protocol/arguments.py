"""Counts and flags that users hand in, checked before anything is done with them."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

from verl_protocol.errors import InvalidCountError, NotABoolError


def whole_number(argument: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`; `argument` is its name in the error.

    Raises:
        InvalidCountError: `value` is no whole number, or too small.
    """
    if isinstance(value, (bool, np.bool_)):
        raise InvalidCountError(argument, value, least)
    try:
        number = operator.index(value)
    except TypeError:
        raise InvalidCountError(argument, value, least) from None
    if number < least:
        raise InvalidCountError(argument, value, least)
    return number


def flag(argument: str, value: Any) -> bool:
    """`value` as a bool; a string such as "no" is none, though it counts as true.

    Raises:
        NotABoolError: `value` is no bool.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise NotABoolError(argument, value)
    return bool(value)
