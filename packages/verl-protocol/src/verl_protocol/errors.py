"""Every error of this package: a class where a caller can react, a message where not.

A message names the argument, what was given, what was expected, and the way out.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxtuple = 6


def short(value: object) -> str:
    """A bounded `repr` for messages."""
    return _SHORT.repr(value)


def counted(number: int, thing: str) -> str:
    """So many of a thing, in words.

    >>> counted(1, "row"), counted(0, "row")
    ('1 row', '0 rows')
    """
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _rebuild(cls: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class PortableError(Exception):
    """The base of every error of this workspace: it crosses process borders with all that it holds."""

    def __str__(self) -> str:
        # KeyError shows its message as a repr, quotes and all.
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, dict(self.__dict__))


# --- Bad arguments ----------------------------------------------------------------------------------------
# What a caller can only correct in the program has no class of its own, but one by its builtin base.


class InvalidTypeError(PortableError, TypeError):
    """An argument of another type than expected."""


class InvalidValueError(PortableError, ValueError):
    """An argument whose value cannot be honoured."""


class InvalidArgumentError(InvalidTypeError, InvalidValueError):
    """An argument that is of a wrong type, or has a wrong value."""


class DeviceNameError(InvalidValueError, RuntimeError):
    """A device that torch does not know."""


class InvalidIndexError(InvalidTypeError, IndexError):
    """An index that names no rows, whatever the batch."""

    def __init__(self, index: object, reason: str) -> None:
        super().__init__(f"cannot take rows by {short(index)}: {reason}")


class RowOutOfRangeError(PortableError, IndexError):
    """A row that the batch does not have."""

    def __init__(self, row: int, num_rows: int) -> None:
        super().__init__(f"row {row} does not exist: the batch has {counted(num_rows, 'row')}")


_MANY = 40


class UnknownKeyError(PortableError, KeyError):
    """A key that the batch does not have."""

    def __init__(self, keys: Sequence[str], kind: str, known: Iterable[str], way: str = "") -> None:
        names = sorted(map(str, known))
        more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
        super().__init__(f"no {kind} {', '.join(map(repr, keys))}; there are {names[:_MANY]}{more}{way}")


class KeyConflictError(PortableError, KeyError, ValueError):
    """Keys that cannot stand side by side, or dicts whose keys do not go together."""


# --- Columns and parts that do not fit --------------------------------------------------------------------


class ColumnError(InvalidArgumentError):
    """A value that cannot be a column, or a column with which a thing cannot be done."""


class SchemaError(PortableError, ValueError):
    """Parts whose columns do not fit together, batches that hold one column with different values, or columns
    that are not as they are declared."""


class RowCountError(PortableError, ValueError):
    """Columns, batches or parts that have not the rows that they should have."""


class UnevenRowsError(PortableError, ValueError):
    """Rows that do not divide evenly; pad them, or allow parts of different sizes.

    Attributes:
        num_rows: the rows there are.
        num_parts: what they do not divide by.
    """

    num_rows: int
    num_parts: int

    def __init__(self, message: str, num_rows: int, num_parts: int) -> None:
        self.num_rows, self.num_parts = num_rows, num_parts
        super().__init__(message)


class NothingToConcatError(PortableError, ValueError):
    """An empty list of parts."""

    def __init__(self) -> None:
        super().__init__(
            "nothing to concatenate: the list of parts is empty, so there are no columns to go by"
        )


class MetaConflictError(PortableError, ValueError):
    """Parts that hold different values under one key of meta_info."""

    def __init__(self, key: str, values: Mapping[int | str, Any]) -> None:
        listed = ", ".join(f"{where} has {short(value)}" for where, value in of_places(values).items())
        rules = (
            f", or declare how to join it, for example merge={{{key!r}: 'list'}} (first, list, mean, sum, "
            "min, max or a callable)"
        )
        # Only parts are joined by rules; union has none.
        way_out = "drop the key" + (rules if all(isinstance(where, int) for where in values) else " from one")
        super().__init__(f"meta_info[{key!r}] differs: {listed}; {way_out}")


def of_places(facts: Mapping[int | str, Any]) -> dict[str, Any]:
    """Facts by the words for where each was found; a number is the place of a part."""
    return {f"part {where}" if isinstance(where, int) else where: fact for where, fact in facts.items()}


_FEW = 5


def different_row_counts(counts: Mapping[str, int]) -> str:
    """The message about columns that have these numbers of rows: a few of each number, in their order."""
    met: Counter[int] = Counter()
    shown = {}
    for key, count in counts.items():
        met[count] += 1
        if met[count] <= _FEW:
            shown[key] = count
    listed = ", ".join(f"{key!r} has {count}" for key, count in shown.items())
    more = f", and so on for {len(counts) - len(shown)} more" if len(shown) < len(counts) else ""
    return f"columns differ in their number of rows: {listed}{more}"


# --- The wire and files -----------------------------------------------------------------------------------


class WireVersionError(PortableError, ValueError):
    """A payload in a format that this release cannot read."""


class UnknownDtypeError(PortableError, ValueError):
    """A payload or file with a dtype that this release of torch does not have."""


class ReadOnlyWriteError(PortableError, RuntimeError):
    """An in-place write into a tensor that was handed out for reading only; `column` names it."""

    def __init__(self, column: str) -> None:
        self.column = column
        super().__init__(
            f"{column!r} was written to in place, but it was passed read-only: its memory is shared with "
            "other readers, which now see the change too; write into a clone, or pass it without read_only"
        )


class ColumnsLost(PortableError, RuntimeError):
    """Remote columns whose rows are no longer there.

    Attributes:
        columns: what was read.
        group: name of the group whose worker made the rows; "" where the driver had stored them.
        method: the method that made them.
        rank: its rank.
        generation: how often its group had been restarted by then.
    """

    columns: str
    group: str
    method: str
    rank: int
    generation: int

    def __init__(
        self, columns: str, reason: str, group: str = "", method: str = "", rank: int = 0, generation: int = 0
    ) -> None:
        self.columns, self.group, self.method = columns, group, method
        self.rank, self.generation = rank, generation
        maker = f"rank {rank} of group {group!r} (generation {generation}) made them in method {method!r}"
        super().__init__(
            f"rows of {columns} are no longer there: {reason}; "
            f"{maker if group else 'the driver had put them into the store'}; "
            "make them again, or keep what must outlive a lost node with .local()"
        )


class FileFormatError(PortableError, ValueError):
    """A file that is none of ours, is damaged, or is in a format of another release."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"cannot load {path!r}: {reason}")


class PickleRefusedError(InvalidArgumentError):
    """What only pickle can write or read, without leave to do so: `allow_pickle=True` on both sides."""
