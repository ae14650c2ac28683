"""The parts of a batch as one file; the batch itself says what they are, and is made of them again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import torch

from verl_protocol.arguments import flag
from verl_protocol.errors import FileFormatError, InvalidValueError, PickleRefusedError, UnknownDtypeError
from verl_protocol.files.safetensors import Entry, open_file, tensor_in, write_file
from verl_protocol.files.values import Reader, Writer

T = TypeVar("T")

FILE_VERSION = "1"
_FORMAT = "verl-protocol"
_DOCUMENT = "__document__"
_MAX_HEADER_BYTES = 16 * 2**20
"""A longer description is an entry of its own: safetensors limits its header to 100 MB."""


_PLACES = {"class": "the class", "private": "attributes"}
"""What parts are called in errors, where the user does not know them by their name in the file."""


def write_parts(filepath: str | os.PathLike[str], parts: Mapping[str, Any], allow_pickle: bool) -> None:
    """Write named values to a safetensors file, which takes the place of an older one once it is complete.

    Raises:
        PickleRefusedError: a value needs a pickle, and that is not allowed; nothing was written.
        InvalidValueError: a value holds itself; nothing was written.
    """
    writer = Writer(flag("allow_pickle", allow_pickle))
    try:
        encoded = {name: writer.encode(part, _PLACES.get(name, name)) for name, part in parts.items()}
        document = json.dumps(encoded)
    except RecursionError:
        raise InvalidValueError(
            "the batch cannot be saved: a dict or list in it holds itself, or is nested too deeply"
        ) from None
    metadata = {"format": _FORMAT, "version": FILE_VERSION}
    if len(document) <= _MAX_HEADER_BYTES:
        metadata["document"] = document
    else:
        bytes_ = np.frombuffer(document.encode(), np.uint8)
        writer.entries[_DOCUMENT] = Entry(torch.uint8, (bytes_.size,), bytes_)
    write_file(os.fspath(filepath), writer.entries, metadata)


def read_parts(
    filepath: str | os.PathLike[str], make: Callable[[dict[str, Any]], T], allow_pickle: bool
) -> T:
    """What `make` makes of the parts in a file that `write_parts` wrote; no code from the file is run.

    Tensors and arrays are private, writable views of the mapped file: what is not used is not read.

    Raises:
        FileNotFoundError: there is no such file.
        FileFormatError: it is not such a file, or in the format of another release.
        PickleRefusedError: it holds a pickle that is not allowed.
    """
    path, allow_pickle = os.fspath(filepath), flag("allow_pickle", allow_pickle)
    with open_file(path) as file:
        metadata = file.metadata() or {}
        _check_format(path, metadata)
        reader = Reader(path, file, allow_pickle)
        try:
            document = metadata.get("document") or bytes(
                tensor_in(file, _DOCUMENT, torch.uint8, (-1,)).numpy()
            )
            return make({name: reader.decode(form) for name, form in json.loads(document).items()})
        except (FileFormatError, PickleRefusedError, UnknownDtypeError):
            raise
        except Exception as error:
            # Whatever a hostile description leads to, in numpy, torch or here.
            raise FileFormatError(path, f"its description is damaged ({error!r})") from error


def _check_format(path: str, metadata: dict[str, str]) -> None:
    if metadata.get("format") != _FORMAT:
        raise FileFormatError(path, "it is a safetensors file, but not one that save_to_disk wrote")
    if (found := metadata.get("version")) != FILE_VERSION:
        reads = f"verl-protocol {version('verl-protocol')} reads format {FILE_VERSION}"
        raise FileFormatError(
            path, f"it is in file format {found}, but {reads}; load it with the release that wrote it"
        )
