"""Rows added so that a batch divides evenly, and taken off again.

Padding is known (a mask on request), reversible, and touches neither metrics nor meta_info nor the caller's
batch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal, SupportsIndex, TypeVar

import numpy as np
import torch

from verl_protocol.arguments import flag, whole_number
from verl_protocol.batch.state import BatchState, check_batch
from verl_protocol.columns import objects, ops
from verl_protocol.columns.checks import check_disjoint
from verl_protocol.columns.remote import RemoteColumn, form_of, zero_rows
from verl_protocol.errors import InvalidValueError, counted, short

PadPolicy = Literal["repeat", "last", "zeros"]
"""Where pad rows come from: the rows from the start over and over, the last row, or zeros.

A pad row of zeros holds 0, False or "" in numeric and string columns, None in object columns, and in a jagged
column it is an empty row.
"""


class _DataProtoConfigMeta(type):
    _auto_padding: bool | None = None

    @property
    def auto_padding(cls) -> bool:
        """Whether dispatch may pad every batch; follows the variable VERL_AUTO_PADDING unless set."""
        if cls._auto_padding is not None:
            return cls._auto_padding
        return os.environ.get("VERL_AUTO_PADDING", "").strip().lower() in ("1", "true")

    @auto_padding.setter
    def auto_padding(cls, enabled: bool) -> None:
        cls._auto_padding = flag("auto_padding", enabled)


class DataProtoConfig(metaclass=_DataProtoConfigMeta):
    """Settings for all batches of this process.

    `DataProtoConfig.auto_padding = True` lets dispatch pad any batch whose rows do not divide by the workers.
    """


class BatchPadding(BatchState):
    """The padding of `DataProto`."""

    def padding(self, padding_size: SupportsIndex, padding_candidate: str = "") -> None:
        """Add copies of the last row ("first": of the first row) to this batch itself.

        Raises:
            InvalidValueError: the batch has no rows.
        """
        size, count = whole_number("padding_size", padding_size, 0), self._row_count()
        if not size:
            return
        _check_can_pad(count, size)
        source = 0 if padding_candidate == "first" else count - 1
        self._become(self._take(torch.cat([torch.arange(count), torch.full((size,), source)])))

    def is_padding_enabled(self) -> bool:
        """Whether dispatch may pad this batch: by its own flag, or by `DataProtoConfig.auto_padding`."""
        return self._auto_padding or DataProtoConfig.auto_padding

    @property
    def pad_mask(self) -> torch.Tensor:
        """Which rows are padding: a bool tensor on the CPU, one entry per row."""
        return torch.zeros(self._row_count(), dtype=torch.bool) if self._pad_mask is None else self._pad_mask


B = TypeVar("B", bound=BatchPadding)


def pad_dataproto_to_divisor(
    data: B, size_divisor: SupportsIndex, policy: PadPolicy = "repeat", mask_key: str | None = None
) -> tuple[B, int]:
    """A batch whose number of rows is a multiple of `size_divisor`, and how many rows were added at its end.

    The result has a `pad_mask`. A batch without rows divides by anything and gets no pad rows.

    Args:
        policy: where pad rows come from (see `PadPolicy`).
        mask_key: the key of a bool tensor column to add that is True in pad rows.

    Raises:
        InvalidValueError: `size_divisor` is less than 1, or an unknown policy.
        KeyConflictError: the batch has a column `mask_key`.

    >>> from verl_protocol import DataProto
    >>> data = DataProto.from_dict(tensors={"a": torch.arange(3)})
    >>> padded, pad_size = pad_dataproto_to_divisor(data, 4)
    >>> padded.batch["a"].tolist(), pad_size
    ([0, 1, 2, 0], 1)
    """
    check_batch(data)
    divisor = whole_number("size_divisor", size_divisor, 1)
    pad_size = -data._row_count() % divisor
    padded = pad_rows(data, pad_size, policy)
    if mask_key is not None:
        _add_mask(padded, mask_key)
    return padded, pad_size


def _add_mask(data: BatchPadding, key: str) -> None:
    tensors = data._held()
    check_disjoint([*tensors, *data.non_tensor_batch], [key], "a column and the pad mask")
    device = next((column.device for column in tensors.values() if isinstance(column, torch.Tensor)), None)
    mask = data.pad_mask.to(device, copy=True)
    data._set_columns({**tensors, key: mask}, data._row_count(), data._batch_device())


def pad_rows(data: B, pad_size: SupportsIndex, policy: PadPolicy = "repeat") -> B:
    """A batch with `pad_size` more rows at its end, marked in its `pad_mask`."""
    if policy not in ("repeat", "last", "zeros"):
        raise InvalidValueError(f"policy must be 'repeat', 'last' or 'zeros', got {short(policy)}")
    count, pad_size = data._row_count(), whole_number("pad_size", pad_size, 0)
    _check_can_pad(count, pad_size)
    if pad_size == 0:
        padded = data._take(range(count))
    elif policy == "zeros":
        padded = data._map_rows(lambda columns: _with_zero_rows(columns, pad_size), count + pad_size)
    else:
        source = torch.arange(pad_size) % count if policy == "repeat" else torch.full((pad_size,), count - 1)
        padded = data._take(torch.cat([torch.arange(count), source]))
    padded._pad_mask = torch.cat([data.pad_mask, torch.ones(pad_size, dtype=torch.bool)])
    return padded


def _check_can_pad(num_rows: int, pad_size: int) -> None:
    if pad_size and not num_rows:
        raise InvalidValueError(
            f"cannot add {counted(pad_size, 'pad row')} to a batch without rows: there is no row to repeat"
        )


def _with_zero_rows(columns: Mapping[str, Any], pad_size: int) -> dict[str, Any]:
    zeros = {key: _zero_rows(column, pad_size) for key, column in columns.items()}
    return ops.concat_all([columns, ops.keep_shared(ops.sharing(columns), zeros)])


def _zero_rows(column: Any, num_rows: int) -> Any:
    if isinstance(column, (torch.Tensor, np.ndarray, RemoteColumn)):
        return zero_rows(form_of(column), num_rows)
    return objects.map_rows(column, num_rows, lambda part: _zero_rows(part, num_rows))


def unpad_dataproto(data: B, pad_size: SupportsIndex) -> B:
    """The batch without its last `pad_size` rows.

    Raises:
        InvalidValueError: `pad_size` is negative.
        InvalidValueError: `pad_size` is more than the batch has.
    """
    check_batch(data)
    pad_size = whole_number("pad_size", pad_size, 0)
    count = data._row_count()
    if pad_size > count:
        raise InvalidValueError(
            f"cannot take {counted(pad_size, 'pad row')} off a batch of {counted(count, 'row')}"
        )
    unpadded = data._take(range(count - pad_size))
    if pad_size and unpadded._pad_mask is not None and not unpadded._pad_mask.any():
        unpadded._pad_mask = None
    return unpadded
