"""Files in the safetensors format: written in place of one another in one step, read by mapping them.

Dtypes that every release of safetensors knows are stored under their names, so that other tools can read
them; all others as raw bytes.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from verl_protocol.errors import FileFormatError
from verl_protocol.wire.buffers import Bytes

_NAMES: dict[torch.dtype, str] = {
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.bool: "BOOL",
}
_HEADER_ALIGNMENT = 64


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: its dtype, shape and bytes."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    data: Bytes


def write_file(path: str, entries: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    """Write a file, and put it in the place of the one that may be there once it is complete."""
    # The widest items first: with nothing between them, every tensor is then aligned to its items.
    ordered = sorted(entries.items(), key=lambda item: -item[1].dtype.itemsize)
    with _replacing(path) as stream:
        stream.write(_header(ordered, metadata))
        for _, entry in ordered:
            stream.write(entry.data.data)


def _header(entries: list[tuple[str, Entry]], metadata: Mapping[str, str]) -> bytes:
    described: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name, entry in entries:
        start, end = end, end + entry.data.size
        dtype = _NAMES.get(entry.dtype)
        shape = [entry.data.size] if dtype is None else entry.shape
        described[name] = {"dtype": dtype or "U8", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(described, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _HEADER_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


@contextmanager
def _replacing(path: str) -> Iterator[IO[bytes]]:
    target = Path(path)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(target)
    except OSError as error:
        # The user knows nothing of the draft: what cannot be written is the file.
        if error.filename == str(draft):
            error.filename, error.filename2 = str(target), None
        raise
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def open_file(path: str) -> Any:
    """A file that is open for reading, as safetensors gives it: with `metadata()` and `get_tensor(name)`.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is no safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    os.stat(path)
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise FileFormatError(path, f"it is no safetensors file ({error})") from error


def tensor_in(file: Any, name: str, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """One tensor of an open file, as a private, writable view of the mapped file."""
    stored: torch.Tensor = file.get_tensor(name)
    if stored.dtype is dtype:
        return stored.view(shape)
    if stored.data_ptr() % dtype.itemsize or stored.storage_offset() % dtype.itemsize:
        stored = stored.clone()
    return stored.view(dtype).view(shape)
