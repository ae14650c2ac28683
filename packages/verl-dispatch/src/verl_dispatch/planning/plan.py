"""What a call will do, as a value: one explicit call per rank, who answers, how answers are put together.

A plan is made without any I/O, shown by `group.method.plan(...)`, and carried out by a backend.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from textwrap import indent
from typing import Any, ClassVar, NamedTuple

import numpy as np
from verl_protocol import DataProtoFuture
from verl_protocol.futures.any_batch import is_batch, is_proto
from verl_protocol.kinds import is_tensor
from verl_protocol.tables import html_table, text_table
from verl_protocol.wire import nbytes_of

from verl_dispatch.errors import NotPicklableError
from verl_dispatch.planning.collectors import LIST, Collector
from verl_dispatch.planning.layout import RowLayout, RowTrim
from verl_dispatch.planning.options import Labels
from verl_dispatch.planning.parts import PaddedPart
from verl_dispatch.planning.schemas import Reads, Schema
from verl_dispatch.planning.split import layout_among

NO_KWARGS: Mapping[str, Any] = {}
_new_tuple = tuple.__new__


class RankCall(NamedTuple):
    """The call that one rank gets; a tuple, because a call on many workers makes many of them.

    Attributes:
        rank: who is called.
        args: positional arguments, ready to pass.
        kwargs: keyword arguments, ready to pass.
        rows: rows of the split batches that this rank gets, padding included; None when nothing was split or
            a future does not know its rows yet.
        pad: how many of `rows`, the last ones, are padding.
    """

    rank: int
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = NO_KWARGS
    rows: int | None = None
    pad: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RankCall) and _same(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


class Scatter(NamedTuple):
    """How the arguments of a call go to the ranks, before method and mode are known; see `CallPlan`."""

    calls: tuple[RankCall, ...]
    fetched_ranks: tuple[int, ...]
    layout: RowLayout | None = None
    collect: Collector = LIST

    @classmethod
    def of_all(cls, args: tuple[Any, ...], kwargs: Mapping[str, Any], world_size: int) -> Scatter:
        """The very same arguments to every rank."""
        ranks = tuple(range(world_size))
        # The tuples are made directly, here and below: a call on many workers makes many.
        calls = tuple([_new_tuple(RankCall, (rank, args, kwargs, None, 0)) for rank in ranks])
        return cls(calls, ranks)

    @classmethod
    def of_lists(
        cls, args: Sequence[Sequence[Any]], kwargs: Mapping[str, Sequence[Any]], ranks: Sequence[int]
    ) -> Scatter:
        """To each of these ranks its entry of each list."""
        ranks = tuple(ranks)
        positional = list(zip(*args, strict=True)) if args else [()] * len(ranks)
        named: list[Mapping[str, Any]] = [NO_KWARGS] * len(ranks)
        if kwargs:
            named = [dict(zip(kwargs, values, strict=True)) for values in zip(*kwargs.values(), strict=True)]
        layout = layout_among([*args, *kwargs.values()])
        rows: Sequence[int | None] = layout.rows if layout else [None] * len(ranks)
        pad = layout.pad if layout else [0] * len(ranks)
        fields = zip(ranks, positional, named, rows, pad, strict=True)
        return cls(tuple([_new_tuple(RankCall, each) for each in fields]), ranks, layout)


@dataclass(frozen=True, slots=True)
class SharedObject:
    """One object that several ranks of a plan get: a backend stores it once, if it is large."""

    value: Any
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class CallPlan:
    """One call on a group, spelled out.

    A custom `dispatch_fn` may return one that calls only some ranks: `CallPlan.of({rank: (args, kwargs)})`.

    Attributes:
        calls: one entry per called rank, in rank order.
        method: name of the method.
        mode: name of the dispatch mode.
        world_size: number of workers in the group.
        fetched_ranks: ranks whose answers are fetched, in the order in which `collect` takes them.
        collect: puts the answers together; `collect.collect(answers)`.
        layout: how the rows of the split batches lie over `fetched_ranks`; None where no batch of known rows
            was split.
        read_only: workers may share one read-only copy of what several ranks get.
        remote: large columns of the answers stay where they are made.
        reads: the columns that the method gets of the batches among its arguments; None for all.
        writes: the columns that it answers; None where nothing is said.

    Example:
        >>> plan = CallPlan.of({1: ((7,), {}), 0: ((8,), {})})
        >>> [(call.rank, call.args) for call in plan.calls], plan.fetched_ranks
        ([(0, (8,)), (1, (7,))], (0, 1))
    """

    calls: tuple[RankCall, ...]
    method: str = ""
    mode: str = ""
    world_size: int = 0
    fetched_ranks: tuple[int, ...] = ()
    collect: Collector = LIST
    layout: RowLayout | None = None
    read_only: bool = False
    remote: bool = False
    reads: Reads | None = None
    writes: Schema | None = None

    @classmethod
    def of(cls, calls: Mapping[int, tuple[Sequence[Any], Mapping[str, Any]]]) -> CallPlan:
        """A plan that calls these ranks with these `(args, kwargs)` and fetches all answers in rank order."""
        ranked = sorted(calls.items())
        return cls(
            calls=tuple(RankCall(rank, tuple(args), dict(kwargs)) for rank, (args, kwargs) in ranked),
            fetched_ranks=tuple(rank for rank, _ in ranked),
        )

    @property
    def order(self) -> tuple[int, ...] | None:
        """With balanced rows, the input row at each position of the answers laid end to end; else None."""
        return None if self.layout is None else self.layout.order

    @property
    def called_ranks(self) -> tuple[int, ...]:
        """Ranks that are called, in the order of `calls`."""
        return tuple([call.rank for call in self.calls])

    @property
    def fetches_all(self) -> bool:
        """Whether every called rank answers, in the order of `calls`."""
        return self.fetched_ranks == self.called_ranks

    @property
    def pad(self) -> int:
        """Padding rows over all ranks."""
        return sum(call.pad for call in self.calls)

    @property
    def shared(self) -> dict[int, SharedObject]:
        """Objects that more than one rank gets, by `id`: arguments, and values of `meta_info`."""
        found: dict[int, tuple[Any, list[int]]] = {}
        for call in self.calls:
            objects = [each for value in arguments_of(call) for each in (value, *inner_of(value))]
            for key, value in {id(value): value for value in objects}.items():
                found.setdefault(key, (value, []))[1].append(call.rank)
        return {
            key: SharedObject(value, tuple(sorted(ranks)))
            for key, (value, ranks) in found.items()
            if len(ranks) > 1
        }

    def nbytes(self) -> tuple[int, ...]:
        """Tensor and array bytes among each called rank's arguments, in the order of `calls`."""
        return tuple(bytes_of_calls((call,)) for call in self.calls)

    def changed(self, **changes: Any) -> CallPlan:
        """A copy with some fields changed."""
        return replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CallPlan) and _same(
            *([getattr(plan, field.name) for field in fields(plan)] for plan in (self, other))
        )

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[RankCall]:
        return iter(self.calls)

    def __str__(self) -> str:
        title, *notes = _plan_notes(self)
        table = indent(text_table(_HEAD, _plan_rows(self), left=(len(_HEAD) - 1,)), "  ")
        return "\n".join([title, table, *notes])

    def _repr_html_(self) -> str:
        return html_table(_HEAD, _plan_rows(self), "; ".join(_plan_notes(self)))


def _same(one: object, other: object) -> bool:
    """Total equality: tensors, arrays, NaN and batches compared by value, never ambiguous."""
    from verl_protocol.columns.equality import equal

    return equal(one, other)


# --- What a plan tells about itself: objects that several ranks get, bytes that travel, a table of its
#     calls


_BULKY_LENGTH = 1024


def arguments_of(call: RankCall) -> list[Any]:
    """Its arguments; replicas of one padded part have notes of their own, but the same batch."""
    given = (*call.args, *call.kwargs.values())
    return [value.value if isinstance(value, PaddedPart) else value for value in given]


def refuse_unpicklable(labels: Labels, calls: Iterable[RankCall], copy: Callable[[Any], object]) -> None:
    """Name the argument that is to blame where calls could not be pickled; nothing where there is none.

    Args:
        labels: names of the arguments.
        calls: with these arguments.
        copy: pickles a value, or copies it as if it were pickled.

    Raises:
        NotPicklableError: `copy` fails for an argument, the first of which it names.
    """
    looked_at: set[int] = set()
    for call in calls:
        for label, value in zip(labels.all(call.args, call.kwargs), arguments_of(call), strict=True):
            if id(value) not in looked_at:
                looked_at.add(id(value))
                try:
                    copy(value)
                except Exception as error:
                    raise NotPicklableError(label, str(error)) from None


def inner_of(value: Any) -> Iterator[Any]:
    """What is worth storing once within an argument: values of the `meta_info` that all parts have."""
    if is_proto(value):
        yield from _bulky(value.meta_info, set())


def _bulky(value: Any, met: set[int]) -> Iterator[Any]:
    if type(value) in (dict, list, tuple):
        if id(value) not in met:
            met.add(id(value))
            for entry in value.values() if type(value) is dict else value:
                yield from _bulky(entry, met)
    elif (
        is_tensor(value)
        or isinstance(value, np.ndarray)
        or (isinstance(value, (bytes, str)) and len(value) >= _BULKY_LENGTH)
    ):
        yield value


def bytes_of_calls(calls: Sequence[RankCall]) -> int:
    """Tensor and array bytes among the arguments of calls; what several of them carry counts once."""
    distinct = {id(value): value for call in calls for value in arguments_of(call)}
    return bytes_of_answers(list(distinct.values()))


def bytes_of_answers(values: Sequence[Any]) -> int:
    """Tensor and array bytes among these values; a future counts nothing."""
    return sum(nbytes_of(value) for value in values if not isinstance(value, DataProtoFuture))


_HEAD = ("rank", "rows", "pad", "bytes", "answers", "arguments")


def _plan_rows(plan: CallPlan) -> list[tuple[str, ...]]:
    fetched = set(plan.fetched_ranks)
    return [
        _row(call, size, call.rank in fetched) for call, size in zip(plan.calls, plan.nbytes(), strict=True)
    ]


def _plan_notes(plan: CallPlan) -> list[str]:
    lines = [f"{plan.method or 'call'}: {plan.mode or 'custom'} over {plan.world_size} workers"]
    shared = plan.shared
    if shared:
        kinds = ", ".join(type(entry.value).__name__ for entry in shared.values())
        lines.append(f"shared by several ranks: {len(shared)} ({kinds})")
    if plan.reads is not None:
        lines.append(f"reads {plan.reads}")
    if plan.writes is not None:
        lines.append(f"writes {plan.writes}")
    if plan.remote:
        lines.append("large columns of the answers stay where they are made")
    if plan.order is not None:
        lines.append("rows are reordered to balance the ranks; the answers come back in input order")
    return lines


def _row(call: RankCall, size: int, answers: bool) -> tuple[str, ...]:
    rows = "-" if call.rows is None else str(call.rows)
    shown = [*map(_shown, call.args), *(f"{name}={_shown(value)}" for name, value in call.kwargs.items())]
    return str(call.rank), rows, str(call.pad), str(size), "yes" if answers else "no", ", ".join(shown)


def _shown(value: Any) -> str:
    if value is None or isinstance(value, (bool, int, float)):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 20 else value[:17] + "...")
    return type(value).__name__


def with_columns(calls: Sequence[RankCall], reads: Reads) -> tuple[RankCall, ...]:
    """The calls, of whose batches only those columns are left that the method reads.

    Raises:
        SchemaError: a column is missing, or not as declared.
    """
    # What several ranks get stays one object.
    columns: dict[tuple[int, int], Any] = {}
    arguments: dict[tuple[int, int], tuple[tuple[Any, ...], Mapping[str, Any]]] = {}
    chosen = []
    for call in calls:
        key = id(call.args), id(call.kwargs)
        if key not in arguments:
            arguments[key] = reads.chosen(call.args, call.kwargs, columns)
        args, kwargs = arguments[key]
        chosen.append(call._replace(args=args, kwargs=kwargs))
    return tuple(chosen)


def with_worker_trims(plan: CallPlan) -> CallPlan:
    """The plan of a non-blocking call: every padded call carries the note how its answer is trimmed."""
    if not plan.pad or plan.collect.layout is None:
        return plan
    calls = tuple([_with_trim(plan.method, call) if call.pad else call for call in plan.calls])
    return plan.changed(calls=calls, collect=plan.collect.after_worker_trims())


def _with_trim(method: str, call: RankCall) -> RankCall:
    # Positions and names in one dict: the first batch may be at either.
    held: dict[Any, Any] = {**dict(enumerate(call.args)), **call.kwargs}
    first = next((place for place, value in held.items() if is_batch(value)), None)
    if first is not None:
        trim = RowTrim(method, call.rank, call.rows or 0, call.pad)
        held[first] = PaddedPart(held[first], trim)
    args = tuple([held.pop(place) for place in range(len(call.args))])
    return call._replace(args=args, kwargs=held)
