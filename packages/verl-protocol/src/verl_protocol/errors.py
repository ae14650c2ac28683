"""Every error of this package: one class per cause, each building its message from the facts."""

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


_FEW, _MANY = 5, 40


def _names(keys: Iterable[str]) -> str:
    """Keys in order, as many as one can read."""
    names = sorted(map(str, keys))
    return f"{names[:_MANY]}" + (f" and {len(names) - _MANY} more" if len(names) > _MANY else "")


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


# What a caller can only correct in the program, not react to at run time, has no class of its own: the
# message names the argument, what was given, what was expected and the way out.


class InvalidTypeError(PortableError, TypeError):
    """An argument of another type than expected."""


class InvalidValueError(PortableError, ValueError):
    """An argument whose value cannot be honoured."""


class InvalidArgumentError(InvalidTypeError, InvalidValueError):
    """An argument that is of a wrong type, or has a wrong value."""


class InvalidIndexError(PortableError, TypeError, IndexError):
    """An index that names no rows, whatever the batch."""

    def __init__(self, index: object, reason: str) -> None:
        super().__init__(f"cannot take rows by {short(index)}: {reason}")


class RowOutOfRangeError(PortableError, IndexError):
    """A row that the batch does not have."""

    def __init__(self, row: int, num_rows: int) -> None:
        super().__init__(f"row {row} does not exist: the batch has {num_rows} rows")


class MaskLengthError(PortableError, IndexError):
    """A boolean mask that has not one entry per row."""

    def __init__(self, length: int, num_rows: int) -> None:
        super().__init__(f"the mask has {length} entries for {num_rows} rows: it needs one per row")


class InvalidCountError(PortableError, ValueError):
    """A size, a number of pieces or a number of times that is not a whole number in range."""

    def __init__(self, argument: str, value: object, least: int) -> None:
        super().__init__(f"{argument} must be a whole number of at least {least}, got {short(value)}")


class NotABoolError(PortableError, TypeError):
    """Something else where True or False is expected."""

    def __init__(self, argument: str, value: object) -> None:
        super().__init__(f"{argument} must be True or False, got {short(value)}")


class StridedNestedError(PortableError, TypeError):
    """A nested tensor whose rows cannot be found without looping over them."""

    def __init__(self, key: str | None = None) -> None:
        where = "a column" if key is None else f"column {key!r}"
        super().__init__(
            f"{where} is a nested tensor of the strided layout; build it with layout=torch.jagged "
            "(for example torch.nested.as_nested_tensor(rows, layout=torch.jagged))"
        )


class UnequalPartsError(PortableError, ValueError):
    """Rows that cannot be spread over parts of equal size."""

    def __init__(self, num_rows: int, num_parts: int) -> None:
        super().__init__(
            f"{num_rows} rows cannot be spread over {num_parts} parts of equal size; pad them to a multiple "
            f"of {num_parts}, or allow sizes to differ"
        )


class WeightsError(PortableError, ValueError):
    """Weights that rows cannot be balanced by."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"cannot balance rows by these weights: {reason}")


class BatchTypeError(PortableError, TypeError):
    """Something else where a batch takes a TensorDict."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"batch must be a TensorDict or None, got {type(value).__name__}; DataProto.from_dict takes dicts"
        )


class NotADictError(PortableError, TypeError):
    """Something else where a dict of columns, or of facts, is expected."""

    def __init__(self, argument: str, value: object) -> None:
        super().__init__(f"{argument} must be a dict, got {type(value).__name__}")


class NotRowsError(PortableError, TypeError):
    """Something else where a list of rows is expected."""

    def __init__(self, value: object) -> None:
        super().__init__(f"rows must be a list of dicts, one per row, got {type(value).__name__}")


class NotATensorDictError(PortableError, TypeError):
    """Something else in the place of a TensorDict."""

    def __init__(self, argument: str, value: object) -> None:
        super().__init__(f"{argument} must be a TensorDict, got {type(value).__name__}")


class LoneTensorDictError(PortableError, TypeError):
    """One TensorDict where a list of them is expected."""

    def __init__(self) -> None:
        super().__init__("data must be a list of TensorDicts, got one TensorDict; put it in a list")


class KeyTypeError(PortableError, TypeError):
    """A key, or a list of keys, that cannot name columns."""

    def __init__(self, value: object) -> None:
        super().__init__(f"columns are named by a string or several strings, got {short(value)}")


class DeviceNameError(PortableError, ValueError, RuntimeError):
    """A device that torch does not know."""

    def __init__(self, device: object, reason: object) -> None:
        super().__init__(
            f"device must be one that torch knows, such as 'cpu' or 'cuda:0', got {short(device)}: {reason}"
        )


class RowCountError(PortableError, ValueError):
    """Columns of one batch that have different numbers of rows."""

    def __init__(self, counts: Mapping[str, int], way_out: str = "") -> None:
        shown = _few_of_each(counts)
        listed = ", ".join(f"{key!r} has {count}" for key, count in shown.items())
        more = f", and so on for {len(counts) - len(shown)} more" if len(shown) < len(counts) else ""
        super().__init__(
            f"columns differ in their number of rows: {listed}{more}" + (way_out and f"; {way_out}")
        )


def _few_of_each(counts: Mapping[str, int]) -> dict[str, int]:
    """A few keys of each count, in their order."""
    met: Counter[int] = Counter()
    shown = {}
    for key, count in counts.items():
        met[count] += 1
        if met[count] <= _FEW:
            shown[key] = count
    return shown


class MetaConflictError(PortableError, ValueError):
    """Parts that hold different values under one key of meta_info."""

    def __init__(self, key: str, values: Mapping[int | str, Any]) -> None:
        listed = ", ".join(f"{where} has {short(value)}" for where, value in _named(values).items())
        rules = (
            f", or declare how to join it, for example merge={{{key!r}: 'list'}} (first, list, mean, sum, "
            "min, max or a callable)"
        )
        # Only parts are joined by rules; union has none.
        way_out = "drop the key" + (rules if all(isinstance(where, int) for where in values) else " from one")
        super().__init__(f"meta_info[{key!r}] differs: {listed}; {way_out}")


def _named(values: Mapping[int | str, Any]) -> dict[str, Any]:
    return {f"part {where}" if isinstance(where, int) else where: value for where, value in values.items()}


class MetricsError(PortableError, ValueError):
    """Metrics of a form that cannot be joined or reduced."""

    def __init__(self, value: object, reason: str = "") -> None:
        expected = reason or "metrics must be a dict, a list of dicts or a dict of lists"
        super().__init__(f"{expected}, got {short(value)}")


class UnknownRuleError(PortableError, ValueError):
    """A merge rule that does not exist."""

    def __init__(self, key: str, rule: object, known: Sequence[str]) -> None:
        super().__init__(f"no rule {short(rule)} for {key!r}: give a callable or one of {', '.join(known)}")


class ColumnTypeError(PortableError, TypeError, ValueError):
    """A value that cannot be a column."""

    def __init__(self, key: str, value: object, reason: str) -> None:
        super().__init__(f"column {key!r}: {reason} (got {type(value).__name__})")


class NotBatchesError(PortableError, TypeError):
    """Something else where batches are expected."""

    def __init__(self, found: Sequence[str], is_batch: bool) -> None:
        given = "one DataProto; put it in a list" if is_batch else f"{list(found)}"
        super().__init__(f"expected DataProto objects, got {given}")


class ScalarColumnError(PortableError, ValueError):
    """A tensor or array without dimensions where one with rows is needed."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"column {key!r} has no dimensions, so it has no rows; one value for all goes to meta_info"
        )


class DeviceMixError(PortableError, ValueError):
    """Columns of one batch on several devices."""

    def __init__(self, devices: Mapping[str, str]) -> None:
        listed = ", ".join(f"{key!r} on {device}" for key, device in devices.items())
        super().__init__(f"all columns of a batch must be on one device: {listed}")


class KeyCollisionError(PortableError, ValueError):
    """One key for two different things."""

    def __init__(self, keys: Sequence[str], what: str) -> None:
        super().__init__(f"{list(keys)} cannot name both {what}")


class BatchDimsError(PortableError, ValueError):
    """A batch whose rows would not be its first dimension."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"a DataProto has rows along one batch dimension, got {given}; only num_batch_dims=1 is "
            "supported, use fold_batch_dim and unfold_batch_dim to regroup rows"
        )


class UnknownKeyError(PortableError, KeyError):
    """A key that the batch does not have."""

    def __init__(self, keys: Sequence[str], kind: str, known: Iterable[str]) -> None:
        super().__init__(f"no {kind} {', '.join(repr(key) for key in keys)}; there are {_names(known)}")


class KeyListError(PortableError, ValueError):
    """Old and new names that do not pair up."""

    def __init__(self, old_keys: object, new_keys: object) -> None:
        super().__init__(
            f"each old key needs one new key of its own, got {short(old_keys)} and {short(new_keys)}"
        )


class RenameCollisionError(PortableError, KeyError, ValueError):
    """A new name that another column has already."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(
            f"cannot rename to {list(keys)}: columns of that name exist and are not themselves renamed"
        )


class NothingToConcatError(PortableError, ValueError):
    """An empty list of parts."""

    def __init__(self) -> None:
        super().__init__(
            "nothing to concatenate: the list of parts is empty, so there are no columns to go by"
        )


class MissingColumnsError(PortableError, ValueError):
    """Parts that do not have the same columns."""

    def __init__(self, kind: str, keys: Mapping[int | str, Sequence[str]]) -> None:
        everywhere = set.intersection(*(set(found) for found in keys.values()))
        extra = {where: [key for key in found if key not in everywhere] for where, found in keys.items()}
        listed = ", ".join(
            f"{where} has {found}"
            if found
            else f"{where} has {'none of these' if everywhere else f'no {kind}'}"
            for where, found in _named(extra).items()
        )
        shared = f" besides {sorted(everywhere)}" if everywhere else ""
        super().__init__(f"parts differ in their {kind}{shared}: {listed}")


class ColumnMismatchError(PortableError, ValueError):
    """A column that is of another kind in another part."""

    def __init__(self, key: str, what: str, found: Mapping[int | str, object]) -> None:
        listed = ", ".join(f"{where} has {value}" for where, value in _named(found).items())
        dims = {len(shape) for shape in found.values() if isinstance(shape, tuple)}
        widens = what == "row shape" and len(dims) == 1
        way_out = f"; concat(..., pad={{{key!r}: 0}}) widens shorter rows" if widens else ""
        super().__init__(f"column {key!r} differs in its {what}: {listed}{way_out}")


class UnionRowsError(PortableError, ValueError):
    """Two batches of different rows where the same rows get more columns."""

    def __init__(self, first: int, second: int) -> None:
        fewer, more = sorted((first, second))
        times = more // fewer if fewer and more % fewer == 0 else 0
        hint = f"; did you mean repeat({times})?" if times else ""
        super().__init__(
            f"union adds columns to the same rows, but there are {first} rows vs {second} rows{hint}"
        )


def _row(column: Any, row: int) -> str:
    return short(column[row])


class UnionValueError(PortableError, ValueError):
    """A column that two batches hold with different values."""

    def __init__(self, key: str, row: int | None, first: Any, second: Any) -> None:
        where = "" if row is None else f" first in row {row}: {_row(first, row)} and {_row(second, row)}"
        super().__init__(
            f"column {key!r} is in both batches and differs{where}; drop it from one, or rename it"
        )


class PadValueError(PortableError, TypeError, ValueError):
    """A column that concat is asked to widen, but cannot."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"pad={{{key!r}: ...}} cannot be honoured: {reason}")


class PadPolicyError(PortableError, ValueError):
    """An unknown source of pad rows."""

    def __init__(self, policy: object) -> None:
        super().__init__(f"policy must be 'repeat', 'last' or 'zeros', got {short(policy)}")


class NoRowToPadWithError(PortableError, ValueError):
    """Pad rows asked for where there is no row to go by."""

    def __init__(self, pad_size: int) -> None:
        super().__init__(f"cannot add {pad_size} pad rows to a batch without rows: there is no row to repeat")


class UnpadError(PortableError, ValueError):
    """More pad rows to take off than there are rows."""

    def __init__(self, pad_size: int, num_rows: int) -> None:
        super().__init__(f"cannot take {pad_size} pad rows off a batch of {num_rows} rows")


class UnevenMiniBatchError(PortableError, ValueError):
    """Rows that do not divide into mini-batches."""

    def __init__(self, num_rows: int, size: int) -> None:
        super().__init__(
            f"{num_rows} rows do not divide into mini-batches of {size}; pass drop_last=False for a shorter "
            f"last one, drop_last=True to leave {num_rows % size} rows out, or pad to a multiple of {size}"
        )


class IteratorOptionError(PortableError, TypeError):
    """An option of DataLoader that has no meaning here."""

    def __init__(self, options: Sequence[str], known: Sequence[str]) -> None:
        super().__init__(
            f"dataloader_kwargs {list(options)} cannot be honoured: batches are cut in this process, without "
            f"a DataLoader; known are {list(known)}"
        )


class ShuffleSourceError(PortableError, TypeError, ValueError):
    """A seed or generator that says nothing, or two that say different things."""

    def __init__(self, seed: object, generator: object) -> None:
        super().__init__(
            "the order of a shuffle comes from a seed (a whole number of at most 64 bits) or from a "
            f"torch.Generator, not both; got seed={short(seed)} and generator={short(generator)}"
        )


class UnevenChunksError(PortableError, ValueError):
    """Rows that do not divide into equal chunks."""

    def __init__(self, num_rows: int, chunks: int) -> None:
        self.num_rows = num_rows
        self.chunks = chunks
        super().__init__(
            f"{num_rows} rows cannot be cut into {chunks} equal chunks (only support equal chunk); use "
            f"chunk({chunks}, uneven=True), pad_dataproto_to_divisor(data, {chunks}), or auto_padding=True"
        )


class RepeatCountsError(PortableError, ValueError):
    """Repeat counts that do not match the rows."""

    def __init__(self, num_rows: int, counts: int) -> None:
        super().__init__(
            f"one count per row is needed: {num_rows} rows, {counts} count{'' if counts == 1 else 's'}"
        )


class FoldError(PortableError, ValueError):
    """Rows or columns that cannot be regrouped."""

    def __init__(self, key: str | None, reason: str) -> None:
        super().__init__(reason if key is None else f"column {key!r}: {reason}")


class UnlikeDictsError(PortableError, KeyError, ValueError):
    """Dicts with different keys where each key becomes one list."""

    def __init__(self, place: int, expected: Sequence[str], found: Sequence[str]) -> None:
        super().__init__(
            f"all dicts need the same keys: number 0 has {list(expected)}, number {place} {list(found)}"
        )


class MissingValueError(PortableError, ValueError):
    """A row that has no tensor for a column of tensors."""

    def __init__(self, key: str, row: int, value: object) -> None:
        super().__init__(
            f"row {row} has no tensor for {key!r} (got {short(value)}); give one for all such rows with "
            f"fill={{{key!r}: tensor}}"
        )


class RaggedDimError(PortableError, ValueError):
    """A ragged dimension that rows do not have."""

    def __init__(self, key: str, ragged_dim: object, num_dims: int) -> None:
        super().__init__(
            f"the ragged dimension of {key!r} counts from 1 (a row's first) to {num_dims} (its last), "
            f"got {short(ragged_dim)}"
        )


class RaggedRowsError(PortableError, ValueError):
    """Rows of different shapes in a column that was not declared ragged."""

    def __init__(self, key: str, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__(
            f"rows of {key!r} have different shapes: {sorted(set(shapes))}; declare ragged={{{key!r}}} for "
            "a jagged column, or pad them"
        )
