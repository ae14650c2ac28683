"""What a batch can do with its columns: find, describe, select, rename and move them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, Self

import torch
from numpy.typing import NDArray

from verl_protocol import describing, moving, selecting
from verl_protocol.batch_rows import BatchRows
from verl_protocol.errors import UnknownKeyError
from verl_protocol.selecting import Keys


class BatchColumns(BatchRows):
    """The column operations of `DataProto`."""

    def __contains__(self, key: object) -> bool:
        return key in self.non_tensor_batch or key in self._columns()

    def __repr__(self) -> str:
        return describing.describe(self)

    def tensor(self, key: str) -> torch.Tensor:
        """The tensor column `key`.

        Raises:
            UnknownKeyError: there is no such tensor column.
        """
        tensors = self._columns()
        if key not in tensors:
            raise UnknownKeyError([key], selecting.TENSOR, tensors)
        return tensors[key]

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor columns by key, in order; a new dict of the columns themselves, not of copies.

        Cheaper than `.batch`, which builds a TensorDict.
        """
        return self._columns()

    def column(self, key: str) -> NDArray[Any]:
        """The non-tensor column `key`.

        Raises:
            UnknownKeyError: there is no such non-tensor column.
        """
        if key not in self.non_tensor_batch:
            raise UnknownKeyError([key], selecting.NON_TENSOR, self.non_tensor_batch)
        return self.non_tensor_batch[key]

    def nbytes(self) -> int:
        """Bytes of all tensors and arrays, inside objects too; an object that rows share counts once."""
        from verl_protocol.wire import nbytes_of

        return nbytes_of(self)

    def unique_nbytes(self) -> int:
        """Bytes of memory behind the batch: as `nbytes`, but columns that share a storage count once."""
        return describing.storage_nbytes([self._columns(), self.non_tensor_batch, self.meta_info])

    def print_size(self, prefix: str = "") -> None:
        """Print on one line how much memory tensors and non-tensor columns take."""
        sys.stdout.write(describing.size_line(self, prefix) + "\n")

    def get_data_info(self) -> str:
        """All columns and meta_info entries with their types, one a line."""
        return describing.data_info(self)

    def select(
        self,
        batch_keys: Keys = None,
        non_tensor_batch_keys: Keys = None,
        meta_info_keys: Keys = None,
        deepcopy: bool = False,
        *,
        missing_ok: bool = False,
    ) -> Self:
        """A batch of some columns and meta_info keys; None takes all of that kind.

        Args:
            deepcopy: copy tensors, arrays and meta_info instead of sharing them.
            missing_ok: leave out unknown keys instead of raising.

        Raises:
            UnknownKeyError: a key that is not there.
        """
        return selecting.select(self, batch_keys, non_tensor_batch_keys, meta_info_keys, deepcopy, missing_ok)

    def pop(
        self, batch_keys: Keys = None, non_tensor_batch_keys: Keys = None, meta_info_keys: Keys = None
    ) -> Self:
        """Take columns and meta_info keys out of this batch and return them as another one.

        Raises:
            UnknownKeyError: a key that is not there; then nothing is taken.
        """
        return selecting.pop(self, batch_keys, non_tensor_batch_keys, meta_info_keys)

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> Self:
        """Rename columns of this batch, all at once, and return it; names may be swapped.

        Raises:
            UnknownKeyError: an old name that is not there.
            RenameCollisionError: a new name that another column has.
            KeyListError: not one new name for each old one.
        """
        return selecting.rename(self, old_keys, new_keys)

    def to(self, device: torch.device | str | int, *, objects: bool = False) -> Self:
        """Move this batch to a device and return it; all copies are finished by then.

        Args:
            objects: move tensors inside object columns too.
        """
        return moving.to_device(self, device, objects)
