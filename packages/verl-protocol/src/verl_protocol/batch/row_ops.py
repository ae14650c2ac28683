"""What a batch can do with its rows: pick, cut, repeat, regroup, pad and iterate them."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, SupportsIndex, TypeVar, overload

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import errors
from verl_protocol.arguments import flag, mapping, whole_number
from verl_protocol.batch.item import DataProtoItem, item_of
from verl_protocol.batch.metadata import METRICS
from verl_protocol.batch.padding import BatchPadding
from verl_protocol.batch.state import check_batch
from verl_protocol.columns import objects, ops, partition
from verl_protocol.columns.checks import Keys, check_keys, check_known, key_list
from verl_protocol.columns.index import IndexLike, is_single_row, normalise_index, normalise_row
from verl_protocol.columns.reading import read
from verl_protocol.columns.walk import deep_copy


class BatchRows(BatchPadding):
    """The row operations of `DataProto`; its documentation says what holds for all of them."""

    def __len__(self) -> int:
        return self._row_count()

    def __iter__(self) -> Iterator[DataProtoItem]:
        return (item_of(self, row) for row in range(self._checked_rows()))

    @overload
    def __getitem__(self, item: int | np.integer[Any]) -> DataProtoItem: ...
    @overload
    def __getitem__(self, item: IndexLike) -> Self: ...
    def __getitem__(self, item: Any) -> DataProtoItem | Self:
        """One row (int), or the rows of a slice, range, sequence, array, tensor or mask.

        Raises:
            RowOutOfRangeError, InvalidIndexError: an index that does not fit.
        """
        if is_single_row(item):
            return item_of(self, normalise_row(item, self._checked_rows()))
        return self.select_idxs(item)

    def select_idxs(self, idxs: IndexLike) -> Self:
        """The rows of an index or mask, in its order."""
        return self._take(normalise_index(idxs, self._row_count()))

    def slice(
        self,
        start: SupportsIndex | None = None,
        end: SupportsIndex | None = None,
        step: SupportsIndex | None = None,
    ) -> Self:
        """The rows `start` to `end` as views of the storage."""
        return self.select_idxs(slice(start, end, step))

    def chunk(self, chunks: SupportsIndex, uneven: bool = False) -> list[Self]:
        """`chunks` consecutive pieces as views; the metrics stay with the first.

        Pieces are equal, unless `uneven` or auto padding allows sizes that differ by one.

        Raises:
            UnevenRowsError: the rows do not divide by `chunks`.
            InvalidValueError: `chunks` is less than 1.
        """
        count = whole_number("chunks", chunks, 1)
        if not flag("uneven", uneven) and len(self) % count and not self.is_padding_enabled():
            raise partition.uneven_chunks(len(self), count)
        return self._pieces(partition.even_sizes(len(self), count))

    def split(self, split_size: SupportsIndex) -> list[Self]:
        """Consecutive pieces of `split_size` rows, the last one shorter; the metrics stay with the first.

        Raises:
            InvalidValueError: `split_size` is less than 1.
        """
        size, count = whole_number("split_size", split_size, 1), len(self)
        return self._pieces([min(size, count - start) for start in range(0, count, size)] or [0])

    def _pieces(self, sizes: Sequence[int]) -> list[Self]:
        later = {key: value for key, value in self.meta_info.items() if key != METRICS}
        return self._split_rows(sizes, later)

    def repeat(
        self, repeat_times: SupportsIndex = 2, interleave: bool = True, *, copy_objects: bool = False
    ) -> Self:
        """Every row `repeat_times` times: `a a b b` (interleave) or `a b a b`.

        The repeated rows share the objects of object columns, which costs nothing, unless `copy_objects`.
        """
        times = whole_number("repeat_times", repeat_times, 0)
        interleave, copy_objects = flag("interleave", interleave), flag("copy_objects", copy_objects)
        rows = torch.arange(self._row_count())
        repeated = self._take(rows.repeat_interleave(times) if interleave else rows.repeat(times))
        if copy_objects:
            for column in repeated.non_tensor_batch.values():
                if column.dtype == object:
                    objects.fill_objects(column, [deep_copy(item, {}) for item in column.ravel().tolist()])
        return repeated

    def sample_level_repeat(self, repeat_times: Sequence[int] | torch.Tensor | NDArray[Any]) -> Self:
        """Row i `repeat_times[i]` times.

        Raises:
            InvalidValueError: not one count per row.
        """
        given: Any = repeat_times
        given = given.tolist() if isinstance(given, (torch.Tensor, np.ndarray)) else given
        given = given if isinstance(given, Iterable) else [given]
        counts = [whole_number("repeat_times", times, 0) for times in given]
        if len(counts) != self._row_count():
            rows, given = errors.counted(self._row_count(), "row"), errors.counted(len(counts), "count")
            raise errors.InvalidValueError(f"one count per row is needed: {rows}, {given}")
        every_row = torch.arange(len(counts))
        return self._take(every_row.repeat_interleave(torch.tensor(counts, dtype=torch.int64)))

    def unfold_column_chunks(self, n_split: SupportsIndex, split_keys: Keys = None) -> Self:
        """Cut the columns `split_keys` into `n_split` rows along dim 1, and repeat the rows of the others.

        Raises:
            ColumnError: a column whose width does not divide by `n_split`.
        """
        n_split, count = whole_number("n_split", n_split, 1), self._row_count()
        split = key_list(split_keys)
        check_known(split, "column", [*self._held(), *self.non_tensor_batch])

        def unfold(columns: Mapping[str, Any]) -> dict[str, Any]:
            kept = {key: column for key, column in columns.items() if key not in split}
            repeated = ops.take_all(kept, torch.arange(count).repeat_interleave(n_split))
            return {
                key: repeated[key] if key in kept else _cut(key, column, n_split)
                for key, column in columns.items()
            }

        return self._map_rows(unfold, count * n_split)

    def reorder(self, indices: IndexLike) -> None:
        """Put the rows of this batch itself into the order of `indices`."""
        self._become(self.select_idxs(indices))

    def group_by(self, key: str) -> dict[Any, Self]:
        """The rows of each value of a column, by first appearance; metrics stay with the first group."""
        places: dict[Hashable, list[int]] = {}
        for row, value in enumerate(_group_values(self, key)):
            try:
                places.setdefault(value, []).append(row)
            except TypeError as error:
                kind = f"cannot group by {type(value).__name__} values: {error}"
                raise errors.ColumnError(f"column {key!r}: {kind}") from None
        groups = {value: self[found] for value, found in places.items()}
        for group in list(groups.values())[1:]:
            group.meta_info.pop(METRICS, None)
        return groups

    def make_iterator(
        self,
        mini_batch_size: SupportsIndex,
        epochs: SupportsIndex,
        seed: int | None = None,
        dataloader_kwargs: Mapping[str, Any] | None = None,
        *,
        drop_last: bool | None = None,
    ) -> Iterator[Self]:
        """Mini-batches, every row once per epoch: views in order, copies when shuffled.

        Args:
            seed: the seed of the shuffling; the global random state is then left alone.
            dataloader_kwargs: `shuffle`, `drop_last` and `generator`.
            drop_last: what becomes of a shorter last mini-batch; an error unless given.

        Raises:
            UnevenRowsError: the rows do not divide and `drop_last` is not given.
            InvalidTypeError: other `dataloader_kwargs`.
        """
        options = _checked_options(dataloader_kwargs)
        drop_last = options.get("drop_last") if drop_last is None else drop_last
        drop_last = None if drop_last is None else flag("drop_last", drop_last)
        shuffle = flag("shuffle", options.get("shuffle", False))
        size, epochs = whole_number("mini_batch_size", mini_batch_size, 1), whole_number("epochs", epochs, 0)
        count = self._checked_rows()
        if drop_last is None and count % size:
            raise errors.UnevenRowsError(
                f"{errors.counted(count, 'row')} cannot be cut into mini-batches of {size}; pass "
                "drop_last=False for a shorter last one, drop_last=True to leave "
                f"{errors.counted(count % size, 'row')} out, or pad to a multiple of {size}",
                count,
                size,
            )
        used = count - count % size if drop_last else count
        generator = _generator(seed, options.get("generator")) if shuffle else None
        return _mini_batches(self, used, size, epochs, generator)


B = TypeVar("B", bound=BatchRows)


def _cut(key: str, column: Any, n_split: int) -> Any:
    column = _stacked(key, read(column, key))
    width = column.shape[1] if column.ndim > 1 else None
    if width is None or (isinstance(column, torch.Tensor) and column.is_nested):
        raise errors.ColumnError(f"column {key!r}: it has no width that could be cut into {n_split} pieces")
    if width % n_split:
        raise errors.ColumnError(f"column {key!r}: its width {width} does not divide into {n_split} pieces")
    return column.reshape(column.shape[0] * n_split, width // n_split, *column.shape[2:])


def _stacked(key: str, column: Any) -> Any:
    """A 1-D column of equal-length lists as a 2-D array of their entries."""
    if not isinstance(column, np.ndarray) or column.ndim > 1:
        return column
    lists = column.tolist()
    if not all(isinstance(row, (list, tuple, np.ndarray)) for row in lists):
        raise errors.ColumnError(f"column {key!r}: its rows are no lists, so they cannot be cut")
    lengths = {len(row) for row in lists}
    if len(lengths) > 1:
        found = sorted(lengths)
        raise errors.ColumnError(
            f"column {key!r}: its rows have different lengths ({found}), so they cannot be cut"
        )
    return np.stack([objects.object_column(row) for row in lists]) if lists else column.reshape(0, 0)


def _group_values(data: BatchRows, key: str) -> Sequence[Hashable]:
    check_keys([key])
    columns = {**data._held(), **data.non_tensor_batch}
    check_known([key], "column", columns)
    column = read(columns[key], key)
    if column.ndim != 1 or getattr(column, "is_nested", False):
        raise errors.ColumnError(
            f"column {key!r}: rows can be grouped by a column of scalars or hashable objects only"
        )
    # All NaNs are one group: NaN differs from itself, so a dict would keep each apart.
    nan = float("nan")
    return [nan if isinstance(value, float) and value != value else value for value in column.tolist()]


# --- Mini-batches: slices of the batch in order, or one gather each when shuffled -------------------------


_OPTIONS = ("shuffle", "drop_last", "generator")
_OF_THE_LOADER = ("num_workers", "pin_memory")
"""Options that only a DataLoader has a use for; 0 and False ask for nothing."""


def _checked_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    options = dict(mapping("dataloader_kwargs", {} if given is None else given))
    for key, value in options.items():
        if key not in (_OPTIONS if value else (*_OPTIONS, *_OF_THE_LOADER)):
            raise errors.InvalidTypeError(
                f"dataloader_kwargs {key}={errors.short(value)} cannot be honoured: batches are cut in this "
                f"process, without a DataLoader; leave it out, there are {list(_OPTIONS)}"
            )
    return options


def _generator(seed: Any, given: Any) -> torch.Generator:
    odd = seed is not None and not isinstance(seed, (int, np.integer))
    if odd or not isinstance(given, (torch.Generator, type(None))) or None not in (seed, given):
        raise _shuffle_source(seed, given)
    if given is not None and seed is None:
        return given
    # Without a seed the order follows torch.manual_seed, at the price of one draw from the global generator.
    drawn = int(torch.randint(2**62, ())) if seed is None else int(seed)
    try:
        return torch.Generator().manual_seed(drawn)
    except (ValueError, RuntimeError, OverflowError):
        raise _shuffle_source(seed, given) from None


def _shuffle_source(seed: object, generator: object) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(
        "the order of a shuffle comes from a seed (a whole number of at most 64 bits) or from a "
        f"torch.Generator, not both; got seed={errors.short(seed)} and generator={errors.short(generator)}"
    )


def _mini_batches(
    data: B, used: int, size: int, epochs: int, generator: torch.Generator | None
) -> Iterator[B]:
    sizes = [min(size, used - start) for start in range(0, used, size)]
    kept = data if used == len(data) else data.slice(0, used)
    for _ in range(epochs):
        if generator is not None:
            order = torch.randperm(len(data), generator=generator)[:used]
            yield from (data[rows] for rows in torch.split(order, sizes))
        elif sizes:
            yield from kept._split_rows(sizes)


# --- Rows that are groups of rows -------------------------------------------------------------------------


def fold_batch_dim(data: B, new_batch_size: SupportsIndex) -> B:
    """Group the rows of `data` into `new_batch_size` rows: shape (n, ...) becomes (new, n // new, ...).

    Raises:
        ColumnError: the rows do not divide, or a column is jagged.

    >>> import torch
    >>> from verl_protocol import DataProto
    >>> data = DataProto.from_dict(tensors={"a": torch.arange(4)})
    >>> fold_batch_dim(data, 2).batch["a"].tolist()
    [[0, 1], [2, 3]]
    """
    check_batch(data)
    new, count = whole_number("new_batch_size", new_batch_size, 1), len(data)
    if count % new:
        raise errors.UnevenRowsError(
            f"{errors.counted(count, 'row')} cannot be cut into {new} groups; pad to a multiple of {new}",
            count,
            new,
        )
    return _reshape_rows(data, new, lambda column: (new, count // new, *column.shape[1:]))


def unfold_batch_dim(data: B, batch_dims: SupportsIndex = 2) -> B:
    """Make one dimension of rows out of the first `batch_dims`: shape (n, k, ...) becomes (n * k, ...).

    Raises:
        ColumnError: a column has fewer dimensions, or columns differ in them.
    """
    check_batch(data)
    dims = whole_number("batch_dims", batch_dims, 1)
    if dims == 1:
        return data.slice()
    columns: dict[str, Any] = {**data._columns(), **data.non_tensor_batch}
    shapes = {key: tuple(column.shape[:dims]) for key, column in columns.items()}
    for key, shape in shapes.items():
        if len(shape) < dims or shape != next(iter(shapes.values())):
            raise errors.ColumnError(
                f"column {key!r}: its first {dims} dimensions are {shape}, others have "
                f"{list(shapes.values())}"
            )
    count = math.prod(next(iter(shapes.values()), (len(data),)))
    return _reshape_rows(data, count, lambda column: (count, *column.shape[dims:]))


def _reshape_rows(data: B, num_rows: int, shape: Callable[[Any], tuple[int, ...]]) -> B:
    tensors: dict[str, Any] = data._columns()
    arrays: dict[str, Any] = dict(data.non_tensor_batch)
    for columns in (tensors, arrays):
        for key, column in columns.items():
            if not isinstance(column, (np.ndarray, torch.Tensor)) or getattr(column, "is_nested", False):
                raise errors.ColumnError(f"column {key!r}: only dense tensors and arrays can be regrouped")
            columns[key] = column.reshape(shape(column))
    folded = data._with(tensors, num_rows, arrays)
    folded._pad_mask = None
    return folded
