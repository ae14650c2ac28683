"""What one call may ask for beyond its arguments."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypedDict

from verl_dispatch.errors import CallOptionError
from verl_dispatch.modes import Execute

__all__ = ["DEFAULT_OPTIONS", "CallOptions"]


class OptionChanges(TypedDict, total=False):
    """The options that leave the types of a call as they are; see `CallOptions`."""

    timeout_s: float | None
    uneven: Literal["balanced"] | None
    balance: str | None
    equal_size: bool
    auto_padding: bool | None
    read_only: bool | None


@dataclass(frozen=True, slots=True)
class CallOptions:
    """Options of one call, set with `group.method.options(...)`.

    Attributes:
        timeout_s: seconds until the call gives up with CallTimeout; None waits for ever.
        uneven: "balanced" lets the ranks' rows differ by at most one; None makes such a batch an error.
        balance: name of a column whose sums per rank shall be near-equal; the input order is restored on
            collect.
        equal_size: with `balance`: every rank gets the same number of rows.
        auto_padding: True pads every batch of the call, False none; None asks the batches.
        blocking: overrides what `register` said; None keeps it.
        execute_mode: overrides what `register` said; None keeps it.
        read_only: True lets workers share one read-only copy of what several ranks get; None keeps what
            `register` said.
    """

    timeout_s: float | None = None
    uneven: Literal["balanced"] | None = None
    balance: str | None = None
    equal_size: bool = False
    auto_padding: bool | None = None
    blocking: bool | None = None
    execute_mode: Execute | None = None
    read_only: bool | None = None

    def __post_init__(self) -> None:
        if self.uneven not in (None, "balanced"):
            raise CallOptionError(f"uneven={self.uneven!r}", 'known values are "balanced" and None')
        if self.timeout_s is not None and not self.timeout_s > 0:
            raise CallOptionError(f"timeout_s={self.timeout_s!r}", "it must be a positive number of seconds")
        if self.equal_size and self.balance is None:
            raise CallOptionError("equal_size=True", "it says how to balance, but no balance column is given")

        ways = [name for name in ("uneven", "balance", "auto_padding") if getattr(self, name)]
        if len(ways) > 1 and not (self.equal_size and ways == ["balance", "auto_padding"]):
            raise CallOptionError(
                " and ".join(ways), "these are different ways to lay out the rows; choose one"
            )

    @property
    def splits(self) -> bool:
        """Whether an option is set that only a mode which splits batches can honour."""
        return bool(self.uneven or self.balance or self.auto_padding)

    def changed(self, **changes: Any) -> CallOptions:
        """A copy with some options changed.

        Raises:
            TypeError: an option that does not exist.
        """
        known = [field.name for field in fields(self)]
        unknown = sorted(set(changes) - set(known))
        if unknown:
            raise CallOptionError(unknown[0], f"there is no such option; known options: {', '.join(known)}")
        return replace(self, **changes)


DEFAULT_OPTIONS = CallOptions()
