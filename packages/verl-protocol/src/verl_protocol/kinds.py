"""Whether a value is a tensor or a TensorDict, answered without importing what defines these.

Of a class whose module nobody has imported there are no objects. So a process that has nothing to do with
tensors, such as a worker that runs rules or tools, goes without torch, whose import takes seconds.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, TypeGuard

if TYPE_CHECKING:
    import torch
    from typing_extensions import TypeIs


PLAIN: Final[frozenset[type]] = frozenset([str, int, float, bool, bytes, complex, type(None)])
"""Types of values that hold nothing else and cannot be changed."""


def is_tensor(value: object) -> TypeIs[torch.Tensor]:
    """Whether `value` is a tensor of any kind."""
    # With a default, here and below: another thread may be in the middle of the import. Nothing is a `()`.
    return isinstance(value, getattr(sys.modules.get("torch"), "Tensor", ()))


def is_jagged(value: object) -> TypeGuard[torch.Tensor]:
    """Whether `value` is a nested tensor of the jagged layout."""
    # Asking for `value.layout` would import torch.distributed.tensor.
    return isinstance(
        value, getattr(sys.modules.get("torch.nested._internal.nested_tensor"), "NestedTensor", ())
    )


def is_tensordict(value: object) -> bool:
    """Whether `value` is a TensorDict of any kind."""
    return isinstance(value, getattr(sys.modules.get("tensordict"), "TensorDictBase", ()))


def is_unbatched(value: object) -> bool:
    """Whether `value` is what a TensorDict has for all rows together, an `UnbatchedTensor`."""
    return isinstance(value, getattr(sys.modules.get("tensordict"), "UnbatchedTensor", ()))
