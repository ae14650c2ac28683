"""Batches in files: `save_to_disk` and `load_from_disk`."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from verl_protocol.arguments import flag
from verl_protocol.batch.proto import DataProto
from verl_protocol.errors import PortableError
from verl_protocol.files.safetensors import Entry, FileFormatError, MappedFile, write_file
from verl_protocol.files.values import PickleNeededError, PickleRefusedError, Reader, Writer
from verl_protocol.wire.buffers import UnknownDtypeError

__all__ = ["FileFormatError", "PickleNeededError", "PickleRefusedError", "load_from_disk", "save_to_disk"]


FILE_VERSION = "1"
_FORMAT = "verl-protocol"
_DOCUMENT = "__document__"
_MAX_HEADER_BYTES = 16 * 2**20
"""A longer description is an entry of its own: safetensors limits its header to 100 MB."""


class EndlessValueError(PortableError, ValueError):
    """A value that JSON cannot describe, as it would have no end."""

    def __init__(self) -> None:
        super().__init__(
            "the batch cannot be saved: a dict or list in it holds itself, or is nested too deeply"
        )


def save_to_disk(data: DataProto, filepath: str | os.PathLike[str], *, allow_pickle: bool = False) -> None:
    """Write a batch to a safetensors file, which takes the place of an older one once it is complete.

    Args:
        data: the batch. Tensors, arrays, and plain values (None, bools, numbers, strings, bytes, and lists,
            tuples and dicts of them) need no pickle.
        filepath: the file.
        allow_pickle: whether anything else, a subclass of DataProto too, may be written as a pickle.

    Raises:
        PickleNeededError: a value needs a pickle; nothing was written.
        EndlessValueError: a value holds itself; nothing was written.
    """
    writer = Writer(flag("allow_pickle", allow_pickle))
    try:
        document = json.dumps(_describe(data, writer))
    except RecursionError:
        raise EndlessValueError from None
    metadata = {"format": _FORMAT, "version": FILE_VERSION}
    if len(document) <= _MAX_HEADER_BYTES:
        metadata["document"] = document
    else:
        bytes_ = np.frombuffer(document.encode(), np.uint8)
        writer.entries[_DOCUMENT] = Entry(torch.uint8, (bytes_.size,), bytes_)
    write_file(os.fspath(filepath), writer.entries, metadata)


def _describe(data: DataProto, writer: Writer) -> dict[str, Any]:
    tensors = data._columns() if data._has_batch() else None
    return {
        "class": None if type(data) is DataProto else writer.encode(type(data), "the class"),
        "num_rows": data._checked_rows(),
        "on_device": data._batch_device() is not None,
        "batch": writer.encode(tensors, "batch"),
        "non_tensor_batch": writer.encode(data.non_tensor_batch, "non_tensor_batch"),
        "meta_info": writer.encode(data.meta_info, "meta_info"),
        "private": writer.encode(data._private(), "attributes"),
    }


def load_from_disk(filepath: str | os.PathLike[str], *, allow_pickle: bool = False) -> DataProto:
    """The batch in a file that `save_to_disk` wrote, on the CPU; no code from the file is run.

    The columns are private, writable views of the mapped file: what is not used is not read.

    Args:
        filepath: the file.
        allow_pickle: whether pickles in it may be loaded, which can run any code.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is not such a file, or in the format of another release.
        PickleRefusedError: it holds a pickle that is not allowed.
    """
    path, allow_pickle = os.fspath(filepath), flag("allow_pickle", allow_pickle)
    with MappedFile(path) as file:
        _check_format(path, file.metadata)
        reader = Reader(file, allow_pickle)
        try:
            document = json.loads(_document(file))
            return _restore({key: reader.decode(form) for key, form in document.items()})
        except (FileFormatError, PickleRefusedError, UnknownDtypeError):
            raise
        except (KeyError, ValueError, TypeError, AttributeError, IndexError, RuntimeError) as error:
            raise FileFormatError(path, f"its description is damaged ({error!r})") from error


def _check_format(path: str, metadata: dict[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise FileFormatError(path, "it is a safetensors file, but not one that save_to_disk wrote")
    if (found := metadata.get("version")) != FILE_VERSION:
        reads = f"verl-protocol {version('verl-protocol')} reads format {FILE_VERSION}"
        raise FileFormatError(
            path, f"it is in file format {found}, but {reads}; load it with the release that wrote it"
        )


def _document(file: MappedFile) -> str | bytes:
    inline = file.metadata.get("document")
    return bytes(file.tensor(_DOCUMENT, torch.uint8, (-1,)).numpy()) if inline is None else inline


def _restore(parts: dict[str, Any]) -> DataProto:
    data: DataProto = object.__new__(parts["class"] or DataProto)
    data.__dict__.update(parts["private"])
    data.non_tensor_batch, data.meta_info = parts["non_tensor_batch"], parts["meta_info"]
    data._set_columns(parts["batch"], parts["num_rows"], torch.device("cpu") if parts["on_device"] else None)
    return data
