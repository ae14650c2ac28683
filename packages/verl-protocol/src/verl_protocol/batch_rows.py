"""What a batch can do with its rows: pick, cut, repeat, regroup, pad and iterate them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, SupportsIndex, TypeAlias, overload

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol import iteration, padding, partition, reshaping, rows
from verl_protocol.arguments import flag, whole_number
from verl_protocol.errors import UnevenChunksError
from verl_protocol.indexing import IndexLike, is_single_row, normalise_index, normalise_row
from verl_protocol.items import DataProtoItem, item_of
from verl_protocol.metadata import without_metrics
from verl_protocol.selecting import Keys
from verl_protocol.state import BatchState

End: TypeAlias = SupportsIndex | None


class BatchRows(BatchState):
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
            RowOutOfRangeError, MaskLengthError, InvalidIndexError: an index that does not fit.
        """
        if is_single_row(item):
            return item_of(self, normalise_row(item, self._checked_rows()))
        return self.select_idxs(item)

    def select_idxs(self, idxs: IndexLike) -> Self:
        """The rows of an index or mask, in its order."""
        index = normalise_index(idxs, self._row_count())
        return self._map_rows(lambda part: rows.take_all(part, index), len(index))

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
            UnevenChunksError: the rows do not divide by `chunks`.
            InvalidCountError: `chunks` is less than 1.
        """
        count = whole_number("chunks", chunks, 1)
        if not flag("uneven", uneven) and len(self) % count and not self.is_padding_enabled():
            raise UnevenChunksError(len(self), count)
        return self._pieces(partition.even_sizes(len(self), count))

    def split(self, split_size: SupportsIndex) -> list[Self]:
        """Consecutive pieces of `split_size` rows, the last one shorter; the metrics stay with the first.

        Raises:
            InvalidCountError: `split_size` is less than 1.
        """
        size, count = whole_number("split_size", split_size, 1), len(self)
        return self._pieces([min(size, count - start) for start in range(0, count, size)] or [0])

    def _pieces(self, sizes: Sequence[int]) -> list[Self]:
        pieces = self._split_rows(sizes)
        for piece in pieces[1:]:
            piece.meta_info = without_metrics(piece.meta_info)
        return pieces

    def repeat(
        self, repeat_times: SupportsIndex = 2, interleave: bool = True, *, copy_objects: bool = False
    ) -> Self:
        """Every row `repeat_times` times: `a a b b` (interleave) or `a b a b`.

        The repeated rows share the objects of object columns, which costs nothing, unless `copy_objects`.
        """
        return reshaping.repeat(self, repeat_times, interleave, copy_objects)

    def sample_level_repeat(self, repeat_times: Sequence[int] | torch.Tensor | NDArray[Any]) -> Self:
        """Row i `repeat_times[i]` times.

        Raises:
            RepeatCountsError: not one count per row.
        """
        return reshaping.sample_level_repeat(self, repeat_times)

    def unfold_column_chunks(self, n_split: SupportsIndex, split_keys: Keys = None) -> Self:
        """Cut the columns `split_keys` into `n_split` rows along dim 1, and repeat the rows of the others.

        Raises:
            FoldError: a column whose width does not divide by `n_split`.
        """
        return reshaping.unfold_column_chunks(self, n_split, split_keys)

    def reorder(self, indices: IndexLike) -> None:
        """Put the rows of this batch itself into the order of `indices`."""
        self._become(self.select_idxs(indices))

    def group_by(self, key: str) -> dict[Any, Self]:
        """The rows of each value of a column, by first appearance; metrics stay with the first group."""
        return reshaping.group_by(self, key)

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
            UnevenMiniBatchError: the rows do not divide and `drop_last` is not given.
            IteratorOptionError: other `dataloader_kwargs`.
        """
        return iteration.make_iterator(self, mini_batch_size, epochs, seed, dataloader_kwargs, drop_last)

    # Padding

    def padding(self, padding_size: SupportsIndex, padding_candidate: str = "") -> None:
        """Add copies of the last row ("first": of the first row) to this batch itself.

        Raises:
            NoRowToPadWithError: the batch has no rows.
        """
        padding.pad_in_place(self, padding_size, padding_candidate)

    def is_padding_enabled(self) -> bool:
        """Whether dispatch may pad this batch: by its own flag, or by `DataProtoConfig.auto_padding`."""
        return self._auto_padding or padding.DataProtoConfig.auto_padding

    @property
    def pad_mask(self) -> torch.Tensor:
        """Which rows are padding: a bool tensor on the CPU, one entry per row."""
        return torch.zeros(len(self), dtype=torch.bool) if self._pad_mask is None else self._pad_mask
