"""Rewards of answers as texts: what an answer must match, or a function of the user's own.

Imports nothing heavy, so that the workers which judge start in a moment.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from importlib import import_module

from verl_examples.errors import SettingsError

Reward = Callable[[str, str], float]
"""`reward(answer, expected)`: the answer's text without special tokens, and that of the question file."""

_NUMBER = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?")


def exact(answer: str, expected: str) -> float:
    """1 for the very text, spaces around it aside."""
    return float(answer.strip() == expected.strip())


def last_number(answer: str, expected: str) -> float:
    """1 if the last number of both texts is the same.

    >>> last_number("17 apples and 3 make 1,020.0", "1020")
    1.0
    """
    numbers = [_NUMBER.findall(text)[-1:] for text in (answer, expected)]
    values = [float(found[0].replace(",", "")) for found in numbers if found]
    return float(len(values) == 2 and values[0] == values[1])


def matching(pattern: str) -> Reward:
    """1 if group 1 of the pattern's last match in the answer is what is expected."""
    compiled = re.compile(pattern)

    def matches(answer: str, expected: str) -> float:
        found = [match.group(1) for match in compiled.finditer(answer)]
        return float(bool(found) and found[-1] is not None and found[-1].strip() == expected.strip())

    return matches


def reward_named(name: str) -> Reward:
    """The reward that an option names: exact, last-number, regex:PATTERN or module:function.

    Raises:
        SettingsError: none of these, a pattern without a group, or a function that cannot be imported.
    """
    known: dict[str, Reward] = {"exact": exact, "last-number": last_number}
    if name in known:
        return known[name]
    kind, _, rest = name.partition(":")
    if kind == "regex":
        return matching(_checked_pattern(rest))
    if rest:
        return _imported(name, kind, rest)
    raise SettingsError("reward", name, "exact, last-number, regex:PATTERN or module:function")


def _checked_pattern(pattern: str) -> str:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise SettingsError("reward", f"regex:{pattern}", f"a regular expression ({error})") from error
    if groups < 1:
        raise SettingsError("reward", f"regex:{pattern}", "a group, in (), around the result")
    return pattern


def _imported(name: str, module: str, function: str) -> Reward:
    # A console script has no module of the folder that it is called in.
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Reward = getattr(import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise SettingsError("reward", name, f"a function that can be imported ({error})") from error
    return found
