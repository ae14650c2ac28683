"""Row operations on one jagged tensor, done on its values and offsets and never by looping over rows.

A jagged tensor keeps the values of all its rows in one buffer; row `i` is
`values[offsets[i]:offsets[i + 1]]` along the ragged dimension. Some have `lengths` as well, which leave
gaps between rows. Whatever happens to the rows, the ragged dimension stays the one it was: it is read
from the tensor and never guessed from shapes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch

from verl_protocol.columns.dense import concat_dense, gather, numpy_reads, of_dtype, same_bits
from verl_protocol.errors import ColumnError


class JaggedParts(NamedTuple):
    """What a jagged tensor consists of; `dim` is its ragged dimension (1 or more)."""

    values: torch.Tensor
    offsets: torch.Tensor
    lengths: torch.Tensor | None
    dim: int

    @property
    def row_lengths(self) -> torch.Tensor:
        """How many entries each row has along the ragged dimension."""
        return self.offsets.diff() if self.lengths is None else self.lengths


def not_jagged(what: str) -> ColumnError:
    """The error about a nested tensor of the strided layout, whose rows cannot be found without a loop."""
    return ColumnError(
        f"{what} is a nested tensor of the strided layout; build it with layout=torch.jagged "
        "(for example torch.nested.as_nested_tensor(rows, layout=torch.jagged))"
    )


def jagged_parts(tensor: torch.Tensor) -> JaggedParts:
    """Values, offsets, lengths (None without gaps) and ragged dimension of a jagged tensor."""
    given: Any = tensor
    # The public accessor goes through autograd and costs some 50 us, so it is used only where it is needed.
    values = tensor.values() if tensor.requires_grad else given._values
    return JaggedParts(values, given._offsets, given._lengths, given._ragged_idx)


def ragged_dim(tensor: torch.Tensor) -> int:
    """The dimension of a jagged tensor along which its rows differ, counted from the rows' own 0."""
    dim: int = tensor._ragged_idx  # type: ignore[attr-defined]
    return dim


def build_jagged(
    values: torch.Tensor,
    offsets: torch.Tensor,
    dim: int,
    lengths: torch.Tensor | None = None,
    min_length: int | None = None,
    max_length: int | None = None,
    counting: bool = False,
) -> torch.Tensor:
    """A jagged tensor over `values`, whose rows differ along `dim`.

    Args:
        min_length: the length of the shortest row, where it is known.
        max_length: that of the longest.
        counting: whether writes into it shall count for `values`.
    """
    if counting or values.requires_grad:
        # A view that autograd knows: gradients flow through it.
        return torch.nested.nested_tensor_from_jagged(
            values, offsets, lengths, jagged_dim=dim, min_seqlen=min_length, max_seqlen=max_length
        )
    # torch calls this itself when it unpickles one. `nested_tensor_from_jagged` takes ten times as long; its
    # first call imports sympy and torch.distributed.tensor (seconds) and logs a line about tracing.
    from torch.nested._internal.nested_tensor import NestedTensor, _store_val_in_tensor

    made: Any = NestedTensor(values=values, offsets=offsets, lengths=lengths, _ragged_idx=dim)
    # As torch itself keeps them once it has looked: its constructor imports the compiler for them.
    for name, length in (("min_seqlen", min_length), ("max_seqlen", max_length)):
        if length is not None:
            made._metadata_cache[name] = _store_val_in_tensor(length)
    return cast("torch.Tensor", made)


def check_jagged(tensor: torch.Tensor) -> None:
    """Raises if a row would lie outside the values, which torch finds out late and in words of its own.

    Raises:
        ColumnError: one does.
    """
    values, offsets, lengths, dim = jagged_parts(tensor)
    ends = offsets[1:] if lengths is None else offsets[:-1] + lengths
    steps = [offsets.diff(), ends - offsets[:-1], values.shape[dim - 1] - ends]
    if not 1 <= dim <= values.ndim or offsets[0] < 0 or any((step < 0).any() for step in steps):
        raise ColumnError(f"the rows of a jagged tensor lie outside its {values.shape[dim - 1]} values")


def num_jagged_rows(tensor: torch.Tensor) -> int:
    """The number of rows of a jagged tensor."""
    offsets: torch.Tensor = tensor._offsets  # type: ignore[attr-defined]
    return offsets.numel() - 1


def offsets_of(lengths: torch.Tensor) -> torch.Tensor:
    """Where rows of these lengths begin and end when they lie back to back: one entry more than rows."""
    offsets = lengths.new_zeros(lengths.numel() + 1)
    torch.cumsum(lengths, 0, out=offsets[1:])
    return offsets


def split_jagged(tensor: torch.Tensor, spans: Sequence[tuple[int, int]]) -> list[torch.Tensor]:
    """The rows of each `(start, stop)` as views of the tensor's values."""
    parts = jagged_parts(tensor)
    limits = parts.offsets.tolist()
    return [_view(parts, start, stop, limits[start], limits[stop]) for start, stop in spans]


def _view(parts: JaggedParts, start: int, stop: int, first: int, last: int) -> torch.Tensor:
    values = parts.values.narrow(parts.dim - 1, first, last - first)
    lengths = None if parts.lengths is None else parts.lengths[start:stop]
    return build_jagged(values, parts.offsets[start : stop + 1] - first, parts.dim, lengths)


def take_jagged(tensor: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """The rows named by `index` (int64, not negative), gathered in one go; gaps are left behind."""
    parts = jagged_parts(tensor)
    index = index.to(parts.offsets.device)
    lengths = parts.row_lengths.index_select(0, index)
    starts, offsets = parts.offsets[:-1].index_select(0, index), offsets_of(lengths)
    take = _join_rows if len(index) and _has_long_rows(parts) else _gather_entries
    return build_jagged(take(parts, starts, lengths, offsets), offsets, parts.dim)


def _gather_entries(
    parts: JaggedParts, starts: torch.Tensor, lengths: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    total = int(offsets[-1])
    # An entry of the result comes from its row's start in the source plus its place in the row.
    source = torch.arange(total, device=offsets.device)
    source += _repeated(starts - offsets[:-1], lengths, total)
    return gather(parts.values, parts.dim - 1, source)


def _repeated(values: torch.Tensor, times: torch.Tensor, total: int) -> torch.Tensor:
    if values.device.type != "cpu":
        return torch.repeat_interleave(values, times, output_size=total)
    # torch wakes all its threads for this, however few rows there are: milliseconds on a busy machine.
    return torch.from_numpy(np.repeat(values.numpy(), times.numpy()))


_LONG_ROW = 32
"""From this mean number of entries on, joining slices beats a gather, whose index has 8 bytes per entry."""


def _has_long_rows(parts: JaggedParts) -> bool:
    values, num_rows = parts.values, parts.offsets.numel() - 1
    return numpy_reads(values) and values.shape[parts.dim - 1] >= num_rows * _LONG_ROW


def _join_rows(
    parts: JaggedParts, starts: torch.Tensor, lengths: torch.Tensor, offsets: torch.Tensor
) -> torch.Tensor:
    # numpy cuts and joins thousands of slices in a fraction of the time that torch takes.
    values = same_bits(parts.values)
    before = (slice(None),) * (parts.dim - 1)
    spans = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    pieces = [values[(*before, slice(start, stop))] for start, stop in spans]
    return of_dtype(torch.from_numpy(np.concatenate(pieces, parts.dim - 1)), parts.values.dtype)


def concat_jagged(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The rows of all tensors, one after the other; all have the same ragged dimension."""
    parts = [compact_parts(tensor) for tensor in tensors]
    dim = parts[0].dim
    values = concat_dense([part.values for part in parts], dim - 1)
    lengths = torch.cat([part.offsets.diff() for part in parts]).to(parts[0].offsets.dtype)
    return build_jagged(values, offsets_of(lengths), dim)


def compact_parts(tensor: torch.Tensor) -> JaggedParts:
    """The tensor's parts, its values cut or gathered such that rows fill them from end to end."""
    parts = jagged_parts(tensor)
    if parts.lengths is not None:
        every_row = torch.arange(num_jagged_rows(tensor), device=parts.offsets.device)
        return jagged_parts(take_jagged(tensor, every_row))
    first, last = int(parts.offsets[0]), int(parts.offsets[-1])
    values = parts.values.narrow(parts.dim - 1, first, last - first)
    return parts._replace(values=values, offsets=parts.offsets - first if first else parts.offsets)


def with_offsets_of(tensor: torch.Tensor, model: torch.Tensor) -> torch.Tensor:
    """The same rows over the very offsets of `model`, so that torch sees that the two have equal shapes."""
    like, own = jagged_parts(model), jagged_parts(tensor)
    return build_jagged(own.values, like.offsets, own.dim, like.lengths)
