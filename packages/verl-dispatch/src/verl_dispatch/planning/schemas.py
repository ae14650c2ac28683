"""The columns that a method is declared to read and to write: as `select` gives them, and as it answers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, cast

import numpy as np
from verl_protocol.errors import InvalidTypeError, SchemaError, short
from verl_protocol.futures.any_batch import as_proto, is_batch, is_proto, like

from verl_dispatch.errors import InvalidModeError, kind_of
from verl_dispatch.planning.options import Labels

if TYPE_CHECKING:
    import torch
    from numpy.typing import DTypeLike

    Dtype: TypeAlias = torch.dtype | np.dtype[Any] | type[Any]


Columns: TypeAlias = "Iterable[str] | Mapping[str, Dtype | tuple[Dtype | None, Sequence[int | None]] | None]"
"""Names of columns, or for each name its dtype, its dtype and row shape, or None for whatever it is.

A column whose name ends in "?" may be missing.
"""

ReadsBy: TypeAlias = "Columns | Mapping[str, Columns]"
"""Columns of every batch among the arguments, or parameter -> columns of the batch that is passed there."""


class ColumnSpec(NamedTuple):
    """What a column is declared to be; None leaves it open, for one size of a row too."""

    dtype: Any = None
    row_shape: tuple[int | None, ...] | None = None
    may_be_missing: bool = False

    def __str__(self) -> str:
        dtype = "" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        sizes = ["*" if size is None else str(size) for size in self.row_shape or ()]
        return dtype + ("" if self.row_shape is None else f"[{', '.join(sizes)}]")


@dataclass(frozen=True, slots=True)
class Schema:
    """Columns of a batch, by name."""

    columns: Mapping[str, ColumnSpec]

    @classmethod
    def of(cls, option: str, given: Any) -> Schema:
        """Reads what `register` was given.

        Raises:
            InvalidTypeError: it does not name columns.
        """
        if isinstance(given, str):
            given = (given,)
        if not isinstance(given, Mapping):
            given = dict.fromkeys(given) if isinstance(given, Iterable) else _refuse(option, given)
        columns: dict[str, ColumnSpec] = {}
        for key, value in given.items():
            name = key.removesuffix("?") if isinstance(key, str) else ""
            spec = _spec(value, name != key)
            if not name or name in columns or spec is None:
                _refuse(option, given)
            columns[name] = spec
        return cls(columns)

    def __str__(self) -> str:
        named = [f"{key}{'?' * spec.may_be_missing} {spec}" for key, spec in self.columns.items()]
        return ", ".join(map(str.rstrip, named)) or "no columns"

    def chosen(self, batch: Any, label: Callable[[], str]) -> Any:
        """The batch with these columns only, and all of its meta_info.

        Args:
            label: names the batch, should something be wrong with it.

        Raises:
            SchemaError: one is missing or not as declared.
        """
        proto = as_proto(batch)
        held, arrays = proto._held(), proto.non_tensor_batch
        self._check({**held, **arrays}, label, "reads")
        tensors = {key: held[key] for key in self.columns if key in held}
        others = {key: arrays[key] for key in self.columns if key in arrays}
        if len(held) + len(arrays) == len(tensors) + len(others):
            return batch
        # As `select` does it, which would look every key up again.
        rest = proto._with(tensors, proto._checked_rows(), others)
        return rest if proto is batch else like(batch, rest)

    def check_answer(self, answer: Any, method: str) -> None:
        """Check that the answer of a method has these columns and no others.

        Raises:
            SchemaError: it has not, or is no batch.
        """
        label = f"the answer of method {method!r}"
        if not is_batch(answer):
            raise SchemaError(f"{label} is {kind_of(answer)}, but writes of @register names columns: {self}")
        proto = as_proto(answer)
        columns = {**proto._held(), **proto.non_tensor_batch}
        self._check(columns, lambda: label, "writes")
        if more := sorted(columns.keys() - self.columns.keys()):
            raise SchemaError(
                f"{label} has columns that writes of @register does not name: {more}; leave them out, or "
                "name them there"
            )

    def _check(self, columns: Mapping[str, Any], label: Callable[[], str], option: str) -> None:
        absent = [key for key in self.columns if key not in columns]
        if missing := [key for key in absent if not self.columns[key].may_be_missing]:
            raise SchemaError(
                f"{label()} has no column {', '.join(map(repr, missing))}, which {option} of @register "
                f"names; there are {sorted(columns)}; add what is missing, or change {option}"
            )
        from verl_protocol.columns.checks import misfit

        for key, spec in self.columns.items():
            if key not in absent and (wrong := misfit(columns[key], spec.dtype, spec.row_shape)):
                raise SchemaError(
                    f"column {key!r} of {label()} {wrong} as {option} of @register declares; convert it, or "
                    f"change {option}"
                )


def _spec(value: Any, may_be_missing: bool = False) -> ColumnSpec | None:
    """What was said of a column; None where it says nothing of one."""
    pair = isinstance(value, (tuple, list)) and len(value) == 2
    dtype, sizes = value if pair else (value, ())
    known = isinstance(sizes, Sequence) and all(size is None or type(size) is int for size in sizes)
    dtypes = (getattr(sys.modules.get("torch"), "dtype", np.dtype), np.dtype, type)
    if not known or not (dtype is None or isinstance(dtype, dtypes)):
        return None
    if isinstance(dtype, type):
        dtype = np.dtype(cast("DTypeLike", dtype))
    return ColumnSpec(dtype, tuple(sizes) if pair else None, may_be_missing)


_COLUMN = "dtype of torch or numpy, (dtype, row shape) or None"


def _refuse(option: str, given: object) -> NoReturn:
    by_parameter = ", or a dict of parameter -> such columns" if option == "reads" else ""
    raise InvalidTypeError(
        f"{option} of register is {short(given)}, expected names of columns, or a dict of name -> {_COLUMN}"
        f"{by_parameter}"
    )


_EVERY = ""
Known: TypeAlias = dict[tuple[int, int], Any]
"""`id` of columns and of a batch -> what became of it."""


@dataclass(frozen=True, slots=True, eq=False)
class Reads:
    """The columns that a method gets of the batches among its arguments.

    Attributes:
        labels: names of the arguments.
        schemas: parameter -> columns; under "" those of every batch.
    """

    labels: Labels = field(repr=False)
    schemas: Mapping[str, Schema]

    @classmethod
    def of(cls, given: Any, labels: Labels, parameters: Sequence[str] | None) -> Reads:
        """Reads what `register` was given.

        Args:
            given: columns, or columns by parameter.
            labels: names of the arguments.
            parameters: those that there are; None: any keyword is one.

        Raises:
            InvalidTypeError: it does not name columns.
            InvalidModeError: there is no such parameter.
        """
        if not isinstance(given, Mapping) or not given or any(map(_spec, given.values())):
            return cls(labels, {_EVERY: Schema.of("reads", given)})
        if unknown := sorted(set(given) - set(given if parameters is None else parameters)):
            raise InvalidModeError(
                f"reads of register names parameters {unknown}, but method {labels.method!r} takes "
                f"{list(parameters or ())}; a column is given a {_COLUMN}"
            )
        return cls(labels, {name: Schema.of("reads", columns) for name, columns in given.items()})

    def __str__(self) -> str:
        return "; ".join(
            f"{name}: {schema}" if name else str(schema) for name, schema in self.schemas.items()
        )

    def chosen(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        known: Known | None = None,
        *,
        fetches: bool = False,
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, of whose batches only these columns are left; futures are left as they are.

        Args:
            known: batches that other calls have too.
            fetches: whether remote columns are read now, all of a batch in one round.

        Raises:
            SchemaError: a column is missing, or not as declared.
        """
        known = {} if known is None else known
        names = chain(self.labels.parameters, repeat(_EVERY))
        positional = [
            self._chosen(value, name, partial(self.labels.positional, index), known, fetches)
            for index, (value, name) in enumerate(zip(args, names, strict=False))
        ]
        return tuple(positional), {
            name: self._chosen(value, name, partial(self.labels.keyword, name), known, fetches)
            for name, value in kwargs.items()
        }

    def _chosen(self, value: Any, name: str, label: Callable[[], str], known: Known, fetches: bool) -> Any:
        schema = self.schemas.get(name, self.schemas.get(_EVERY))
        if schema is None or not is_batch(value):
            return value
        key = (id(schema), id(value))
        if key not in known:
            known[key] = schema.chosen(value, label)
            if fetches and is_proto(known[key]):
                known[key].fetch()
        return known[key]
