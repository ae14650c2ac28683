"""Accelerators by name, and the variables that say which of them a process may see."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_protocol.arguments import text
from verl_protocol.errors import InvalidValueError

from verl_ray.errors import unusable


@dataclass(frozen=True)
class Accelerator:
    """One kind of accelerator: its Ray resource, the mask variable, torch's names for such devices, and how
    Ray's switch calls the mask."""

    resource: str
    mask: str | None = None
    devices: tuple[str, ...] = ()
    noset: str | None = None
    # Ray refuses fractions of some kinds, so a slot of these serves one group at a time.
    fractional: bool = True


_KNOWN = {
    each.resource: each
    for each in (
        Accelerator("GPU", "CUDA_VISIBLE_DEVICES", ("cuda", "gpu", "hip", "rocm", "xpu")),
        Accelerator("NPU", "ASCEND_RT_VISIBLE_DEVICES", ("npu",)),
        Accelerator("TPU", "TPU_VISIBLE_CHIPS", ("tpu",), fractional=False),
        Accelerator("HPU", "HABANA_VISIBLE_MODULES", ("hpu",), fractional=False),
        Accelerator("neuron_cores", "NEURON_RT_VISIBLE_CORES", ("neuron",), fractional=False),
        Accelerator("RBLN", "RBLN_DEVICES", noset="RBLN_RT_VISIBLE_DEVICES", fractional=False),
    )
}

_RESOURCE_OF_DEVICE = {device: each.resource for each in _KNOWN.values() for device in each.devices}

# One setting, three names: what CUDA_VISIBLE_DEVICES is to NVIDIA, the other two are to AMD.
_CUDA, _HIP, _ROCR = "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"

_OTHER_MASKS = ("ASCEND_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "ONEAPI_DEVICE_SELECTOR", "ZE_AFFINITY_MASK")

NOSET = "RAY_EXPERIMENTAL_NOSET_"
"""Before the name of a mask: Ray's switch that makes it leave the mask alone."""

DEVICE_MASKS: frozenset[str] = frozenset(
    {_CUDA, _HIP, _ROCR, "NVIDIA_VISIBLE_DEVICES", *_OTHER_MASKS}
    | {each.mask for each in _KNOWN.values() if each.mask}
)
"""Variables that say which accelerators a process may see; only Ray and the group set them."""


def accelerator_named(resource: str) -> Accelerator:
    """The accelerator behind a Ray resource name; unknown names are custom resources.

    >>> accelerator_named("NPU").mask
    'ASCEND_RT_VISIBLE_DEVICES'
    >>> accelerator_named("my_fpga").mask is None
    True
    """
    return _KNOWN.get(resource, Accelerator(resource))


def resource_of_device(device_name: str) -> str:
    """The Ray resource that a torch device name asks for.

    Raises:
        InvalidValueError: the name stands for no accelerator.

    >>> resource_of_device("cuda"), resource_of_device("npu")
    ('GPU', 'NPU')
    """
    resource = _RESOURCE_OF_DEVICE.get(text("device_name", device_name).lower())
    if resource is None:
        raise unusable(
            "device_name",
            device_name,
            f"one of {', '.join(sorted(_RESOURCE_OF_DEVICE))}; for workers without accelerators make the "
            "pool with RayResourcePool(..., use_gpu=False), and name any other Ray resource with "
            "RayResourcePool(..., accelerator=NAME)",
        )
    return resource


def worker_demand(num_cpus: float, accelerator: Accelerator | None, amount: float) -> dict[str, Any]:
    """Ray actor options for one worker: GPUs go by `num_gpus`, all other kinds by `resources`.

    >>> worker_demand(1, accelerator_named("NPU"), 0.5)
    {'num_cpus': 1, 'num_gpus': 0, 'resources': {'NPU': 0.5}}
    """
    options: dict[str, Any] = {"num_cpus": num_cpus, "num_gpus": 0}
    if accelerator is None:
        return options
    if accelerator.resource == "GPU":
        return options | {"num_gpus": amount}
    return options | {"resources": {accelerator.resource: amount}}


def hidden_masks() -> dict[str, str]:
    """Variables that hide every accelerator from a CPU worker, whatever this Ray version does by itself."""
    return {each.mask: "" for each in _KNOWN.values() if each.mask} | {_HIP: ""}


def is_noset(environ: Mapping[str, str], accelerator: Accelerator) -> bool:
    """Whether Ray leaves the mask of this accelerator alone; "0", "false" and "" mean no.

    >>> is_noset({"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "0"}, accelerator_named("GPU"))
    False
    """
    names = {accelerator.noset or accelerator.mask}
    if accelerator.resource == "GPU":
        names |= {_HIP, _ROCR}
    return any(environ.get(f"{NOSET}{name}", "").lower() in ("1", "true") for name in names)


def visible_index(assigned_ids: Sequence[str], mask: str | None, noset: bool) -> int | None:
    """The index of a worker's first device among those its process sees; None without devices.

    Args:
        assigned_ids: what Ray assigned: numbers, UUIDs or MIG ids.
        mask: the mask variable of the process, None when unset.
        noset: Ray leaves the mask alone, so the process sees more than it was assigned.

    Raises:
        InvalidValueError: the mask hides the assigned device.

    >>> visible_index(["5"], mask="4,5,6,7", noset=True)
    1
    >>> visible_index([], mask=None, noset=True) is None
    True
    """
    if not assigned_ids:
        return None
    assigned = str(assigned_ids[0])
    if not noset:
        return 0
    if mask is None and assigned.isdecimal():
        return int(assigned)
    visible = [entry.strip() for entry in (mask or "").split(",") if entry.strip()]
    for index, entry in enumerate(visible):
        if _same_device(entry, assigned):
            return index
    raise InvalidValueError(
        f"device {assigned!r} was assigned to this process, but its mask is {mask!r}; start Ray with the "
        "same mask as its workers, or unset RAY_EXPERIMENTAL_NOSET_* so that Ray sets the mask itself"
    )


def _same_device(entry: str, assigned: str) -> bool:
    if entry.isdecimal() or assigned.isdecimal():
        return entry == assigned
    # CUDA accepts any unambiguous start of a UUID.
    return entry.startswith(assigned) or assigned.startswith(entry)


def unify_masks(masks: Mapping[str, str]) -> dict[str, str]:
    """One variable for one setting: HIP and ROCR masks become CUDA_VISIBLE_DEVICES, the rest stays as it is.

    Raises:
        InvalidValueError: two of the names say different things, or ROCR would filter on top of another mask.

    >>> unify_masks({"HIP_VISIBLE_DEVICES": "0"})
    {'CUDA_VISIBLE_DEVICES': '0'}
    """
    rest = {name: value for name, value in masks.items() if name not in (_CUDA, _HIP, _ROCR)}
    said = {name: masks[name] for name in (_HIP, _CUDA, _ROCR) if name in masks}
    advice = ""
    if _ROCR in said and len(said) > 1:
        advice = f"{_ROCR} renumbers the devices that the other mask selects from; unset it"
    elif len(set(said.values())) > 1:
        advice = "set one of them, or both to the same value"
    if advice:
        table = ", ".join(f"{name}={value!r}" for name, value in said.items())
        raise InvalidValueError(f"device masks disagree: {table}; {advice}")
    return rest | ({_CUDA: next(iter(said.values()))} if said else {})


def settle_masks(environ: MutableMapping[str, str]) -> None:
    """Leave CUDA_VISIBLE_DEVICES alone of the three, in place: a runtime that reads two would filter twice.

    Raises:
        InvalidValueError: see `unify_masks`.

    >>> environ = {"ROCR_VISIBLE_DEVICES": "1", "PATH": "/bin"}
    >>> settle_masks(environ)
    >>> environ
    {'PATH': '/bin', 'CUDA_VISIBLE_DEVICES': '1'}
    """
    found = {name: environ[name] for name in (_CUDA, _HIP, _ROCR) if name in environ}
    unified = unify_masks(found)
    environ.update(unified)
    for name in found.keys() - unified.keys():
        del environ[name]
