"""What one call may ask for beyond its arguments, and what dispatch functions know of their call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from verl_protocol.arguments import seconds

from verl_dispatch.errors import CallOptionError, maybe
from verl_dispatch.modes import Execute

ROW_OPTIONS = ("uneven", "balance", "auto_padding")
"""The options about the layout of rows, which only a call that splits batches can honour."""


class OptionChanges(TypedDict, total=False):
    """The options that leave the types of a call as they are; see `CallOptions`."""

    timeout_s: float | None
    uneven: Literal["balanced"] | None
    balance: str | None
    equal_size: bool
    auto_padding: bool | None
    read_only: bool | None
    remote: bool | None
    progress: bool


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of one call, set with `group.method.options(...)`.

    Attributes:
        timeout_s: seconds from the start of the call until it gives up with CallTimeout; None, or infinity,
            waits for ever.
        uneven: "balanced" lets the ranks' rows differ by at most one; None makes such a batch an error.
        balance: name of a column whose sums per rank shall be near-equal; the input order is restored on
            collect.
        equal_size: with `balance`: every rank gets the same number of rows.
        auto_padding: True pads every batch of the call, False none; None asks the batches.
        blocking: overrides what `register` said; None keeps it.
        execute_mode: overrides what `register` said; None keeps it.
        read_only: True lets workers share one read-only copy of what several ranks get; None keeps what
            `register` said.
        remote: True leaves large columns of the answers where they were made; None keeps what `register` or
            the group said.
        progress: True shows on standard error which ranks have answered, while the call is waited for: a bar
            where rich is installed, else lines.
    """

    timeout_s: float | None = None
    uneven: Literal["balanced"] | None = None
    balance: str | None = None
    equal_size: bool = False
    auto_padding: bool | None = None
    blocking: bool | None = None
    execute_mode: Execute | None = None
    read_only: bool | None = None
    remote: bool | None = None
    progress: bool = False

    def __post_init__(self) -> None:
        for name, (kind, expected) in _KINDS.items():
            value = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise _unexpected(name, value, expected)
        if self.uneven not in (None, "balanced"):
            raise _unexpected("uneven", self.uneven, '"balanced" or None')
        try:
            # Infinity, and what no clock counts, is no limit.
            object.__setattr__(self, "timeout_s", seconds("timeout_s", self.timeout_s, above_zero=True))
        except (TypeError, ValueError):
            raise _unexpected("timeout_s", self.timeout_s, "a number of seconds above 0, or None") from None
        if self.equal_size and self.balance is None:
            raise CallOptionError("equal_size=True", "it says how to balance, but no balance column is given")

        ways = self.row_options
        if len(ways) > 1 and not (self.equal_size and ways == ("balance", "auto_padding")):
            raise CallOptionError(
                " and ".join(ways), "these are different ways to lay out the rows; choose one"
            )

    @property
    def row_options(self) -> tuple[str, ...]:
        """The options of ROW_OPTIONS that are set."""
        return tuple([name for name in ROW_OPTIONS if getattr(self, name)])

    def changed(self, **changes: Any) -> CallOptions:
        """A copy with some options changed.

        Raises:
            TypeError: an option that does not exist.
        """
        known = [field.name for field in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            near = maybe(unknown[0], known, "did you mean")
            problem = f"there is no such option{near}; known options: {', '.join(known)}"
            raise CallOptionError(unknown[0], problem)
        return replace(self, **changes)


def _unexpected(name: str, value: object, expected: str) -> CallOptionError:
    return CallOptionError(f"{name}={value!r}", f"expected {expected}")


_KINDS: Mapping[str, tuple[type, str]] = {
    "balance": (str, "the name of a column, or None"),
    "execute_mode": (Execute, "a member of Execute, or None"),
    **dict.fromkeys(("equal_size", "progress"), (bool, "True or False")),
    **dict.fromkeys(("auto_padding", "blocking", "read_only", "remote"), (bool, "True, False or None")),
}

DEFAULT_OPTIONS = CallOptions()


# --- What dispatch functions know of the call they work for, also in a custom mode ------------------------


@dataclass(slots=True, eq=False)
class Labels:
    """Names the arguments of a method, from number `start` on; without one, by position and keyword only."""

    method: str = ""
    parameters: Sequence[str] = ()
    start: int = 0

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
        return [*map(self.positional, range(len(args))), *map(self.keyword, kwargs)]

    def _of(self) -> str:
        return f" of method {self.method!r}" if self.method else ""


UNNAMED = Labels()


@dataclass(slots=True)
class CallScope:
    """Argument names and options of one call, and whether a dispatch function has asked for the options."""

    labels: Labels
    options: CallOptions
    asked: bool = False


CURRENT_CALL: ContextVar[CallScope | None] = ContextVar("verl_dispatch_call", default=None)
"""Set while a dispatch function runs, which gets no more than the group and the caller's arguments."""


def current_labels() -> Labels:
    """How to name the arguments of the current call."""
    scope = CURRENT_CALL.get()
    return UNNAMED if scope is None else scope.labels


def current_options() -> CallOptions:
    """The options of the current call."""
    scope = CURRENT_CALL.get()
    if scope is None:
        return DEFAULT_OPTIONS
    scope.asked = True
    return scope.options
