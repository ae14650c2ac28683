"""What a batch can do with its columns: find, describe, select, rename and move them."""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Never, Self

import torch
from numpy.typing import NDArray

from verl_protocol import errors
from verl_protocol.arguments import flag
from verl_protocol.batch import describe
from verl_protocol.batch.row_ops import BatchRows
from verl_protocol.columns import ops
from verl_protocol.columns.checks import Keys, check_known, key_list
from verl_protocol.columns.reading import read, read_all
from verl_protocol.columns.remote import RemoteColumn
from verl_protocol.columns.walk import Replacer, nbytes_of, storage_nbytes
from verl_protocol.kinds import is_tensor, is_tensordict

TENSOR, NON_TENSOR, META = "tensor column", "non-tensor column", "meta_info key"


class BatchColumns(BatchRows):
    """The column operations of `DataProto`."""

    def __contains__(self, key: object) -> bool:
        return key in self.non_tensor_batch or key in self._held()

    def __setitem__(self, key: Never, value: object) -> Never:
        raise errors.InvalidTypeError(
            f"a DataProto takes no items: data[{key!r}] = ... is data.batch[{key!r}] = ... for a tensor, "
            f"data.non_tensor_batch[{key!r}] = ... for an array or a list; data.union(other) adds the "
            "columns of another batch"
        )

    def __repr__(self) -> str:
        return describe.describe(self)

    def _repr_html_(self) -> str:
        return describe.describe_html(self)

    def tensor(self, key: str) -> torch.Tensor:
        """The tensor column `key`.

        Raises:
            UnknownKeyError: there is no such tensor column.
        """
        held: Any = None if self._tensors is None else self._tensors.get(key)
        if isinstance(held, RemoteColumn) and held.fetched is not None:
            found: torch.Tensor = held.fetched
            return found
        tensors = self._held()
        if key not in tensors:
            other = f"; it is a {NON_TENSOR}: .column({key!r})" if key in self.non_tensor_batch else ""
            raise errors.UnknownKeyError([key], TENSOR, tensors, other)
        column: torch.Tensor = read(tensors[key], key, tensors.values())
        return column

    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensor columns by key, in order; a new dict of the columns themselves, not of copies.

        Cheaper than `.batch`, which builds a TensorDict.
        """
        return self._columns()

    @property
    def remote_keys(self) -> list[str]:
        """The tensor columns that lie in a store; one that was read counts until somebody writes to it."""
        return [key for key, column in self._held().items() if isinstance(column, RemoteColumn)]

    def fetch(self, *keys: str) -> Self:
        """Read the columns `keys`, or all, in one round, and return this batch; they still count as remote.

        Raises:
            UnknownKeyError: a key that is no tensor column.
            ColumnsLost: rows that are no longer there.
        """
        held = self._held()
        read_all(pick(held, keys, TENSOR) if keys else held)
        return self

    def local(self) -> Self:
        """A batch with all columns here, which no longer needs what they were read from.

        Raises:
            ColumnsLost: rows that are no longer there.
        """
        self._checked_rows()
        return self._with_tensors(self._columns())

    def compact(self) -> Self:
        """A batch in which no remote column keeps rows in the store of which it has only few.

        A column that has less than an eighth of the rows of its pieces is copied here; any other lets go of
        the pieces of which it has none.

        Raises:
            ColumnsLost: rows that are no longer there.
        """
        held = self._held()
        kept: dict[str, Any] = {
            key: column.trimmed() for key, column in held.items() if isinstance(column, RemoteColumn)
        }
        sparse = {key: held[key] for key, column in kept.items() if 8 * len(column) < column.starts[-1]}
        self._checked_rows()
        return self._with_tensors({**held, **kept, **read_all(sparse)})

    def column(self, key: str) -> NDArray[Any]:
        """The non-tensor column `key`.

        Raises:
            UnknownKeyError: there is no such non-tensor column.
        """
        if key not in self.non_tensor_batch:
            other = f"; it is a {TENSOR}: .tensor({key!r})" if key in self._held() else ""
            raise errors.UnknownKeyError([key], NON_TENSOR, self.non_tensor_batch, other)
        return self.non_tensor_batch[key]

    def nbytes(self) -> int:
        """Bytes of all tensors and arrays that are here, inside objects too; what rows share counts once."""
        return nbytes_of(self)

    def unique_nbytes(self) -> int:
        """Bytes of memory behind the batch: as `nbytes`, but columns that share a storage count once."""
        return storage_nbytes(self)

    def print_size(self, prefix: str = "") -> None:
        """Print on one line how much memory tensors and non-tensor columns take, and what is remote."""
        sys.stdout.write(describe.size_line(self, prefix) + "\n")

    def get_data_info(self) -> str:
        """All columns and meta_info entries with their types, one a line."""
        return describe.data_info(self)

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
        deepcopy, missing_ok = flag("deepcopy", deepcopy), flag("missing_ok", missing_ok)
        tensors = _chosen(self._held(), batch_keys, TENSOR, missing_ok)
        arrays = _chosen(self.non_tensor_batch, non_tensor_batch_keys, NON_TENSOR, missing_ok)
        infos = _chosen(self.meta_info, meta_info_keys, META, missing_ok)
        chosen = self._with(tensors, self._checked_rows(), arrays, infos)
        return copy.deepcopy(chosen) if deepcopy else chosen

    def pop(
        self, batch_keys: Keys = None, non_tensor_batch_keys: Keys = None, meta_info_keys: Keys = None
    ) -> Self:
        """Take columns and meta_info keys out of this batch and return them as another one.

        Raises:
            UnknownKeyError: a key that is not there; then nothing is taken.
        """
        tensors = pick(self._held(), batch_keys, TENSOR)
        arrays = pick(self.non_tensor_batch, non_tensor_batch_keys, NON_TENSOR)
        infos = pick(self.meta_info, meta_info_keys, META)
        taken = self._with(tensors or None, self._checked_rows(), arrays, infos)
        rest = (without(self._held(), tensors), without(self.non_tensor_batch, arrays))
        self._replace(*rest, without(self.meta_info, infos), self._row_count())
        return taken

    def rename(self, old_keys: str | Sequence[str], new_keys: str | Sequence[str]) -> Self:
        """Rename columns of this batch, all at once, and return it; names may be swapped.

        Raises:
            UnknownKeyError: an old name that is not there.
            KeyConflictError: a new name that another column has.
            InvalidValueError: not one new name for each old one.
        """
        old, new = key_list(old_keys), key_list(new_keys)
        if len(old) != len(new) or len(old) != _count(old_keys) or len(new) != _count(new_keys):
            raise errors.InvalidValueError(
                f"each old key needs one new key of its own, got {errors.short(old_keys)} and "
                f"{errors.short(new_keys)}"
            )
        tensors, arrays = self._held(), self.non_tensor_batch
        known = [*tensors, *arrays]
        check_known(old, "column", known)
        if taken := [key for key in new if key in known and key not in old]:
            raise errors.KeyConflictError(
                f"cannot rename to {taken}: columns of that name exist and are not themselves renamed"
            )
        names = dict(zip(old, new, strict=True))
        self._replace(_renamed(tensors, names), _renamed(arrays, names), self.meta_info, self._checked_rows())
        return self

    def to(self, device: torch.device | str | int, *, objects: bool = False) -> Self:
        """Move this batch to a device and return it; all copies are finished by then.

        Args:
            objects: move tensors inside object columns too.
        """
        objects = flag("objects", objects)
        try:
            target = torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise errors.DeviceNameError(
                "device must be one that torch knows, such as 'cpu' or 'cuda:0', got "
                f"{errors.short(device)}: {str(error).split(':')[0]}"
            ) from None
        target = torch.empty(0, device=target).device
        columns = self._held()
        tensors = ops.keep_shared(
            ops.sharing(columns), {key: column.to(target) for key, column in columns.items()}
        )
        arrays = self.non_tensor_batch
        if objects:
            moved = Replacer(
                to=lambda item: item.to(target) if is_tensor(item) or is_tensordict(item) else item
            )
            arrays = {key: moved(column) for key, column in arrays.items()}
        count, has_batch = self._row_count(), self._has_batch()
        self._set_columns(tensors if has_batch else None, count, target if has_batch else None)
        self.non_tensor_batch: dict[str, NDArray[Any]] = dict(arrays)
        return self


def pick(source: Mapping[str, Any], keys: Keys, kind: str, missing_ok: bool = False) -> dict[str, Any]:
    """The entries of `source` under `keys`.

    Raises:
        UnknownKeyError: a key that is not there.
    """
    wanted = key_list(keys)
    if not missing_ok:
        check_known(wanted, kind, source)
    return {key: source[key] for key in wanted if key in source}


def _chosen(source: Mapping[str, Any], keys: Keys, kind: str, missing_ok: bool) -> dict[str, Any]:
    return dict(source) if keys is None else pick(source, keys, kind, missing_ok)


def without(source: Mapping[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `source` whose keys are not in `taken`."""
    return {key: value for key, value in source.items() if key not in taken}


def _count(keys: str | Sequence[str] | None) -> int:
    return 0 if keys is None else 1 if isinstance(keys, str) else len(keys)


def _renamed(columns: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): column for key, column in columns.items()}
