"""Finds the tensors and arrays inside a value and says how each of them goes into a pickle.

There are two ways to them. A pickler of our own asks `Encoder.reduce` about every object that it meets. In a
pickle that somebody else makes, `Encoder.part` puts a `Sent` in the place of each tensor beforehand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from verl_protocol.columns.walk import Replacer
from verl_protocol.kinds import is_tensordict
from verl_protocol.wire.arrays import reduce_array
from verl_protocol.wire.buffers import Part, Reduction
from verl_protocol.wire.reduce import is_plain, reduce_dense, reduce_tensor, reduce_tensordict, restore_alias


class Composite:
    """A value that says itself which parts it is made of, as a batch does."""

    def _reduce(self, part: Part) -> Reduction:
        """The reduction of this value, in which `part` has been applied to every value inside it."""
        raise NotImplementedError

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Encoder(int(protocol)).reduce(self)


class Sent:
    """Stands for a value in somebody else's pickle; the reader finds the value itself in its place."""

    __slots__ = ("_encoder", "_value")

    def __init__(self, encoder: Encoder, value: Any) -> None:
        self._encoder: Encoder | None = encoder
        self._value = value

    def __reduce_ex__(self, protocol: Any) -> Any:
        encoder = self._encoder or Encoder(int(protocol))
        # The encoder knows this object: without this, only the cycle collector would free the tensors.
        self._encoder = None
        reduction = encoder.reduce(self._value)
        return self._value.__reduce_ex__(protocol) if reduction is None else reduction


class Encoder(Replacer):
    """The form of each value of one pickle; values that are one object when sent are one when read.

    Args:
        protocol: the protocol of the pickle.
        asked: whether the pickler asks about every object, so that nothing has to be put in its place.
    """

    def __init__(self, protocol: int, asked: bool = False) -> None:
        super().__init__()
        self._protocol = protocol
        self._asked = asked
        self._memory: dict[int, torch.Tensor] = {}

    def part(self, value: Any) -> Any:
        """The form in which a value inside another one goes into the pickle."""
        return value if self._asked else self(value)

    def change(self, value: Any) -> Any:
        """What stands for a tensor, array or batch in somebody else's pickle."""
        if isinstance(value, (torch.Tensor, np.ndarray, Composite)) or is_tensordict(value):
            return Sent(self, value)
        return value

    def reduce(self, value: Any) -> Reduction | None:
        """The function and arguments that make `value` again; None where pickle knows best."""
        if isinstance(value, torch.Tensor):
            return self._reduce_tensor(value)
        if type(value) is np.ndarray:
            return reduce_array(value, self._protocol, self.part)
        if isinstance(value, Composite):
            return value._reduce(self.part)
        return reduce_tensordict(value, self.part)

    def _reduce_tensor(self, tensor: torch.Tensor) -> Reduction | None:
        if not is_plain(tensor):
            return reduce_tensor(tensor, self._protocol, self.part)
        # The tensor is kept, so its address cannot come to mean another one.
        first = self._memory.setdefault(tensor.data_ptr(), tensor)
        if first is not tensor and _are_aliases(first, tensor):
            return restore_alias, (self.part(first),)
        return reduce_dense(tensor, self._protocol)


def _are_aliases(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two plain tensors that begin at one address are names for the same thing."""

    def described(tensor: torch.Tensor) -> tuple[Any, ...]:
        flags = (tensor.device, tensor.is_conj(), tensor.is_neg())
        return (tensor.dtype, tensor.shape, tensor.stride(), *flags)

    return first.data_ptr() != 0 and described(first) == described(second)
