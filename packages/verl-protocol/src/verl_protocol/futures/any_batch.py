"""The same few operations for every kind of batch: DataProto, TensorDict, and futures of either."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from verl_protocol.errors import InvalidTypeError, NothingToConcatError
from verl_protocol.kinds import is_tensordict

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from verl_protocol.batch.proto import DataProto


def proto_class() -> Any:
    """The class DataProto, which needs torch; None as long as nobody has imported it."""
    # With a default: another thread may be in the middle of the import.
    return getattr(sys.modules.get("verl_protocol.batch.proto"), "DataProto", None)


def is_proto(value: object) -> TypeIs[DataProto]:
    """Whether `value` is a DataProto."""
    # As in `proto_class`, once more: every argument of every call is asked several times.
    return isinstance(value, getattr(sys.modules.get("verl_protocol.batch.proto"), "DataProto", ()))


def is_batch(value: object) -> bool:
    """Whether `value` is a batch that is there, and no future of one."""
    return is_proto(value) or is_tensordict(value)


Fetch: TypeAlias = Callable[[list[Any], float | None], Sequence[Any]]
"""Gives the values of many parts at once, in order, after waiting at most so many seconds."""

AsyncFetch: TypeAlias = Callable[[list[Any], float | None], Awaitable[Sequence[Any]]]
"""`Fetch`, awaited."""


class Pending:
    """What others are still making: a `DataProtoFuture`, or how many rows one has."""

    def get(self, timeout: float | None = None, fetch: Fetch | None = None) -> Any:
        """It, after waiting for it."""
        raise NotImplementedError

    async def aget(self, timeout: float | None = None, fetch: AsyncFetch | None = None) -> Any:
        """As `get`, without blocking the event loop."""
        raise NotImplementedError


def _no_batch(verb: str, value: object) -> InvalidTypeError:
    """The error about a value, or a list of values, of which no batch can be made."""
    kinds = [type(part).__name__ for part in value] if isinstance(value, (list, tuple)) else None
    found = type(value).__name__ if kinds is None else f"a {type(value).__name__} of {_counted(kinds)}"
    return InvalidTypeError(
        f"cannot {verb} {found}: it takes a DataProto, a TensorDict or a DataProtoFuture to chunk, and a "
        "list of one kind of them to concatenate"
    )


def _counted(kinds: Sequence[str]) -> str:
    places = {kind: [place for place, other in enumerate(kinds) if other == kind] for kind in kinds}
    return ", ".join(f"{kind} at {found}" for kind, found in places.items()) or "nothing"


class Answer(int):
    """Yes or no, for code that reads `is_chunkable` and for code that calls it."""

    def __call__(self) -> bool:
        """The answer."""
        return bool(self)

    def __repr__(self) -> str:
        return repr(bool(self))


class BatchData:
    """A batch, a future of one, or a list of such parts, whatever their kind.

    >>> import torch
    >>> from verl_protocol import DataProto
    >>> data = DataProto.from_dict(tensors={"a": torch.arange(4)})
    >>> BatchData(BatchData(data).chunk(2)).concat().batch["a"]
    tensor([0, 1, 2, 3])
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    @property
    def is_chunkable(self) -> Answer:
        """Whether `chunk` can split this by rows."""
        return Answer(_kind_of(self.data) is not None)

    @property
    def is_concatable(self) -> Answer:
        """Whether this is a list (or tuple) of parts of one kind, at least one."""
        return Answer(isinstance(self.data, (list, tuple)) and _common_kind(self.data) is not None)

    def chunk(self, chunks: int, uneven: bool = False) -> list[Any]:
        """`chunks` parts of the rows, in order; of equal size unless `uneven`.

        Raises:
            InvalidTypeError: this has no rows to split.
            UnevenRowsError: the rows do not divide by `chunks`.
        """
        kind = _kind_of(self.data)
        if kind is None:
            raise _no_batch("chunk", self.data)
        if kind == "DataProtoFuture":
            return list(self.data.chunk(chunks, uneven=uneven))
        return [like(self.data, part) for part in as_proto(self.data).chunk(chunks, uneven=uneven)]

    def concat(self) -> Any:
        """The rows of all parts; entries without rows must agree, and metrics become flat lists.

        Raises:
            InvalidTypeError: these are no parts of one kind.
        """
        parts = self.data
        if isinstance(parts, (list, tuple)) and not parts:
            raise NothingToConcatError
        if not self.is_concatable:
            raise _no_batch("concatenate", parts)
        return concat_parts(parts)


def concat_parts(parts: Sequence[Any]) -> Any:
    """The rows of parts that are all of one kind."""
    if isinstance(parts[0], Pending):
        futures: Any = parts[0]
        return futures.concat(list(parts))
    protos, back = as_protos(parts)
    return back(proto_class().concat(protos))


def as_protos(parts: Sequence[Any]) -> tuple[list[DataProto], Callable[[DataProto], Any]]:
    """Batches that belong together as DataProtos, and what makes a batch of their kind of one again.

    Raises:
        InvalidTypeError: they are not all of one kind.
    """
    kind = _common_kind(parts)
    if kind == "DataProto":
        return list(parts), lambda whole: whole
    if kind != "TensorDict":
        raise _no_batch("concatenate", parts)
    from verl_protocol.batch.convert import has_rows, stacked_keys

    stacked, model = stacked_keys(parts), next(filter(has_rows, parts), parts[0])
    return [as_proto(part, stacked) for part in parts], partial(like, model)


def as_proto(batch: Any, stacked: Collection[str] = ()) -> DataProto:
    """The DataProto that a batch is; `stacked` are keys of data that is a column in other parts."""
    if is_proto(batch):
        return batch
    from verl_protocol.batch.proto import DataProto

    return DataProto._of_tensordict(batch, stacked)


def like(original: Any, proto: DataProto) -> Any:
    """`proto` as a batch of the kind of `original`."""
    if is_proto(original):
        return proto
    from verl_protocol.batch.convert import tensordict_of

    return tensordict_of(proto, original)


def num_rows_of(batch: Any) -> int:
    """The number of rows of a DataProto or TensorDict.

    Raises:
        InvalidTypeError: it is neither.
    """
    if is_proto(batch):
        return len(batch)
    if not is_tensordict(batch):
        raise _no_batch("count the rows of", batch)
    return int((*batch.batch_size, 0)[0])


def narrow_part(batch: Any, start: int, stop: int) -> Any:
    """Rows `start` to `stop` as views; the metrics stay with the first row."""
    part = as_proto(batch).slice(start, stop)
    if start > 0:
        # A part owns its meta_info, so this touches nothing of the caller's.
        part.meta_info.pop("metrics", None)
    return like(batch, part)


def has_columns(batch: Any) -> bool:
    """Whether a DataProto or TensorDict has rows, or columns that might have some."""
    if is_proto(batch):
        return bool(len(batch) or batch._held() or batch.non_tensor_batch)
    from verl_protocol.columns.objects import is_whole

    return bool(num_rows_of(batch)) or (bool(batch.batch_size) and not all(map(is_whole, batch.values())))


def _kind_of(value: object) -> str | None:
    if is_proto(value):
        return "DataProto"
    if isinstance(value, Pending):
        return "DataProtoFuture"
    return "TensorDict" if is_tensordict(value) else None


def _common_kind(parts: Sequence[object]) -> str | None:
    kinds = {_kind_of(part) for part in parts}
    return kinds.pop() if len(kinds) == 1 else None
