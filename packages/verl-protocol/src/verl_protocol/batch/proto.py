"""`DataProto`: the batch that travels between a driver and its workers.

The class says what can be done and promises how; the work is done by the other files of this package.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from numpy.typing import NDArray

from verl_protocol import wire
from verl_protocol.arguments import flag, mapping, tensordict
from verl_protocol.batch import convert
from verl_protocol.batch.item import DataProtoItem, columns_of_items
from verl_protocol.batch.joining import BatchJoining, union_meta
from verl_protocol.batch.metadata import copy_meta
from verl_protocol.batch.state import BatchField, Columns, check_batch, fill_batch
from verl_protocol.columns import checks, equality, objects
from verl_protocol.files import disk

if TYPE_CHECKING:
    from tensordict import TensorDict


@dataclass(eq=False, repr=False)
class DataProto(BatchJoining):
    """A batch: tensor columns, non-tensor columns and meta_info, all columns with the same rows.

    Slices are views of the storage; index lists, masks and negative steps copy. No result shares its
    `meta_info` or column dicts with another batch; the objects in object columns are shared, never copied.

    The constructor takes its containers as they are and checks them; every other way to make a batch copies
    them.

    Attributes:
        batch: the tensor columns, dense or jagged, with one batch dimension; None if there are none. A dict
            of tensors that is assigned becomes a TensorDict.
        non_tensor_batch: numpy columns, one entry per row along their first axis. A list that is put there
            becomes a column of its very objects.
        meta_info: facts about the batch as a whole; `metrics` in it stays per part.

    Raises:
        RowCountError: columns have different numbers of rows.
        KeyConflictError: a tensor and a non-tensor column have the same key.
        ColumnError: a non-tensor column is neither an array nor a list.

    >>> data = DataProto.from_dict(tensors={"a": torch.arange(4)}, non_tensors={"s": list("wxyz")})
    >>> len(data), data[1:3].batch["a"].tolist(), data[[3, 0]].non_tensor_batch["s"].tolist()
    (4, [1, 2], ['z', 'w'])
    """

    batch: BatchField = BatchField()  # noqa: RUF009 - a descriptor, no default that instances share
    non_tensor_batch: dict[str, NDArray[Any]] = field(default_factory=dict)
    meta_info: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        batch: TensorDict | Mapping[str, torch.Tensor] | None = None,
        non_tensor_batch: dict[str, NDArray[Any]] | None = None,
        meta_info: dict[str, Any] | None = None,
    ) -> None:
        self.batch = batch
        given: Any = (non_tensor_batch, meta_info)
        self.non_tensor_batch, self.meta_info = given
        self.__post_init__()

    def __post_init__(self) -> None:
        # A dataclass that inherits from this one sets the fields itself and comes straight here.
        self.check_consistency()

    def check_consistency(self) -> None:
        """Check that all columns have the same rows and keys of their own.

        Raises:
            RowCountError, KeyConflictError, ColumnError, InvalidValueError: as the class says.
        """
        held = self._tensordict
        if held is not None and len(held.batch_size) != 1:
            raise convert.batch_dims(f"batch_size {list(held.batch_size)}")
        for key, column in self.non_tensor_batch.items():
            checks.array_column(key, column)
        tensors = checks.tensor_columns(self._held()) if held is None else self._held()
        for key, entry in tensors.items():
            checks.check_batched(key, entry)
        known = self._row_count() if self._has_batch() else None
        checks.check_columns(tensors, self.non_tensor_batch, known)

    # Making batches

    @classmethod
    def from_dict(
        cls,
        tensors: Mapping[str, torch.Tensor] | None = None,
        non_tensors: Mapping[str, NDArray[Any] | Sequence[Any]] | None = None,
        meta_info: Mapping[str, Any] | None = None,
        num_batch_dims: int = 1,
        auto_padding: bool = False,
    ) -> Self:
        """A batch of columns in dicts, which are copied; a list becomes a 1-D column of its very objects.

        Args:
            num_batch_dims: 1 is the only number of batch dimensions.
            auto_padding: whether dispatch may pad this batch.

        Raises:
            ColumnError: a value that has no rows, by its key.
            RowCountError, KeyConflictError, ColumnError: columns that do not fit together.

        >>> DataProto.from_dict(tensors={"a": torch.zeros(2)}, non_tensors={"chat": [["hi"], ["you"]]})
        DataProto(2 rows
          a: float32[2] on cpu
          chat: object[2]
          meta_info: {})
        """
        if num_batch_dims != 1:
            raise convert.batch_dims(f"num_batch_dims={num_batch_dims}")
        padded = flag("auto_padding", auto_padding)
        held = checks.tensor_columns(tensors)
        given = checks.checked_dict("non_tensors", non_tensors)
        arrays = {key: checks.array_column(key, value) for key, value in given.items()}
        count = checks.check_columns(held, arrays)
        made = cls._make(held if tensors else None, count, arrays, copy_meta(meta_info), checked=True)
        made._auto_padding = padded
        return made

    @classmethod
    def _make(
        cls,
        tensors: dict[str, torch.Tensor] | None,
        num_rows: int,
        non_tensors: dict[str, NDArray[Any]],
        meta: dict[str, Any],
        device: torch.device | None = None,
        checked: bool = False,
    ) -> Self:
        """A batch of containers that nobody else holds, without building a TensorDict."""
        if checked and cls is DataProto:
            # What has been checked is not checked again, unless there may be more to a subclass.
            made = object.__new__(cls)
            made.__dict__.update(non_tensor_batch=non_tensors, meta_info=meta)
            made._set_columns(tensors, num_rows, device)
            return made
        stand_in: Any = None if tensors is None else Columns(tensors, num_rows, device)
        made = cls(batch=stand_in, non_tensor_batch=non_tensors, meta_info=meta)
        if tensors is None:
            made._num_rows = num_rows
        return made

    @classmethod
    def from_single_dict(
        cls, data: Mapping[str, Any], meta_info: Mapping[str, Any] | None = None, auto_padding: bool = False
    ) -> Self:
        """A batch of one dict: tensors become tensor columns, arrays and lists non-tensor columns."""
        mapping("data", data)
        tensors = {key: value for key, value in data.items() if isinstance(value, torch.Tensor)}
        others = {key: value for key, value in data.items() if key not in tensors}
        return cls.from_dict(tensors, others, meta_info, auto_padding=auto_padding)

    @classmethod
    def from_tensordict(
        cls, tensor_dict: TensorDict, meta_info: Mapping[str, Any] | None = None, num_batch_dims: int = 1
    ) -> Self:
        """A batch of a TensorDict: stacks of objects become non-tensor columns, single objects meta_info.

        Tensors share their storage with it. `to_tensordict` leads back.

        Raises:
            InvalidValueError: it has not one batch dimension.
            MetaConflictError: `meta_info` and the TensorDict hold different values under one key.
        """
        if num_batch_dims != 1:
            raise convert.batch_dims(f"num_batch_dims={num_batch_dims}")
        parts = convert.parts_of(tensordict("tensor_dict", tensor_dict), column=checks.column_of)
        dims = list(tensor_dict.batch_size)
        if len(dims) != 1 and (dims or not all(map(objects.is_whole, tensor_dict.values()))):
            raise convert.batch_dims(f"batch_size {dims}")
        return cls._make(*parts._replace(meta=copy_meta(union_meta(parts.meta, meta_info or {}))))

    @classmethod
    def _of_tensordict(cls, tensor_dict: TensorDict, stacked: Collection[str] = ()) -> Self:
        """The batch that a TensorDict is, with objects as they are; `convert.tensordict_of` leads back."""
        return cls._make(*convert.parts_of(tensor_dict, stacked))

    def to_tensordict(self) -> TensorDict:
        """A TensorDict of everything: objects of each row as stacks, meta_info as single objects.

        Tensors share their storage with it. The auto-padding flag does not go along.

        Raises:
            KeyConflictError: a meta_info key is also a column.
        """
        return convert.tensordict_of(self)

    @classmethod
    def from_rows(
        cls,
        rows: Sequence[Mapping[str, Any]],
        *,
        ragged: convert.Ragged = (),
        fill: Mapping[str, Any] | None = None,
        meta_info: Mapping[str, Any] | None = None,
    ) -> Self:
        """A batch of one dict per row, with the keys of all of them.

        Tensors are stacked, so they need equal shapes; the keys in `ragged` become jagged columns, also where
        all rows happen to have one length. Other values are kept as they are.

        Args:
            ragged: keys of tensors that differ in their last dimension; or a dict that names the dimension of
                each, where 1 is a row's first.
            fill: what rows without a key get; None for objects, while tensors need a value here. Its keys are
                columns in any case.

        Raises:
            InvalidTypeError: `rows` is no list of dicts with strings as keys.
            ColumnError, SchemaError: rows without a column.

        >>> data = DataProto.from_rows([{"n": torch.tensor(1), "s": "x"}, {"n": torch.tensor(2)}])
        >>> data.batch["n"].tolist(), data.non_tensor_batch["s"].tolist()
        ([1, 2], ['x', None])
        """
        listed = convert.row_list(rows)
        tensors, arrays = convert.columns_from_rows(listed, ragged, fill or {})
        checks.check_columns(tensors, arrays, len(listed))
        return cls._make(tensors or None, len(listed), arrays, copy_meta(meta_info))

    def to_rows(self) -> list[dict[str, Any]]:
        """One dict per row: tensors as views, objects as they are."""
        count, columns = self._checked_rows(), {**self._columns(), **self.non_tensor_batch}
        return [{key: convert.row_of(column, row) for key, column in columns.items()} for row in range(count)]

    # Comparing

    def __eq__(self, other: object) -> bool:
        return self.equals(other) if isinstance(other, DataProto) else NotImplemented

    __hash__: ClassVar[None] = None  # type: ignore[assignment]

    def equals(self, other: object) -> bool:
        """Whether `other` has the same rows, columns and meta_info; always answers, NaN equals NaN."""
        if not isinstance(other, DataProto) or len(self) != len(other):
            return False
        mine = (self._columns(), self.non_tensor_batch, self.meta_info)
        return equality.equal(mine, (other._columns(), other.non_tensor_batch, other.meta_info))

    # Copies and files

    def save_to_disk(self, filepath: str | os.PathLike[str], *, allow_pickle: bool = False) -> None:
        """Write this batch to a safetensors file, which takes the place of an older one once it is complete.

        Tensors, arrays, and plain values (None, bools, numbers, strings, bytes, and lists, tuples and dicts
        of them) need no pickle.

        Args:
            allow_pickle: whether anything else, a subclass of DataProto too, may be written as a pickle.

        Raises:
            PickleRefusedError: a value needs a pickle; nothing was written.
            InvalidValueError: a value holds itself; nothing was written.
        """
        parts = {
            "class": None if type(self) is DataProto else type(self),
            "num_rows": self._checked_rows(),
            "on_device": self._batch_device() is not None,
            "batch": self._columns() if self._has_batch() else None,
            "non_tensor_batch": self.non_tensor_batch,
            "meta_info": self.meta_info,
            "private": self._private(),
        }
        disk.write_parts(filepath, parts, allow_pickle)

    @staticmethod
    def load_from_disk(filepath: str | os.PathLike[str], *, allow_pickle: bool = False) -> DataProto:
        """The batch in a file that `save_to_disk` wrote, on the CPU; no code from the file is run.

        The columns are private, writable views of the mapped file: what is not used is not read.

        Args:
            allow_pickle: whether pickles in it may be loaded, which can run any code.

        Raises:
            FileNotFoundError: there is no such file.
            FileFormatError: the file is none of ours, damaged, or of another release.
            PickleRefusedError: it holds a pickle, and that is not allowed.
        """
        return disk.read_parts(filepath, _of_parts, allow_pickle)


def _of_parts(parts: dict[str, Any]) -> DataProto:
    """The batch of the parts that were saved in a file."""
    batch: DataProto = object.__new__(parts["class"] or DataProto)
    names = ("batch", "num_rows", "on_device", "non_tensor_batch", "meta_info", "private")
    fill_batch(batch, tuple([parts[name] for name in names]))
    # What was saved held together; what is in the file may have been written by anybody.
    mapping("meta_info", batch.meta_info)
    mapping("non_tensor_batch", batch.non_tensor_batch)
    if isinstance(parts["batch"], dict):
        DataProto.check_consistency(batch)
    batch._checked_rows()
    return batch


def collate_fn(items: Sequence[DataProtoItem]) -> DataProto:
    """A batch whose rows are `items`; columns are of the kind that they were in the batch of the first item.

    Raises:
        NothingToConcatError: no items.
        InvalidTypeError: items that are no rows of a batch.
        KeyConflictError: items with different keys.
        ColumnError: tensors of different shapes in a column that was not jagged.
        MetaConflictError: items with different meta_info.

    >>> data = DataProto.from_dict(tensors={"a": torch.arange(3)})
    >>> collate_fn([data[2], data[0]]).batch["a"].tolist()
    [2, 0]
    """
    tensors, arrays, meta = columns_of_items(items)
    return DataProto._make(tensors, len(items), arrays, meta, items[0]._batch_device())


# --- The rows of all ranks of a process group in the batch of each ----------------------------------------


def all_gather_data_proto(data: DataProto, process_group: Any = None) -> None:
    """Put the rows of all ranks, in rank order, into `data` itself.

    Every rank of the group must call this. Ranks may have different numbers of rows; metrics become flat
    lists in rank order. Tensors land on the device that they were on.

    Args:
        data: this rank's batch; changed in place.
        process_group: a group of torch.distributed, None for the default one; or anything with
            `all_gather_object(value) -> list`, such as what a worker's `process_group()` gives.

    Raises:
        SchemaError, MetaConflictError: the batches do not fit together; `data`
            is then as it was.
    """
    check_batch(data)
    whole = DataProto.concat(_of_all_ranks(data, process_group))
    device = next((column.device for column in data._columns().values() if column.device.type != "cpu"), None)
    data._become(whole if device is None else whole.to(device))


def _of_all_ranks(data: DataProto, process_group: Any) -> list[Any]:
    """Every rank's batch, in rank order."""
    if hasattr(process_group, "all_gather_object"):
        return list(process_group.all_gather_object(wire.pack(data)))
    distributed: Any = torch.distributed
    parts: list[Any] = [None] * distributed.get_world_size(process_group)
    distributed.all_gather_object(parts, wire.pack(data), group=process_group)
    return parts
