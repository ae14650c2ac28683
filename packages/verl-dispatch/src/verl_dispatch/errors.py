"""One class per cause; each builds its message from the facts: where, what was expected, what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_protocol import errors as protocol_errors
from verl_protocol.errors import PortableError

__all__ = [
    "AnswerNotBatchError",
    "AnswerRowsError",
    "AnswersDifferError",
    "CallOptionError",
    "CallTimeout",
    "DispatchResultError",
    "EntryCountError",
    "IncompletePairError",
    "InvalidModeError",
    "MeshError",
    "MethodOverrideError",
    "MixedOrderWarning",
    "NoBatchError",
    "NoInstanceMethodError",
    "NotPicklableError",
    "NotTheOwnerError",
    "RankSetError",
    "RefusedPairError",
    "RegisterOptionError",
    "ReservedNameError",
    "SelectedRanksError",
    "UnequalRowsError",
    "UnevenRowsError",
    "UnknownMemberError",
    "UnknownMeshError",
    "UnknownMethodError",
    "UnknownRoleError",
    "UnsplittableArgumentError",
    "WorkerFailure",
    "WorkerGroupError",
]


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


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


# --- modes and registration -------------------------------------------------------------------------------


class UnknownMemberError(PortableError, KeyError, AttributeError):
    """A name that a dynamic enum does not have."""

    def __init__(self, enum: str, name: str, known: Sequence[str]) -> None:
        found = difflib.get_close_matches(str(name).upper(), known, n=1)
        maybe = f"; maybe {found[0]!r}?" if found else ""
        super().__init__(f"{enum} has no member {name!r}{maybe}; known members: {_names(known)}")


class InvalidModeError(PortableError, TypeError):
    """A value given where a mode is expected."""

    def __init__(self, parameter: str, given: object, known: Iterable[str]) -> None:
        super().__init__(
            f"{parameter} must be a registered member (known: {_names(known)})"
            + (" or a dict with 'dispatch_fn' and 'collect_fn'" if parameter == "dispatch_mode" else "")
            + f", got {given!r}"
        )


class IncompletePairError(PortableError, ValueError, TypeError):
    """A dispatch/collect pair that lacks a function, or holds something that cannot be called."""

    def __init__(self, mode: str, problem: str) -> None:
        super().__init__(
            f"dispatch mode {mode} needs a callable 'dispatch_fn' and a callable 'collect_fn': {problem}; "
            "give both with register_dispatch_mode, update_dispatch_mode or a dict of exactly these two keys"
        )


class RegisterOptionError(PortableError, TypeError):
    """An option of `register` that is not of the kind it should be."""

    def __init__(self, option: str, given: object, expected: str) -> None:
        super().__init__(f"{option} of register is {given!r}, expected {expected}")


class RefusedPairError(PortableError, ValueError):
    """An execute mode that makes no sense with a dispatch mode."""

    def __init__(self, execute: str, dispatch: str, reason: str) -> None:
        super().__init__(f"execute_mode {execute} does not go with dispatch_mode {dispatch}: {reason}")


_PAD = "auto_padding=True on the batch or in .options"

# --- arguments --------------------------------------------------------------------------------------------


class UnsplittableArgumentError(PortableError, TypeError):
    """An argument of a splitting mode that is nothing this mode can split."""

    def __init__(self, label: str, given: object, num_parts: int, expected: str) -> None:
        super().__init__(
            f"{label}, {_kind(given)}, cannot be split over {num_parts} workers: expected {expected}; "
            "wrap it in Broadcast(...) to send the same value to every worker"
        )


class EntryCountError(PortableError, ValueError):
    """A list argument whose length is not the number of workers."""

    def __init__(self, label: str, num_workers: int, given: int) -> None:
        super().__init__(
            f"{label}: {num_workers} workers need one entry each, got {given}; "
            "give one entry per worker, or Broadcast(...) to send the same value to every worker"
        )


class UnevenRowsError(PortableError, ValueError):
    """A batch whose rows do not divide evenly among the workers."""

    def __init__(self, label: str, num_rows: int, num_parts: int, *, too_few: bool = False) -> None:
        if too_few:
            text = f"are fewer than one for each of {num_parts} workers; give more, or pad the batch ({_PAD})"
        else:
            text = (
                f"cannot be split over {num_parts} workers evenly; either pad the batch ({_PAD}, or "
                'pad_dataproto_to_divisor), or make the parts uneven with .options(uneven="balanced")'
            )
        super().__init__(f"{label}: {num_rows} rows {text}")


class UnequalRowsError(PortableError, ValueError):
    """Batches of one padded, uneven or balanced call that differ in rows."""

    def __init__(self, method: str, rows: Mapping[str, int]) -> None:
        shown = ", ".join(f"{label}: {count} rows" for label, count in rows.items())
        super().__init__(
            f"the batches of a padded, uneven or balanced call of {method!r} must have equal rows, "
            f"got {shown}"
        )


class NoBatchError(PortableError, TypeError):
    """A call over a mesh without anything to split."""

    def __init__(self, method: str, mesh: str) -> None:
        super().__init__(
            f"{method!r} splits batches over mesh {mesh!r} and needs at least one batch "
            "(DataProto, TensorDict or DataProtoFuture) among its arguments, got none"
        )


class RankSetError(PortableError, ValueError):
    """ONE_TO_ONE arguments that do not name one common, valid set of ranks."""

    def __init__(self, method: str, problem: str) -> None:
        super().__init__(f"ONE_TO_ONE arguments of {method!r} must name the same ranks: {problem}")


class SelectedRanksError(PortableError, ValueError, TypeError):
    """A registered execute mode whose `select_ranks` named no valid set of ranks."""

    def __init__(self, method: str, execute: str, world_size: int, given: object) -> None:
        super().__init__(
            f"execute mode {execute} of {method!r}: select_ranks({world_size}) gave {given!r}, expected at "
            f"least one rank, each of 0..{world_size - 1} and named once"
        )


class DispatchResultError(PortableError, ValueError, TypeError):
    """A custom dispatch function that returned something a call cannot be made of."""

    def __init__(self, mode: str, problem: str) -> None:
        super().__init__(
            f"dispatch_fn of mode {mode} must return (args, kwargs) with one entry per worker in every list, "
            f"or a CallPlan: {problem}"
        )


class CallOptionError(PortableError, ValueError, TypeError):
    """An option that a call of this mode cannot honour."""

    def __init__(self, option: str, problem: str) -> None:
        super().__init__(f"option {option} cannot be honoured: {problem}")


# --- answers ----------------------------------------------------------------------------------------------


class AnswerNotBatchError(PortableError, TypeError):
    """A worker's answer that is no batch, in a mode that joins batches."""

    def __init__(self, method: str, rank: int, answer: object) -> None:
        super().__init__(
            f"{method!r} on rank {rank} answered {_kind(answer)}, but its mode joins batches "
            "(DataProto or TensorDict); return a batch, or register the method with DP_COMPUTE_METRIC to get "
            "a list of per-rank values"
        )


class AnswersDifferError(PortableError, ValueError, TypeError):
    """Answers of a mode that joins batches which do not fit together; the cause says why, part by part."""

    def __init__(self, method: str, ranks: Sequence[int], cause: BaseException) -> None:
        first = ", ".join(f"part {part} is the answer of rank {rank}" for part, rank in enumerate(ranks[:8]))
        more = ", and so on" if len(ranks) > 8 else ""
        ways = (
            "; what each rank has of its own belongs in meta_info['metrics']"
            if isinstance(cause, protocol_errors.MetaConflictError)
            else ""
        )
        super().__init__(f"the answers of {method!r} cannot be joined: {cause}; {first}{more}{ways}")


class AnswerRowsError(PortableError, ValueError):
    """An answer whose rows cannot be matched with the padded or reordered rows that were sent."""

    def __init__(self, method: str, rank: int, sent: int, returned: int, why: str) -> None:
        super().__init__(
            f"{method!r} on rank {rank} was sent {sent} rows and returned {returned}: {why}; "
            "return k rows for each row sent (the same k on every rank), or call without padding or balance"
        )


# --- meshes -----------------------------------------------------------------------------------------------


class MeshError(PortableError, ValueError):
    """A mesh whose table of ranks is not a partition with one answering rank each."""

    def __init__(self, name: str, problem: str, table: str) -> None:
        super().__init__("\n".join([f"mesh {name!r}: {problem}", *([table] if table else [])]))


class UnknownMeshError(PortableError, KeyError):
    """A mesh that no worker of the group has registered."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        super().__init__(
            f"mesh {name!r} is not registered; registered meshes: {_names(known)}; "
            "register it in the worker's constructor with "
            "_register_dispatch_collect_info(mesh_name, dp_rank, is_collect)"
        )


# --- groups -----------------------------------------------------------------------------------------------


class ReservedNameError(PortableError, ValueError):
    """A registered worker method named like something the group itself needs."""

    def __init__(self, name: str, cls: str) -> None:
        super().__init__(f"method {name!r} of {cls} is reserved by the worker group; rename the method")


class MethodOverrideError(PortableError, TypeError):
    """An override that drops or changes the registration of the method it overrides."""

    def __init__(self, cls: str, name: str, base: str, problem: str) -> None:
        super().__init__(
            f"{cls}.{name} overrides the registered {base}.{name} {problem}; "
            "decorate the override with the same modes, or give it another name"
        )


class NoInstanceMethodError(PortableError, TypeError):
    """A registered method that does not take the worker as its first argument."""

    def __init__(self, cls: str, name: str, kind: str) -> None:
        super().__init__(
            f"{cls}.{name} is registered, but is a {kind}: a group runs methods of its workers; "
            f"register a method that takes self, and call the {kind} from there"
        )


class MixedOrderWarning(UserWarning):
    """A class of plain and async methods on a backend that does not run its calls in the order sent."""

    def __init__(self, cls: str, asynchronous: Iterable[str], plain: Iterable[str]) -> None:
        super().__init__(
            f"{cls} has async methods ({_names(asynchronous)}) and plain ones ({_names(plain)}), whose calls "
            "this group runs side by side, in no particular order; wait for a result before a call that "
            "needs it, or let each worker run one call at a time"
        )


class UnknownMethodError(PortableError, AttributeError):
    """A method that the group's worker class has not registered; `roles` are those that have, if any."""

    def __init__(
        self, group: str, name: str, known: Sequence[str], hint: str = "", roles: Sequence[str] = ()
    ) -> None:
        maybe = f"; maybe {hint!r}?" if hint else ""
        ways = f"; call it on the view of its role ({_names(roles)}), which spawn gives" if roles else ""
        super().__init__(
            f"{group} has no registered method {name!r}{maybe}; registered methods: {_names(known)}{ways}"
        )


class UnknownRoleError(PortableError, KeyError):
    """A role that does not share this process."""

    def __init__(self, role: object, known: Mapping[str, str]) -> None:
        self.role, self.known = role, dict(known)
        roles = ", ".join(f"{name} ({cls})" for name, cls in known.items()) or "none"
        super().__init__(f"unknown role {role!r}; colocated roles: {roles}")


class NotTheOwnerError(PortableError, RuntimeError):
    """A group that does not own its workers, asked to end or restart them."""


class NotPicklableError(PortableError, TypeError):
    """A thing that belongs to the program that made it, about to be pickled, copied or sent to a worker."""

    def __init__(self, what: str, ways: str) -> None:
        self.what, self.ways = what, ways
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
        self.errors = dict(sorted((errors or {}).items()))
        self.failed_ranks = list(self.errors)
        self.unanswered_ranks = sorted(unanswered_ranks)
        super().__init__(self._message(reason))

    def _message(self, reason: str) -> str:
        lines = [f"group {self.group!r}, method {self.method!r}: {reason or 'failed on ' + self._where()}"]
        lines += [f"  {failure}" for failure in self.errors.values()]
        if self.unanswered_ranks:
            lines.append(f"  no answer from {_ranks(self.unanswered_ranks)}")
        first = next((failure.traceback for failure in self.errors.values() if failure.traceback), "")
        return "\n".join([*lines, _shortened(first.rstrip(), _MOST_OF_A_TRACEBACK)] if first else lines)

    def _where(self) -> str:
        return _ranks(self.failed_ranks) if self.failed_ranks else "an unknown rank"


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
        self.unanswered_ranks = sorted(unanswered_ranks)
        super().__init__(
            f"group {group!r}, method {method!r}: no answer within {timeout_s:g} s from "
            f"{_ranks(self.unanswered_ranks)}; give more time with .options(timeout_s=...)"
        )


def _kind(value: object) -> str:
    kind = type(value)
    name = kind.__name__ if kind.__module__ in ("builtins", "torch") else f"{kind.__module__}.{kind.__name__}"
    return f"of type {name}"
