"""Values as JSON with types, and the tensors inside them as entries of a file.

None, bools, numbers and strings are themselves in JSON; everything else is an object with one key that names
its type. What has no type here is pickled, but only where that was asked for.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from verl_protocol.columns.jagged import check_jagged, jagged_parts
from verl_protocol.errors import PickleRefusedError
from verl_protocol.files.safetensors import Entry, tensor_in
from verl_protocol.kinds import is_jagged, is_tensordict
from verl_protocol.wire import reduce
from verl_protocol.wire.arrays import restore_objects
from verl_protocol.wire.buffers import array_bytes

_TENSOR_CLASSES = frozenset(["Tensor", "Parameter", "MemoryMappedTensor"])
"""Classes of tensors of which only the data is saved."""

_JSON = frozenset([type(None), bool, int, float, str])


class Writer:
    """Encodes values, and gathers the tensors that it finds inside them."""

    def __init__(self, allow_pickle: bool) -> None:
        self.entries: dict[str, Entry] = {}
        self._allow_pickle = allow_pickle

    def encode(self, value: Any, place: str) -> Any:
        """The JSON form of `value`, which is at `place` in the batch.

        Raises:
            PickleRefusedError: only pickle can write it, and that is not allowed.
        """
        kind = type(value)
        if kind in _JSON:
            return value
        if kind is dict:
            items = [
                [self.encode(key, place), self.encode(item, f"{place}[{key!r}]")]
                for key, item in value.items()
            ]
            return {"dict": items}
        if kind is list or kind is tuple:
            return {kind.__name__: self._items(value, place)}
        if kind is bytes:
            return {"bytes": base64.b64encode(value).decode()}
        if kind is complex:
            return {"complex": [value.real, value.imag]}
        return self._data(value, place) or self._pickled(value, place)

    def _items(self, items: Any, place: str) -> list[Any]:
        if _JSON.issuperset(map(type, items)):
            return list(items)
        return [self.encode(item, f"{place}[{index}]") for index, item in enumerate(items)]

    def _data(self, value: Any, place: str) -> dict[str, Any] | None:
        if isinstance(value, torch.Tensor):
            return self._tensor(value, place)
        if type(value) is np.ndarray:
            return self._array(value, place)
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUmM":
            return {"scalar": self._array(np.asarray(value), place)}
        return self._tensordict(value, place) if is_tensordict(value) else None

    def _tensor(self, value: torch.Tensor, place: str) -> dict[str, Any] | None:
        if is_jagged(value):
            parts = jagged_parts(value)
            named = zip(("values", "offsets", "lengths"), parts, strict=False)
            encoded = {name: self.encode(part, f"{place}.{name}") for name, part in named}
            return {"jagged": {**encoded, "dim": parts.dim}}
        if not reduce.is_dense(value) or value.is_meta or type(value).__name__ not in _TENSOR_CLASSES:
            return None
        shape = tuple(value.shape)
        name = self._add(place, Entry(value.dtype, shape, reduce.tensor_bytes(value)))
        return {"tensor": {"entry": name, "dtype": reduce.dtype_name(value.dtype), "shape": list(shape)}}

    def _array(self, value: NDArray[Any], place: str) -> dict[str, Any] | None:
        if value.dtype == object:
            return {
                "objects": {"shape": list(value.shape), "items": self._items(value.ravel().tolist(), place)}
            }
        if value.dtype.kind not in "biufcSUmM" or np.dtype(value.dtype.str) != value.dtype:
            return None
        data = array_bytes(value)
        name = self._add(place, Entry(torch.uint8, (data.size,), data))
        return {"array": {"entry": name, "dtype": value.dtype.str, "shape": list(value.shape)}}

    def _tensordict(self, value: Any, place: str) -> dict[str, Any] | None:
        from tensordict import NonTensorStack, TensorDict

        if type(value) is NonTensorStack and value.ndim == 1 and len(value):
            return {"non_tensor_stack": self._items(value.tolist(), place)}
        if type(value) is not TensorDict:
            return None
        entries = {key: self.encode(entry, f"{place}[{key!r}]") for key, entry in value.items()}
        return {"tensordict": {"entries": entries, "batch_size": list(value.batch_size)}}

    def _pickled(self, value: Any, place: str) -> dict[str, Any]:
        if not self._allow_pickle:
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            raise PickleRefusedError(
                f"{place} holds a {kind}, which can only be saved as a pickle; convert it to plain values, "
                "or pass allow_pickle=True (to load_from_disk as well)"
            )
        data = np.frombuffer(pickle.dumps(value, 5), np.uint8)
        return {"pickle": {"entry": self._add(place, Entry(torch.uint8, (data.size,), data)), "place": place}}

    def _add(self, place: str, entry: Entry) -> str:
        name = place if place not in self.entries else f"{place}#{len(self.entries)}"
        self.entries[name] = entry
        return name


class Reader:
    """Decodes what a `Writer` has encoded."""

    def __init__(self, path: str, file: Any, allow_pickle: bool) -> None:
        self._path = path
        self._file = file
        self._allow_pickle = allow_pickle
        self._kinds: dict[str, Callable[[Any], Any]] = {
            "dict": lambda items: {self.decode(key): self.decode(item) for key, item in items},
            "list": self._items,
            "tuple": lambda items: tuple(self._items(items)),
            "bytes": base64.b64decode,
            "complex": lambda parts: complex(*parts),
            "scalar": lambda form: self.decode(form)[()],
            "tensor": self._tensor,
            "jagged": self._jagged,
            "array": self._array,
            "objects": lambda form: restore_objects(self._items(form["items"]), tuple(form["shape"])),
            "tensordict": self._tensordict,
            "non_tensor_stack": lambda items: reduce.restore_non_tensor_stack(self._items(items)),
            "pickle": self._pickle,
        }

    def decode(self, form: Any) -> Any:
        """The value of a JSON form.

        Raises:
            PickleRefusedError: it holds a pickle, and that is not allowed.
        """
        if type(form) is not dict:
            return form
        ((kind, content),) = form.items()
        return self._kinds[kind](content)

    def _items(self, items: list[Any]) -> list[Any]:
        return [self.decode(item) for item in items]

    def _tensor(self, form: dict[str, Any]) -> torch.Tensor:
        return tensor_in(self._file, form["entry"], reduce.dtype_named(form["dtype"]), tuple(form["shape"]))

    def _jagged(self, form: dict[str, Any]) -> torch.Tensor:
        parts = [self.decode(form[name]) for name in ("values", "offsets", "lengths")]
        jagged = reduce.restore_jagged(parts[0], parts[1], parts[2], form["dim"], None, None)
        check_jagged(jagged)
        return jagged

    def _array(self, form: dict[str, Any]) -> NDArray[Any]:
        dtype, shape = np.dtype(form["dtype"]), tuple(form["shape"])
        data: NDArray[Any] = self._bytes(form["entry"]).numpy()
        array: NDArray[Any] = (data if data.size else np.empty(0, np.uint8)).view(dtype)
        return array.reshape(shape)

    def _bytes(self, entry: str) -> torch.Tensor:
        return tensor_in(self._file, entry, torch.uint8, (-1,))

    def _tensordict(self, form: dict[str, Any]) -> Any:
        entries = {key: self.decode(entry) for key, entry in form["entries"].items()}
        return reduce.restore_tensordict(entries, tuple(form["batch_size"]), None, False)

    def _pickle(self, form: dict[str, Any]) -> Any:
        if not self._allow_pickle:
            raise PickleRefusedError(
                f"{self._path!r} holds a pickle in {form['place']}, and loading a pickle can run any "
                "code; if you trust the file, pass allow_pickle=True to load_from_disk"
            )
        return pickle.loads(self._bytes(form["entry"]).numpy().data)
