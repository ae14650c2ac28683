"""Every error of this package: a class where a caller can react, a message where not.

A message says where, what was given, what was expected, and the way out.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from verl_protocol.errors import InvalidArgumentError, PortableError
from verl_protocol.errors import RowCountError as RowCountError
from verl_protocol.errors import UnevenRowsError as UnevenRowsError

E = TypeVar("E", bound=BaseException)

# A message is for reading: what a worker said in full is in the failure's `cause` and `traceback`.
_MOST_OF_A_CAUSE, _MOST_OF_A_TRACEBACK = 2_000, 20_000


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _shortened(text: str, most: int) -> str:
    """The text, or its two ends around a word on what is left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} characters left out) ... {text[-half:]}"


def maybe(name: object, known: Iterable[str], words: str = "maybe") -> str:
    """A hint at the name that is nearest to this one; empty where none is near."""
    found = difflib.get_close_matches(str(name), list(known), n=1)
    return f"; {words} {found[0]!r}?" if found else ""


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


# --- modes and registration -------------------------------------------------------------------------------


class UnknownMemberError(PortableError, KeyError, AttributeError):
    """A name that a dynamic enum does not have."""

    def __init__(self, enum: str, name: str, known: Sequence[str]) -> None:
        near = maybe(str(name).upper(), known)
        super().__init__(f"{enum} has no member {name!r}{near}; known members: {_names(known)}")


class InvalidModeError(InvalidArgumentError):
    """No mode, a mode without its functions, a function that gives what no call can be made of, or two modes
    that do not go together."""


class WorkerClassError(InvalidArgumentError):
    """A worker class, or roles of several, of which no group can be made."""


# --- arguments --------------------------------------------------------------------------------------------


class UnsplittableArgumentError(PortableError, TypeError):
    """An argument of a splitting mode that is nothing this mode can split; `way` makes it something."""

    def __init__(self, label: str, given: object, num_parts: int, expected: str, way: str = "") -> None:
        wrapped = "give Broadcast(None) where None is meant" if given is None else "wrap it in Broadcast(...)"
        super().__init__(
            f"{label}, {kind_of(given)}, cannot be split over {num_parts} workers: expected {expected}; "
            f"{way and f'{way}; '}{wrapped} to send the same value to every worker"
        )


class EntryCountError(PortableError, ValueError):
    """A list argument whose length is not the number of workers."""

    def __init__(self, label: str, num_workers: int, given: int) -> None:
        super().__init__(
            f"{label}: {num_workers} workers need one entry each, got {given}; "
            "give one entry per worker, or Broadcast(...) to send the same value to every worker"
        )


class CallOptionError(PortableError, ValueError, TypeError):
    """An option that a call of this mode cannot honour."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option} cannot be honoured: {problem}")


# --- answers ----------------------------------------------------------------------------------------------


class AnswerError(PortableError, ValueError, TypeError):
    """Answers that a mode which joins batches cannot put together; the message names method and rank."""


# --- meshes -----------------------------------------------------------------------------------------------


class MeshError(PortableError, ValueError):
    """A mesh whose table of ranks is not a partition with one answering rank each."""

    def __init__(self, name: str, problem: str, table: str = "") -> None:
        super().__init__("\n".join([f"mesh {name!r}: {problem}", *([table] if table else [])]))


class UnknownMeshError(PortableError, KeyError):
    """A mesh that no worker of the group has registered."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        super().__init__(
            f"mesh {name!r} is not registered{maybe(name, names)}; registered meshes: {_names(names)}; "
            f"add it with group.add_mesh(Mesh.from_sizes({name!r}, ...)), or in the worker's constructor "
            "with _register_dispatch_collect_info(mesh_name, dp_rank, is_collect)"
        )


# --- groups -----------------------------------------------------------------------------------------------


class MixedOrderWarning(UserWarning):
    """A class of plain and async methods on a backend that does not run its calls in the order sent."""

    def __init__(self, cls: str, asynchronous: Iterable[str], plain: Iterable[str]) -> None:
        super().__init__(
            f"{cls} has async methods ({_names(asynchronous)}) and plain ones ({_names(plain)}), whose calls "
            "this group runs side by side, in no particular order; wait for a result before a call that "
            "needs it, or let each worker run one call at a time"
        )


class UnknownMethodError(PortableError, AttributeError):
    """A method that the group's worker class has not registered; `way` is where else to look, if known."""

    def __init__(self, group: str, name: str, known: Sequence[str], hint: str = "", way: str = "") -> None:
        more = f"; {way}" if way else ""
        super().__init__(
            f"{group} has no registered method {name!r}{hint}; registered methods: {_names(known)}{more}"
        )


class UnknownRoleError(PortableError, KeyError):
    """A role that does not share this process."""

    def __init__(self, role: object, known: Mapping[str, str]) -> None:
        roles = ", ".join(f"{name} ({cls})" for name, cls in known.items()) or "none"
        super().__init__(f"unknown role {role!r}; colocated roles: {roles}")


class MissingRankVariablesError(PortableError, KeyError):
    """A worker was made outside a group and the environment does not say which rank it is."""

    def __init__(self, missing: tuple[str, ...]) -> None:
        super().__init__(
            f"cannot tell the rank of this worker: {' and '.join(missing)} not set in the environment; "
            "build the worker through a worker group, start the program with torchrun, "
            "or set RANK and WORLD_SIZE"
        )


class CollectiveError(PortableError, RuntimeError):
    """A collective in which the ranks cannot meet, or that a rank failed, left, or answered with another."""


class NotTheOwnerError(PortableError, RuntimeError):
    """A group that does not own its workers, asked to end or restart them."""


class NotPicklableError(PortableError, TypeError):
    """A thing that belongs to the program that made it, about to be pickled, copied or sent to a worker."""

    def __init__(self, what: str, ways: str) -> None:
        super().__init__(f"{what} cannot be pickled, copied or sent to a worker: {ways}")


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """What went wrong on one rank: where it ran, the exception, and its traceback as text."""

    rank: int
    node: str
    pid: int | None
    cause: BaseException
    traceback: str = ""

    def __str__(self) -> str:
        pid = "unknown" if self.pid is None else self.pid
        try:
            what = _shortened(str(self.cause), _MOST_OF_A_CAUSE)
        except Exception:  # an exception of the user's that cannot say what it is
            what = "(it cannot be shown)"
        return f"rank {self.rank} (node {self.node}, pid {pid}): {type(self.cause).__name__}: {what}"


class WorkerGroupError(PortableError, RuntimeError):
    """A call that at least one worker failed, or that a broken or closed group refused.

    Attributes:
        group: name of the group.
        method: name of the method.
        errors: the failures by rank.
        failed_ranks: ranks that raised or died, sorted.
        unanswered_ranks: ranks that had not answered when the call ended, sorted.
    """

    def __init__(
        self,
        group: str,
        method: str,
        errors: Mapping[int, WorkerFailure] | None = None,
        unanswered_ranks: Sequence[int] = (),
        *,
        reason: str = "",
    ) -> None:
        self.group = group
        self.method = method
        self.errors: dict[int, WorkerFailure] = dict(sorted((errors or {}).items()))
        self.failed_ranks: list[int] = list(self.errors)
        self.unanswered_ranks: list[int] = sorted(unanswered_ranks)
        super().__init__(self._message(reason))

    def _message(self, reason: str) -> str:
        where = _ranks(self.failed_ranks) if self.failed_ranks else "an unknown rank"
        lines = [f"group {self.group!r}, method {self.method!r}: {reason or f'failed on {where}'}"]
        lines += [f"  {failure}" for failure in self.errors.values()]
        if self.unanswered_ranks:
            lines.append(f"  no answer from {_ranks(self.unanswered_ranks)}")
        first = next((failure.traceback for failure in self.errors.values() if failure.traceback), "")
        return "\n".join([*lines, _shortened(first.rstrip(), _MOST_OF_A_TRACEBACK)] if first else lines)


def given_to(error: E, method: str, group: str) -> E:
    """The error of a call, noted to be told where another call was given its result."""
    error.add_note(f"its result was an argument of method {method!r} of group {group!r}")
    return error


class CallTimeout(PortableError, TimeoutError):
    """A call that did not end in time; `unanswered_ranks` are those still silent.

    Attributes:
        group: name of the group.
        method: name of the method.
        timeout_s: seconds allowed.
        unanswered_ranks: ranks that had not answered, sorted.
    """

    def __init__(self, group: str, method: str, timeout_s: float, unanswered_ranks: Sequence[int]) -> None:
        self.group = group
        self.method = method
        self.timeout_s = timeout_s
        self.unanswered_ranks: list[int] = sorted(unanswered_ranks)
        super().__init__(
            f"group {group!r}, method {method!r}: no answer within {timeout_s:g} s from "
            f"{_ranks(self.unanswered_ranks)}; give more time with .options(timeout_s=...)"
        )

    def within(self, timeout_s: float) -> CallTimeout:
        """The same for another time limit: that of all that was waited for."""
        return CallTimeout(self.group, self.method, timeout_s, self.unanswered_ranks)


def kind_of(value: object) -> str:
    """The type of a value, in words for a message."""
    kind = type(value)
    name = kind.__name__ if kind.__module__ in ("builtins", "torch") else f"{kind.__module__}.{kind.__name__}"
    return f"of type {name}"
