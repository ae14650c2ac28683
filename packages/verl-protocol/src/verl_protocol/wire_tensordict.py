"""How a `TensorDict` and its non-tensor data are written into a pickle, and how they are made again.

tensordict is imported when one is read: whoever dumps one has imported it already.
"""

from __future__ import annotations

from typing import Any

from verl_protocol import wire_tensor
from verl_protocol.kinds import is_tensordict
from verl_protocol.nested import build_tensordict, object_column
from verl_protocol.wire_buffer import Part, Reduction


def reduce_tensordict(value: object, part: Part) -> Reduction | None:
    """The reduction of a TensorDict or non-tensor stack; None for anything else."""
    if not is_tensordict(value):
        return None
    from tensordict import NonTensorStack, TensorDict

    if type(value) is TensorDict:
        return _reduce_plain(value, part)
    if type(value) is NonTensorStack and value.ndim == 1 and len(value):
        return restore_non_tensor_stack, (part(value.tolist()),)
    return None


def _reduce_plain(value: Any, part: Part) -> Reduction:
    entries = {key: part(entry) for key, entry in value.items()}
    names = value.names if any(name is not None for name in value.names or ()) else None
    return restore_tensordict, (entries, tuple(value.batch_size), names, value.device is not None)


def restore_tensordict(
    entries: dict[str, Any], batch_size: tuple[int, ...], names: Any, on_device: bool
) -> Any:
    """An unlocked TensorDict; where the sent one had a device, it has that of the loaded tensors."""
    device = (wire_tensor.target_device() or "cpu") if on_device else None
    return build_tensordict(entries, batch_size=batch_size, names=names, device=device)


def restore_non_tensor_stack(items: list[Any]) -> Any:
    """Non-tensor data of one entry per row."""
    from tensordict import NonTensorData, NonTensorStack

    return NonTensorStack(*(NonTensorData(item) for item in object_column(items)))
