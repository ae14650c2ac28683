"""What users hand in, checked before it is used: counts, flags, names, time limits, dicts, TensorDicts."""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterable, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from verl_protocol.errors import InvalidTypeError, InvalidValueError, short
from verl_protocol.kinds import is_tensordict

if TYPE_CHECKING:
    from tensordict import TensorDict


def whole_number(argument: str, value: Any, least: int) -> int:
    """`value` as an int of at least `least`; `argument` is its name in the error.

    Raises:
        InvalidValueError: `value` is no whole number, or too small.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least or isinstance(value, (bool, np.bool_)):
        raise InvalidValueError(f"{argument} must be a whole number of at least {least}, got {short(value)}")
    return number


def whole_numbers(argument: str, values: Any, least: int) -> list[int]:
    """`values` as a list of ints of at least `least`; none for None.

    Raises:
        InvalidTypeError: `values` cannot be gone through.
        InvalidValueError: one is no whole number, or too small.
    """
    if values is not None and not isinstance(values, Iterable):
        raise InvalidTypeError(f"{argument} must be a list of whole numbers, got {short(values)}")
    return [whole_number(argument, value, least) for value in values or ()]


def text(argument: str, value: Any) -> str:
    """`value`, if it is a str.

    Raises:
        InvalidTypeError: it is something else.
    """
    if not isinstance(value, str):
        raise InvalidTypeError(f"{argument} must be a str, got {short(value)}")
    return value


def texts(argument: str, values: Any) -> list[str]:
    """`values` as a list of strs: one str stands for itself, None for none.

    Raises:
        InvalidTypeError: they are something else.
    """
    if isinstance(values, str):
        return [values]
    if values is not None and not isinstance(values, Iterable):
        raise InvalidTypeError(f"{argument} must be a list of strs, got {short(values)}")
    return [text(argument, value) for value in values or ()]


def flag(argument: str, value: Any) -> bool:
    """`value` as a bool; a string such as "no" is none, though it counts as true.

    Raises:
        InvalidTypeError: `value` is no bool.
    """
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidTypeError(f"{argument} must be True or False, got {short(value)}")
    return bool(value)


def seconds(argument: str, value: Any, *, above_zero: bool = False) -> float | None:
    """`value` as a time limit; None where there is none: for None, infinity, and what no lock can wait for.

    Raises:
        InvalidTypeError: `value` is no number.
        InvalidValueError: `value` is negative or no number of seconds (NaN); 0 too where `above_zero`.
    """
    if value is None:
        return None
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise InvalidTypeError(f"{argument} must be a number of seconds, or None, got {short(value)}")
    limit: Any = value
    if not (limit > 0 or (limit == 0 and not above_zero)):
        least = "above 0" if above_zero else "of at least 0"
        raise InvalidValueError(
            f"{argument} must be a number of seconds {least}, or None for no limit, got {short(value)}"
        )
    return None if limit >= threading.TIMEOUT_MAX else float(limit)


def tensordict(argument: str, value: Any) -> TensorDict:
    """`value`, if it is a TensorDict.

    Raises:
        InvalidTypeError: it is something else.
    """
    if not is_tensordict(value):
        raise InvalidTypeError(f"{argument} must be a TensorDict, got {type(value).__name__}")
    given: TensorDict = value
    return given


def mapping(argument: str, value: Any) -> Mapping[str, Any]:
    """`value`, if it is a dict or another mapping.

    Raises:
        InvalidTypeError: it is none.
    """
    if not isinstance(value, Mapping):
        raise InvalidTypeError(f"{argument} must be a dict, got {type(value).__name__}")
    return value
