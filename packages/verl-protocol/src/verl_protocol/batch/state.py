"""What a batch holds, and the accessors that everything else goes through.

Tensors live in a plain dict; the TensorDict is built when `.batch` is first read and is the truth from then
on, so that `data.batch["k"] = ...` counts. Nothing outside this file needs to know which form is live.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.arguments import mapping
from verl_protocol.batch.metadata import copy_meta
from verl_protocol.columns import ops
from verl_protocol.columns.checks import array_column, check_batched, check_columns, no_column, tensor_columns
from verl_protocol.columns.index import RowIndex
from verl_protocol.columns.reading import WATCH, ColumnsOnDemand, held_in, read_all
from verl_protocol.columns.remote import RemoteColumn
from verl_protocol.columns.travel import may_travel
from verl_protocol.columns.walk import deep_copy
from verl_protocol.errors import InvalidTypeError, RowCountError, different_row_counts
from verl_protocol.kinds import is_tensordict
from verl_protocol.wire import buffers, reduce
from verl_protocol.wire.buffers import Part, Reduction
from verl_protocol.wire.encoder import Composite

if TYPE_CHECKING:
    from tensordict import TensorDict


CORE_ATTRIBUTES = frozenset(
    ["_tensors", "_tensordict", "_built_here", "_num_rows", "_device", "non_tensor_batch", "meta_info"]
)

PAD_MASK = "pad mask of verl_protocol"
"""The name of the pad mask while it goes through a row operation: none that a user's column has."""


class Columns(NamedTuple):
    """Tensors that stand in for a TensorDict until somebody asks for one."""

    tensors: dict[str, torch.Tensor]
    num_rows: int
    device: torch.device | None = None


class BatchField:
    """The `batch` attribute: a TensorDict to the reader, built on first reading."""

    @overload
    def __get__(self, instance: None, owner: type) -> BatchField: ...
    @overload
    def __get__(self, instance: BatchState, owner: type) -> TensorDict: ...
    def __get__(self, instance: BatchState | None, owner: type) -> Any:
        # dataclass reads the default value of the field from the class: no batch.
        return None if instance is None else instance._read_batch()

    def __set__(self, instance: BatchState, value: TensorDict | Mapping[str, Any] | None) -> None:
        instance._write_batch(value)


class ArraysField:
    """The `non_tensor_batch` attribute: a list that a user has put into the dict is a column when read."""

    _ARRAYS = frozenset([np.ndarray])

    def __get__(self, instance: BatchState | None, owner: type) -> Any:
        if instance is None:
            return self
        held = instance.__dict__["non_tensor_batch"]
        if not self._ARRAYS.issuperset(map(type, held.values())) and instance._row_dims:
            for key, column in held.items():
                if isinstance(column, Sequence) and not isinstance(column, (str, bytes)):
                    held[key] = array_column(key, column)
        return held

    def __set__(self, instance: BatchState, value: Any) -> None:
        instance.__dict__["non_tensor_batch"] = value


class BatchState(Composite):
    """Private state of `DataProto` and `DataProtoItem`, and how to make another one like it."""

    _row_dims: ClassVar[int] = 1
    # Defaults live on the class because the __init__ of a dataclass that inherits DataProto sets fields only.
    _tensors: dict[str, torch.Tensor] | None = None
    _tensordict: TensorDict | None = None
    _built_here: bool = False
    _num_rows: int = 0
    _device: torch.device | None = None
    _auto_padding: bool = False
    _pad_mask: torch.Tensor | None = None
    meta_info: dict[str, Any]
    if TYPE_CHECKING:
        non_tensor_batch: dict[str, NDArray[Any]]
    else:
        non_tensor_batch = ArraysField()

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("non_tensor_batch", "meta_info") and not isinstance(value, dict):
            value = mapping(name, {} if value is None else value)
        object.__setattr__(self, name, value)

    def _read_batch(self) -> TensorDict | None:
        tensors = self._tensors
        if self._tensordict is None and tensors is not None:
            from tensordict import TensorDict

            batch_size = [self._num_rows] * self._row_dims
            remote = any(isinstance(column, RemoteColumn) for column in tensors.values())
            held = {} if remote else dict(tensors)
            built = TensorDict(held, batch_size=batch_size, device=self._device)
            if remote:
                _fill(built, tensors)
            # setdefault: of two threads that build at once, both must go on with the same one.
            self.__dict__.setdefault("_tensordict", built)
            self._tensors, self._built_here = None, True
        return self._tensordict

    def _write_batch(self, value: Any) -> None:
        if isinstance(value, Columns):
            self._set_columns(*value)
        elif value is None:
            self._set_columns(None, self._num_rows, self._device)
        elif is_tensordict(value):
            self._tensordict, self._tensors, self._built_here = value, None, False
        elif isinstance(value, Mapping) and self._row_dims:
            tensors = tensor_columns(value)
            self._set_columns(tensors or None, check_columns(tensors, {}), None)
        else:
            given = type(value).__name__
            raise InvalidTypeError(f"batch must be a TensorDict, a dict of tensors or None, got {given}")

    def _set_columns(
        self, tensors: dict[str, torch.Tensor] | None, num_rows: int, device: torch.device | None
    ) -> None:
        self.__dict__.pop("_tensordict", None)
        self.__dict__.update(_tensors=tensors, _num_rows=num_rows, _device=device)

    def _has_batch(self) -> bool:
        """Whether `.batch` is a TensorDict rather than None."""
        return self._tensordict is not None or self._tensors is not None

    def _columns(self) -> dict[str, torch.Tensor]:
        """The tensor columns in a dict of their own, all of them here: remote ones are read in one round."""
        return read_all(self._held())

    def _held(self) -> dict[str, Any]:
        """The tensor columns in a dict of their own, as they are held: remote ones stay where they are."""
        tensors, tensordict = self._tensors, self._tensordict
        if tensordict is not None:
            entries = getattr(tensordict, "_tensordict", None)
            return held_in(entries if isinstance(entries, ColumnsOnDemand) else dict(tensordict.items()))
        return {} if tensors is None else held_in(tensors)

    def _batch_device(self) -> torch.device | None:
        """The device that the TensorDict declares; None if it declares none."""
        return self._device if self._tensordict is None else self._tensordict.device

    def _row_count(self) -> int:
        """The number of rows, from the first thing that has rows."""
        if self._tensordict is not None:
            return int(self._tensordict.batch_size[0]) if self._tensordict.batch_size else 0
        if self._tensors is not None:
            return self._num_rows
        for column in self.non_tensor_batch.values():
            return len(column)
        return self._num_rows

    def _checked_rows(self) -> int:
        """The number of rows, after checking that every non-tensor column is an array of as many."""
        count = self._row_count()
        for key, entry in () if self._tensordict is None else self._held().items():
            check_batched(key, entry)
        for key, column in self.non_tensor_batch.items():
            if not isinstance(column, np.ndarray):
                raise no_column(key, column, "a non-tensor column is an array or a list")
            if len(column) != count:
                others = "batch" if self._has_batch() else "the others"
                raise RowCountError(different_row_counts({others: count, key: len(column)}))
        return count

    def _private(self) -> dict[str, Any]:
        """Attributes beside columns and meta_info: flags of this class and whatever a subclass has added."""
        return {name: value for name, value in self.__dict__.items() if name not in CORE_ATTRIBUTES}

    def _with(
        self,
        tensors: dict[str, torch.Tensor] | None,
        num_rows: int,
        non_tensors: dict[str, NDArray[Any]],
        meta: Mapping[str, Any] | None = None,
    ) -> Self:
        """A batch of the same class, flags and extra attributes, with these columns.

        Args:
            tensors: the tensor columns; None, or none where `.batch` is None here too, leave it None.
            meta: copied; None takes the meta_info of this batch.
        """
        made = object.__new__(type(self))
        state = made.__dict__
        state.update(
            self.__dict__,
            non_tensor_batch=non_tensors,
            meta_info=copy_meta(self.meta_info if meta is None else meta),
            _tensors=tensors if tensors or self._has_batch() else None,
            _num_rows=num_rows,
        )
        if state.pop("_tensordict", None) is not None:
            state["_device"] = self._batch_device()
        return made

    def _with_tensors(self, tensors: dict[str, Any]) -> Self:
        """A batch of the same rows and other columns, with these tensor columns."""
        return self._with(tensors, self._row_count(), dict(self.non_tensor_batch))

    def _reduce(self, part: Part) -> Reduction:
        tensors: Any = None
        if self._tensordict is not None and not self._is_columns_only(self._tensordict):
            tensors = part(self._tensordict)
        elif self._has_batch():
            held = self._held() if may_travel() else self._columns()
            tensors = {
                key: reduce.described(column) if isinstance(column, RemoteColumn) else part(column)
                for key, column in held.items()
            }
        columns = {key: part(column) for key, column in self.non_tensor_batch.items()}
        state = (
            *(tensors, self._row_count(), self._batch_device() is not None),
            *(columns, part(self.meta_info), part(self._private())),
        )
        # The batch is there before what it holds is, which may be the batch itself.
        return new_batch, (buffers.WIRE_VERSION, type(self)), state, None, None, fill_batch

    def __copy__(self) -> Self:
        return self._with_tensors(self._held())

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        made = memo[id(self)] = object.__new__(type(self))
        # Of what is read as a view of the store only the rows themselves can be copied.
        held = self._columns() if WATCH.get() is not None else self._held()
        parts = (held, self.non_tensor_batch, self.meta_info, self._private())
        columns, arrays, meta, private = deep_copy(parts, memo)
        made.__dict__.update(private, non_tensor_batch=arrays, meta_info=meta)
        tensors = ops.keep_shared(ops.sharing(held), columns) if self._has_batch() else None
        made._set_columns(tensors, self._row_count(), self._batch_device())
        return made

    def _is_columns_only(self, tensordict: TensorDict) -> bool:
        """Whether a TensorDict says no more than its columns, row count and device do."""
        from tensordict import TensorDict

        named = any(name is not None for name in tensordict.names or ())
        return type(tensordict) is TensorDict and len(tensordict.batch_size) == self._row_dims and not named

    def _map_rows(
        self, operation: RowOperation, num_rows: int, meta: Mapping[str, Any] | None = None
    ) -> Self:
        """A batch of `num_rows` rows whose every column, the pad mask too, went through `operation`."""
        self._checked_rows()
        made = self._with(operation(self._held()), num_rows, operation(self.non_tensor_batch), meta)
        if self._pad_mask is not None:
            made._pad_mask = operation({PAD_MASK: self._pad_mask})[PAD_MASK]
        return made

    def _take(self, index: RowIndex) -> Self:
        """The rows of a normalised index."""
        return self._map_rows(lambda columns: ops.take_all(columns, index), len(index))

    def _split_rows(self, sizes: Sequence[int], later: Mapping[str, Any] | None = None) -> list[Self]:
        """Consecutive pieces of these sizes, as views.

        Args:
            later: the meta_info of all but the first piece; None gives all of meta_info to each.
        """
        self._checked_rows()
        tensors = ops.split_all(self._held(), sizes)
        arrays = ops.split_all(self.non_tensor_batch, sizes)
        metas = [None, *[later] * (len(sizes) - 1)]
        pieces = [self._with(*piece) for piece in zip(tensors, sizes, arrays, metas, strict=True)]
        if self._pad_mask is not None:
            for piece, mask in zip(pieces, ops.split(self._pad_mask, sizes), strict=True):
                piece._pad_mask = mask
        return pieces

    def _replace(
        self,
        tensors: dict[str, torch.Tensor],
        non_tensors: dict[str, NDArray[Any]],
        meta: Mapping[str, Any],
        num_rows: int,
    ) -> None:
        """Go on with other columns of the same rows.

        The TensorDict that `.batch` built stays the one, so whoever holds it sees the change. What the user
        has handed in may be in other hands too: it stays as it is, and a new container takes its place.
        """
        held = self._tensordict if self._built_here else None
        fits = all(isinstance(column, (torch.Tensor, RemoteColumn)) for column in tensors.values())
        if held is not None and not held.is_locked and fits:
            _fill(held, tensors)
        else:
            self._set_columns(tensors if self._has_batch() else None, num_rows, self._batch_device())
        self.__dict__.update(non_tensor_batch=non_tensors, meta_info=copy_meta(meta))

    def _become(self, other: BatchState) -> None:
        """Take over the columns, meta_info and flags of `other`, which nobody else holds."""
        tensors = other._held() if other._has_batch() else None
        self._set_columns(tensors, other._row_count(), other._batch_device())
        self.non_tensor_batch, self.meta_info = other.non_tensor_batch, other.meta_info
        self._auto_padding, self._pad_mask = other._auto_padding, other._pad_mask


def _fill(tensordict: TensorDict, columns: Mapping[str, Any]) -> None:
    """Make `columns` the entries of a TensorDict, which reads remote ones on demand.

    Whoever holds it sees them.
    """
    remote = any(isinstance(column, RemoteColumn) for column in columns.values())
    # A private attribute: TensorDict has no public way to hold an entry that is not here yet.
    tensordict._tensordict = ColumnsOnDemand(columns) if remote else dict(columns)


def not_batches(found: object) -> InvalidTypeError:
    """The error about something else where batches are expected."""
    way = "; .get() of a future waits for its batch" if "Future" in str(found) else ""
    if "DataProtoItem" in str(found):
        way = "; row i as a batch is batch[i : i + 1], and collate_fn makes a batch of rows"
    return InvalidTypeError(f"expected DataProto objects, got {found}{way}")


def check_batch(value: object) -> None:
    """Raises if `value` is no batch.

    Raises:
        InvalidTypeError: it is none.
    """
    if not isinstance(value, BatchState) or not value._row_dims:
        raise not_batches([type(value).__name__])


RowOperation = Callable[[Mapping[str, Any]], dict[str, Any]]
"""What is done to all columns of a kind at once, for example `ops.take_all` with an index."""


def new_batch(version: int, kind: type[BatchState]) -> BatchState:
    """A batch that `fill_batch` is still to fill."""
    buffers.checked_version(version)
    return object.__new__(kind)


def fill_batch(
    batch: BatchState, state: tuple[Any, int, bool, dict[str, Any], dict[str, Any], dict[str, Any]]
) -> None:
    """Make a batch of a dict of tensor columns, a TensorDict or None, and all else that it consists of."""
    tensors, num_rows, on_device, non_tensors, meta, private = state
    batch.__dict__.update(private, non_tensor_batch=non_tensors, meta_info=meta)
    if tensors is None or isinstance(tensors, dict):
        device = (reduce.target_device() or torch.device("cpu")) if on_device else None
        columns = tensors and {
            key: reduce.restored(*column) if type(column) is tuple else column
            for key, column in tensors.items()
        }
        batch._set_columns(columns, num_rows, device)
    else:
        batch._write_batch(tensors)
