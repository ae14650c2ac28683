"""How the calls of a plan leave the driver: what several ranks get is stored once, the rest goes inline.

Ray puts an inline argument of more than 100 KB into the store by itself, for the one actor that reads it.
What several ranks read would then be stored once for each of them, so it is stored here, once, and passed by
reference.
"""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import ray
from verl_dispatch.planning.parts import PaddedPart
from verl_dispatch.planning.plan import RankCall, arguments_of, inner_of
from verl_protocol import DataProtoFuture
from verl_protocol.columns.walk import Replacer
from verl_protocol.kinds import PLAIN
from verl_protocol.wire import nbytes_of
from verl_protocol.wire.buffers import Readers

from verl_ray.calls.futures import (
    AnswerPart,
    is_direct,
    knows_row_counts,
    learn_row_counts,
    needed_parts,
    whole_part,
)
from verl_ray.errors import out_of_reach
from verl_ray.wire.message import (
    ONE_READER,
    Answer,
    BatchWithSlots,
    Plain,
    Slot,
    is_scalar,
    packed,
)
from verl_ray.wire.refs import transport_of
from verl_ray.wire.sealed import Payload, SealedFuture, compact

if TYPE_CHECKING:
    from verl_protocol import DataProto

STORE_FROM_BYTES = 100_000
"""Shared objects of at least so many bytes are stored; smaller ones cost less inline."""

_SMALL_ITEMS = 64
_LEVELS = 16
_NUMBERS = PLAIN - {str, bytes}
_CARRIED = PLAIN | {Slot}


class Arguments:
    """What the calls of one plan carry; each argument is looked at once, however many ranks get it.

    Args:
        calls: the calls, one a rank.

    Attributes:
        futures: the futures among the arguments; one of the pieces that a future was cut into stands for all.
        bulky: `id` of a batch -> what is bulky in its `meta_info`, by `id`.
    """

    def __init__(self, calls: Sequence[RankCall]) -> None:
        self.futures: list[DataProtoFuture[Any]] = []
        self.bulky: dict[int, dict[int, Any]] = {}
        self._whole: dict[int, Any] = {}
        self._num_readers: defaultdict[int, int] = defaultdict(int)
        # Where all ranks get the same arguments, their calls hold the very same containers.
        alike: dict[tuple[int, int], list[RankCall]] = {}
        for call in calls:
            alike.setdefault((id(call.args), id(call.kwargs)), []).append(call)
        for same in alike.values():
            for value in {id(value): value for value in arguments_of(same[0])}.values():
                if type(value) not in _NUMBERS:
                    self._look_at(value, len(same))

    def _look_at(self, value: Any, num_ranks: int) -> None:
        if isinstance(value, DataProtoFuture):
            # All pieces share the lists of parts and of row counts.
            if all(value.futures is not known.futures for known in self.futures):
                self.futures.append(value)
        elif not isinstance(value, ray.ObjectRef):
            bulky = {id(each): each for each in inner_of(value)}
            if bulky:
                self.bulky[id(value)] = bulky
            self._whole[id(value)] = value
            for key in (id(value), *bulky):
                self._num_readers[key] += num_ranks

    def stored(self, readers: Readers) -> dict[int, Any]:
        """Put into the store what several ranks get and is worth it; `id` -> its reference.

        These are whole arguments, and large values in the `meta_info` of those that are not stored whole.
        """
        found = self._shared(self._whole)
        for batch, bulky in self.bulky.items():
            if batch not in found:
                found |= self._shared(bulky)
        return {key: ray.put(packed(value, readers)) for key, value in found.items()}

    def _shared(self, values: Mapping[int, Any]) -> dict[int, Any]:
        readers = self._num_readers
        return {key: each for key, each in values.items() if readers[key] > 1 and is_worth_storing(each)}


def is_worth_storing(value: Any) -> bool:
    """Large data, or something of unknown size, which is better pickled once than once per rank."""
    if is_scalar(value):
        return isinstance(value, (str, bytes)) and len(value) >= STORE_FROM_BYTES
    return not _is_known(value) or nbytes_of(value) >= STORE_FROM_BYTES


def _is_known(value: Any, levels: int = _LEVELS) -> bool:
    """Whether `nbytes_of` sees all that is in the value; not so where that lies deep, or contains itself."""
    if not levels:
        return False
    if is_scalar(value) or hasattr(value, "nbytes"):
        return not isinstance(value, (str, bytes)) or len(value) < STORE_FROM_BYTES
    if isinstance(value, (list, tuple)) and len(value) <= _SMALL_ITEMS:
        return all(_is_known(each, levels - 1) for each in value)
    if isinstance(value, Mapping) and len(value) <= _SMALL_ITEMS:
        return all(_is_known(each, levels - 1) for each in value.values())
    return False


NOTHING_BULKY: Mapping[int, Collection[int]] = {}

IsOwn = Callable[[Any, int], bool]
"""Whether the worker of a rank itself made what is behind a reference of a direct transport."""


def _cannot_reach(ref: Any, rank: int) -> bool:
    raise out_of_reach("the arguments of a constructor", str(transport_of(ref)))


class Packer:
    """Turns the calls of one plan into messages, with references as arguments beside them.

    Args:
        stored: `id` of an object -> the reference that goes in its place.
        bulky: see `Arguments`.
        readers: how workers read what goes inline.
        prefetches: whether the parts of a future may be fetched before the method asks for them.
        is_own: see `IsOwn`; it raises where the worker cannot get at it.
    """

    def __init__(
        self,
        stored: Mapping[int, Any],
        bulky: Mapping[int, Collection[int]] = NOTHING_BULKY,
        readers: Readers = "one",
        prefetches: bool = True,
        is_own: IsOwn = _cannot_reach,
    ) -> None:
        self._stored, self._bulky = stored, bulky
        self._readers: Readers = readers
        self._prefetches = prefetches
        self._is_own = is_own

    def pack(self, call: RankCall, answer: Answer) -> tuple[Any, ...]:
        """The arguments for a runner: nothing, or a message and the references that fill its slots."""
        if not call.args and not call.kwargs and answer is ONE_READER:
            return ()
        beside = _References(call.rank, self._is_own)
        args = tuple([self._place(value, beside) for value in call.args])
        kwargs = {name: self._place(value, beside) for name, value in call.kwargs.items()}
        message: Plain = (args, kwargs, None if answer is ONE_READER else tuple(answer))
        if _CARRIED.issuperset(map(type, (*args, *kwargs.values()))):
            # As bytes, which Ray carries as they are; of tuples it makes a pickle by way of Python.
            return (pickle.dumps(message, 5), *beside.refs)
        made = compact(message, self._readers)
        return (made.fields() if isinstance(made, Payload) else made, *beside.refs)

    def _place(self, value: Any, beside: _References) -> Any:
        """The value, or what stands in the message for what goes beside it."""
        if isinstance(value, ray.ObjectRef):
            return beside.slot(value)
        if isinstance(value, DataProtoFuture):
            return self._whole_part(value, beside) or self._place_future(value, beside)
        if isinstance(value, PaddedPart):
            return replace(value, value=self._place(value.value, beside))
        ref = self._stored.get(id(value))
        if ref is not None:
            return beside.slot(ref)
        return (
            value
            if self._stored.keys().isdisjoint(self._bulky.get(id(value), ()))
            else self._without(value, beside)
        )

    def _without(self, batch: DataProto, beside: _References) -> BatchWithSlots:
        """The batch without what of its `meta_info` is stored."""
        rest = copy.copy(batch)
        rest.meta_info = {}
        return BatchWithSlots(rest, _WithoutStored(self._stored, beside)(batch.meta_info))

    def _place_future(self, future: DataProtoFuture[Any], beside: _References) -> DataProtoFuture[Any]:
        """The future with what its worker will want beside it: all row counts, and the parts it likely needs.

        A worker must know the counts before it knows which parts to fetch. Where all parts have equal rows,
        it finds what it needs at hand; where not, it fetches the rest. Parts of a direct transport cannot be
        fetched later, so for those the driver waits for the counts.

        Where the driver knows the counts, it sends exactly the parts that are needed.
        """
        direct = is_direct(future)
        if direct:
            learn_row_counts(future)
        elif not future.tells_rows:
            return future
        placed = copy.copy(future)
        if future.row_counts is not None:
            placed.row_counts = [self._part(count, beside, False) for count in future.row_counts]
        if isinstance(placed, SealedFuture) and self._readers == "read_only" and self._prefetches:
            placed.read_only, placed.read = True, []
        if direct or self._prefetches:
            needed = needed_parts(future) if future.tells_rows else range(len(future.futures))
            exact = direct or knows_row_counts(future)
            placed.futures = [
                self._part(part, beside, direct) if index in needed else None if exact else part
                for index, part in enumerate(future.futures)
            ]
        return placed

    def _whole_part(self, future: DataProtoFuture[Any], beside: _References) -> Slot | None:
        """What stands for a piece that is one whole part, as far as the driver knows; it needs no future."""
        index = whole_part(future) if self._prefetches and isinstance(future, SealedFuture) else None
        part = None if index is None else future.futures[index]
        if not isinstance(part, AnswerPart):
            return None
        readers: Readers = "read_only" if self._readers == "read_only" else "many"
        return beside.slot(part.fresh_ref)._replace(opens_for=readers)

    def _part(self, part: Any, beside: _References, with_inner: bool) -> Any:
        if isinstance(part, AnswerPart):
            return beside.slot(part.fresh_ref)
        if with_inner and isinstance(part, DataProtoFuture):
            return self._place_future(part, beside)
        return part


class _References:
    """The references beside one rank's message."""

    def __init__(self, rank: int, is_own: IsOwn) -> None:
        self.refs: list[Any] = []
        self._rank, self._is_own = rank, is_own

    def slot(self, ref: Any) -> Slot:
        """What stands for the reference in the message."""
        if ref not in self.refs:
            self.refs.append(ref)
        transport = transport_of(ref)
        own = transport if transport is not None and self._is_own(ref, self._rank) else None
        return Slot(self.refs.index(ref), own)


class _WithoutStored(Replacer):
    """Puts slots in the place of what is stored, anywhere inside a value."""

    def __init__(self, stored: Mapping[int, Any], beside: _References) -> None:
        super().__init__()
        self._stored, self._beside = stored, beside

    def __call__(self, value: Any) -> Any:
        ref = self._stored.get(id(value))
        return super().__call__(value) if ref is None else self._beside.slot(ref)


def parallel_put(data_list: Sequence[Any], max_workers: int | None = None) -> list[Any]:
    """Store every item and return the references in order; tensors inside travel as raw buffers.

    Args:
        max_workers: threads to use; None decides by itself. More than one helps where pickling releases the
            GIL.

    Raises:
        ValueError: `max_workers` is less than 1.
    """
    from concurrent.futures import ThreadPoolExecutor

    if max_workers is not None and max_workers < 1:
        raise ValueError(f"max_workers is {max_workers}, expected at least 1, or None")
    items = list(data_list)
    workers = min(max_workers or 4, max(1, len(items)))
    if workers == 1:
        return [_put(item) for item in items]
    with ThreadPoolExecutor(workers) as threads:
        return list(threads.map(_put, items))


def _put(item: Any) -> Any:
    return ray.put(packed(item, "many"))
