"""What a batch looks like and how large it is."""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.columns import jagged
from verl_protocol.columns.remote import RemoteColumn
from verl_protocol.errors import counted, short
from verl_protocol.kinds import is_jagged, is_tensordict
from verl_protocol.tables import html_table
from verl_protocol.wire import nbytes_of

if TYPE_CHECKING:
    from verl_protocol.batch.state import BatchState


MOST_LINES = 40
"""A repr shows so many columns and says how many more there are."""

GIB = 1024**3


def describe_column(column: Any) -> str:
    """Dtype, shape and device of a column, on one line."""
    if isinstance(column, np.ndarray):
        return f"{column.dtype}{list(column.shape)}"
    if is_tensordict(column):
        return f"TensorDict with {sorted(map(str, column.keys()))}"
    if not isinstance(column, (torch.Tensor, RemoteColumn)):
        return type(column).__name__
    ragged = jagged.ragged_dim(column) if is_jagged(column) else None
    if ragged is None and isinstance(column, torch.Tensor) and column.is_nested:
        return "nested tensor of the strided layout"
    sizes = ["*" if size is None or at == ragged else str(size) for at, size in enumerate(column.shape)]
    shown = f"{str(column.dtype).removeprefix('torch.')}[{', '.join(sizes)}]"
    if isinstance(column, RemoteColumn):
        return f"{shown} remote in {counted(len(column.pieces), 'piece')}"
    return f"{shown} on {column.device}" if ragged is None else f"{shown} jagged on {column.device}"


def describe(data: BatchState) -> str:
    """A bounded repr: rows, columns with shape, dtype and device, the keys of meta_info."""
    return "\n".join([_head(data), *map(_as_text, _lines(_columns(data), data))]) + ")"


def describe_html(data: BatchState) -> str:
    """The same as an HTML table."""
    return html_table(["column", "holds"], _lines(_columns(data), data), _head(data) + ")")


def _head(data: BatchState) -> str:
    return f"{type(data).__name__}({counted(data._row_count(), 'row')}"


def _columns(data: BatchState) -> dict[str, str]:
    columns = {**data._held(), **data.non_tensor_batch}
    return {key: describe_column(column) for key, column in columns.items()}


def describe_item(item: BatchState) -> str:
    """A bounded repr of one row: tensors with shape, dtype and device, objects as far as they are short."""
    tensors = {key: describe_column(tensor) for key, tensor in item._columns().items()}
    objects = {key: short(value) for key, value in item.non_tensor_batch.items()}
    lines = map(_as_text, _lines({**tensors, **objects}, item))
    return "\n".join([f"{type(item).__name__}(", *lines]) + ")"


def _as_text(line: tuple[str, str]) -> str:
    key, text = line
    return f"  {key}: {text}" if text else f"  {key}"


def _lines(described: Mapping[str, str], data: BatchState) -> Iterator[tuple[str, str]]:
    yield from list(described.items())[:MOST_LINES]
    if len(described) > MOST_LINES:
        yield f"... and {len(described) - MOST_LINES} more columns", ""
    yield "meta_info", reprlib.repr(data.meta_info)


def data_info(data: BatchState) -> str:
    """Every column and every entry of meta_info with its type, one a line."""
    sections = {
        "batch": {key: describe_column(column) for key, column in data._held().items()},
        "non_tensor_batch": {key: _describe_array(column) for key, column in data.non_tensor_batch.items()},
        "meta_info": {key: f"{type(value).__name__} {short(value)}" for key, value in data.meta_info.items()},
    }
    return "\n".join(line for name, entries in sections.items() for line in _section(name, entries))


def _section(name: str, entries: Mapping[str, str]) -> Iterator[str]:
    yield f"{name}:" + ("" if entries else " none")
    yield from (f"  {key}: {text}" for key, text in entries.items())


def _describe_array(column: NDArray[Any]) -> str:
    held = column.ravel()[:100].tolist() if column.dtype == object else []
    kinds = sorted({type(item).__name__ for item in held})
    return describe_column(column) + (f" of {', '.join(kinds)}" if kinds else "")


def size_line(data: BatchState, prefix: str) -> str:
    """How much memory tensors and arrays take, on one line."""
    held = data._held()
    tensors, arrays = nbytes_of(held), nbytes_of(data.non_tensor_batch)
    sizes = f"Size of tensordict: {tensors / GIB} GB, size of non_tensor_batch: {arrays / GIB} GB"
    if remote := [column.nbytes for column in held.values() if isinstance(column, RemoteColumn)]:
        sizes += f", remote: {sum(remote) / GIB} GB"
    return f"{prefix}, {sizes}" if prefix else sizes
