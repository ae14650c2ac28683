"""What goes over the wire between a group and its workers: arguments as one message, answers as asked for.

Everything a call sends by value is one object, so Ray pickles once per rank. References go beside it as
top-level arguments: Ray resolves those before the call starts, and moves their data from producer to
consumer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex, TypeAlias

import ray
from verl_dispatch.errors import NotPicklableError
from verl_dispatch.planning.parts import PaddedPart
from verl_protocol import DataProtoFuture
from verl_protocol.columns.travel import MOST_OBJECTS
from verl_protocol.columns.walk import Replacer
from verl_protocol.futures.any_batch import is_proto
from verl_protocol.kinds import PLAIN
from verl_protocol.wire import check_unwritten, dumps, loads, pack
from verl_protocol.wire.buffers import Readers

from verl_ray.wire.refs import CloudPickler
from verl_ray.wire.sealed import (
    Fields,
    Payload,
    SealedFuture,
    compact,
    opened,
    opened_batch,
    sealed,
)

if TYPE_CHECKING:
    from verl_protocol import DataProto

_PLAIN = tuple(PLAIN)


class Slot(NamedTuple):
    """Stands in a message for the reference of this index beside it.

    Attributes:
        place: which of the references.
        own: name of the direct transport by which the reader's own process keeps the value; it is copied.
        opens_for: how to open the value, which comes sealed; None leaves that to a future around it.
    """

    place: int
    own: str | None = None
    opens_for: Readers | None = None


@dataclass(frozen=True, slots=True)
class BatchWithSlots:
    """A batch from whose `meta_info` large values were taken, because other ranks get the very same.

    Attributes:
        batch: the batch without `meta_info`.
        meta_info: its `meta_info`, with slots among its values.
    """

    batch: DataProto
    meta_info: dict[str, Any]


class Answer(NamedTuple):
    """How an answer is wanted.

    Attributes:
        readers: whether one process reads it, or possibly many.
        with_rows: it becomes part of a future: sealed, and the row count comes as a second value, so that it
            can be read without the data.
        dropped: nobody reads it; only that the call ended, and how, is of interest.
        guarded: the arguments are shared read-only; a write into one is an error.
        transport: the direct transport by which the tensors travel, if any.
        remote: large columns of a batch come as values of their own, after the batch that names them.
        timed: the worker's times come as a last value of their own.
    """

    readers: Readers = "one"
    with_rows: bool = False
    dropped: bool = False
    guarded: bool = False
    transport: str | None = None
    remote: bool = False
    timed: bool = False

    @property
    def num_values(self) -> int:
        """How many values Ray carries for it."""
        return (1 + MOST_OBJECTS if self.remote else 2 if self.with_rows else 1) + self.timed


ONE_READER = Answer()
Plain: TypeAlias = tuple[tuple[Any, ...], Mapping[str, Any], tuple[Any, ...] | None]
"""Positional arguments, keyword arguments, and the fields of an `Answer` if not to one reader."""

Message: TypeAlias = bytes | Fields | None
"""The pickle of these: bytes, or the fields of a `Payload`. None: no arguments."""


def open_message(
    message: Message, refs: tuple[Any, ...]
) -> tuple[tuple[Any, ...], Mapping[str, Any], Answer]:
    """The arguments with every slot filled."""
    if message is None:
        return (), {}, ONE_READER
    made: Plain = loads(message) if isinstance(message, bytes) else Payload(*message).open("one")
    args, kwargs, asked = made
    answer = ONE_READER if asked is None else Answer(*asked)
    if not refs:
        return args, kwargs, answer
    filled = tuple([_filled(arg, refs) for arg in args])
    return filled, {key: _filled(arg, refs) for key, arg in kwargs.items()}, answer


def _filled(value: Any, refs: tuple[Any, ...]) -> Any:
    if isinstance(value, Slot):
        return _taken(value, refs[value.place])
    if isinstance(value, DataProtoFuture):
        if value.row_counts is not None:
            value.row_counts = [_filled(count, refs) for count in value.row_counts]
        value.futures = [_filled(part, refs) for part in value.futures]
        if not isinstance(value, SealedFuture):
            value.futures = [opened(part) for part in value.futures]
    elif isinstance(value, PaddedPart):
        return replace(value, value=_filled(value.value, refs))
    elif isinstance(value, BatchWithSlots):
        fill = Replacer(to=lambda inner: _filled(inner, refs) if isinstance(inner, Slot) else inner)
        value.batch.meta_info = fill(value.meta_info)
        return value.batch
    return value


def _taken(slot: Slot, value: Any) -> Any:
    if slot.own is not None:
        # Imported here and in `prepare_answer`: a worker without direct transports needs no torch.
        from verl_ray.wire.direct import private_copy

        value = private_copy(value, slot.own)
    return value if slot.opens_for is None else opened_batch(value, slot.opens_for)


def prepare_answer(value: Any, answer: Answer, method: str = "") -> Any:
    """The value as Ray shall carry it; with its rows beside it where they are asked for.

    Args:
        method: whose answer it is, for the error where it cannot be pickled.

    Raises:
        NotPicklableError: it cannot.
    """
    if answer.dropped:
        return None
    if answer.transport is not None:
        from verl_ray.wire.direct import DirectAnswer

        return _AnswerOf(method, DirectAnswer(value, answer.transport))
    # A caller who reads it at once hears of it on a thread that must not open it, so it is sealed.
    try:
        if answer.remote:
            rest, *objects = _set_apart(value)
            return compact(rest), *objects
        if answer.with_rows:
            return sealed(value), _num_rows(value)
        # Bytes are a value that came compact.
        if is_scalar(value) and (answer.readers != "one" or not isinstance(value, bytes)):
            return value
        return compact(value) if answer.readers == "one" else _AnswerOf(method, packed(value, answer.readers))
    except Exception as error:
        raise _not_picklable(method, error) from error


class _AnswerOf:
    """An answer that is pickled on its way, and says then whose it is if it cannot be; what is read is the
    answer.
    """

    __slots__ = ("_method", "_value")

    def __init__(self, method: str, value: Any) -> None:
        self._method, self._value = method, value

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        try:
            return self._value.__reduce_ex__(protocol)
        except Exception as error:
            raise _not_picklable(self._method, error) from error


def _not_picklable(method: str, error: Exception) -> NotPicklableError:
    return NotPicklableError(f"the answer of method {method!r}", str(error))


def _set_apart(value: Any) -> tuple[Any, ...]:
    """The value without its large columns, and these as `MOST_OBJECTS` objects; unused ones are None."""
    rest: Any = value
    objects: list[dict[str, Any]] = []
    if is_proto(value):
        from verl_protocol.batch.apart import set_apart

        rest, objects = set_apart(value)
    unused = [None] * (MOST_OBJECTS - len(objects))
    return (rest, *[sealed(columns).fields() for columns in objects], *unused)


def count_rows(worker: Any, value: Any) -> int:
    """Runs in a worker: the rows of an answer of its own, which came without them."""
    return _num_rows(value)


def check_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any], answer: Answer) -> None:
    """After the method has run: shared arguments must be as they came.

    Raises:
        ReadOnlyWriteError: one was written into.
    """
    if answer.guarded:
        check_unwritten((args, dict(kwargs), [_read_of(value) for value in (*args, *kwargs.values())]))


def _read_of(value: Any) -> Any:
    """What a method that got a future has read of it."""
    return list(value.read) if isinstance(value, SealedFuture) else None


def is_scalar(value: Any) -> bool:
    """Whether the value is a number, a string or the like, which needs no care on the wire."""
    # Ray carries a subclass of bytes as bytes.
    return isinstance(value, _PLAIN) and (type(value) is bytes or not isinstance(value, bytes))


def check_picklable(value: Any) -> None:
    """Raise what pickling the value would; references are left to Ray."""
    if not isinstance(value, ray.ObjectRef):
        dumps(value, pickler=CloudPickler)


def packed(value: Any, readers: Readers) -> Any:
    """A form of the value that ships every tensor as one out-of-band buffer and unpickles to the value."""
    if is_scalar(value):
        return value
    return pack(value, readers=readers, pickler=CloudPickler, references=True)


def _num_rows(value: Any) -> int:
    """Rows of a batch; 0 for what has none, which whoever joins the parts will refuse."""
    batch_size = getattr(value, "batch_size", None)
    try:
        if batch_size is not None:
            return int(batch_size[0]) if len(batch_size) else 0
        return len(value)
    except TypeError:
        return 0
