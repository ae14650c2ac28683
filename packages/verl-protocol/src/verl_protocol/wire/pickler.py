"""A pickler that asks about every object first whether it is a tensor, an array or a batch."""

from __future__ import annotations

import pickle
import sys
from functools import cache
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

import numpy as np

from verl_protocol.wire.arrays import reduce_array
from verl_protocol.wire.buffers import SelfReduced

if TYPE_CHECKING:
    from verl_protocol.wire.buffers import Reduction
    from verl_protocol.wire.encoder import Encoder


_NEVER_REDUCED = frozenset([type, FunctionType, BuiltinFunctionType, MethodType])
"""Types of objects that a pickler asks about often, and of which the encoder knows nothing."""

_OURS = ("verl_protocol.", "verl_dispatch.", "verl_ray.")


@cache
def asking_pickler(base: type[pickle.Pickler]) -> type[pickle.Pickler]:
    """A pickler like `base` that asks an `Encoder` first."""
    fallback = getattr(base, "reducer_override", None)

    class AskingPickler(base):  # type: ignore[valid-type, misc]
        _encoder: Encoder | None = None

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, SelfReduced):
                return obj.__reduce__()
            if type(obj) not in _NEVER_REDUCED:
                if self._encoder is None and "torch" in sys.modules:
                    from verl_protocol.wire.encoder import Encoder

                    self._encoder = Encoder(5, asked=True)
                # As long as nobody has imported torch, there are neither tensors nor batches.
                encoder = self._encoder
                reduction = _without_torch(obj) if encoder is None else encoder.reduce(obj)
                if reduction is not None:
                    return reduction
            elif (obj.__module__ or "").startswith(_OURS):
                # By name, as every pickler does it: cloudpickle takes long to come to that, and half of
                # what a message asks about are functions that read it.
                if type(obj) is not MethodType:
                    if _is_found_by_name(obj):
                        return NotImplemented
                elif getattr(obj.__self__, obj.__name__, None) == obj:
                    return getattr, (obj.__self__, obj.__name__)
            return NotImplemented if fallback is None else fallback(self, obj)

    return AskingPickler


@cache
def _is_found_by_name(obj: Any) -> bool:
    """Not so what was made in a function, a wrapper of something of ours, or what a subclass overrides."""
    found: Any = sys.modules.get(obj.__module__)
    for name in obj.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is obj


def _without_torch(value: Any) -> Reduction | None:
    return reduce_array(value, 5, _as_it_is) if type(value) is np.ndarray else None


def _as_it_is(value: Any) -> Any:
    return value
