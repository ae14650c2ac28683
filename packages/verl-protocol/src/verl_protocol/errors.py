"""Every error of this package: one class per cause, each building its message from the facts."""

from __future__ import annotations

import reprlib

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 80
_SHORT.maxlist = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxtuple = 6


def short(value: object) -> str:
    """A bounded `repr` for messages."""
    return _SHORT.repr(value)


class InvalidIndexError(TypeError, IndexError):
    """An index that names no rows, whatever the batch."""

    def __init__(self, index: object, reason: str) -> None:
        super().__init__(f"cannot take rows by {short(index)}: {reason}")


class RowOutOfRangeError(IndexError):
    """A row that the batch does not have."""

    def __init__(self, row: int, num_rows: int) -> None:
        super().__init__(f"row {row} does not exist: the batch has {num_rows} rows")


class MaskLengthError(IndexError):
    """A boolean mask that has not one entry per row."""

    def __init__(self, length: int, num_rows: int) -> None:
        super().__init__(
            f"the mask has {length} entries, the batch has {num_rows} rows: it needs one per row"
        )


class InvalidCountError(ValueError):
    """A size, a number of pieces or a number of times that is not a whole number in range."""

    def __init__(self, argument: str, value: object, least: int) -> None:
        super().__init__(f"{argument} must be a whole number of at least {least}, got {short(value)}")


class StridedNestedError(TypeError):
    """A nested tensor whose rows cannot be found without looping over them."""

    def __init__(self, key: str | None = None) -> None:
        where = "a column" if key is None else f"column {key!r}"
        super().__init__(
            f"{where} is a nested tensor of the strided layout; build it with layout=torch.jagged "
            "(for example torch.nested.as_nested_tensor(rows, layout=torch.jagged))"
        )


class UnequalPartsError(ValueError):
    """Rows that cannot be spread over parts of equal size."""

    def __init__(self, num_rows: int, num_parts: int) -> None:
        super().__init__(
            f"{num_rows} rows cannot be spread over {num_parts} parts of equal size; pad them to a multiple of "
            f"{num_parts}, or allow sizes to differ"
        )


class WeightsError(ValueError):
    """Weights that rows cannot be balanced by."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot balance rows by these weights: {reason}")
