"""What the doctor looks at: versions, the cluster, shared memory, disks and variables. Changes nothing."""

from __future__ import annotations

import logging
import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import ray
from ray._common.utils import get_system_memory
from ray._private.accelerators import get_all_accelerator_managers
from ray._private.utils import get_num_cpus

from verl_ray.pools.cluster import NodeFacts, alive_nodes, dead_node_addresses
from verl_ray.pools.devices import DEVICE_MASKS, NOSET
from verl_ray.worker.environment import RANK_VARIABLES

_PACKAGES = ("verl-ray", "verl-dispatch", "verl-protocol", "ray", "torch", "tensordict", "numpy")
_ANSWERS_WITHIN_S = 5.0
_SHARED_MEMORY = Path("/dev/shm")
_RAYS_OWN = {"RAY_ADDRESS", "RAY_ENABLE_UV_RUN_RUNTIME_ENV", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"}
_VARIABLES = DEVICE_MASKS | RANK_VARIABLES | _RAYS_OWN


@dataclass(frozen=True)
class DiskFacts:
    """A file system: total and free bytes."""

    path: str
    total: int
    free: int


@dataclass(frozen=True)
class ClusterFacts:
    """The cluster that a program started here would join; without nodes there is none, `error` says why."""

    nodes: tuple[NodeFacts, ...] = ()
    dead: tuple[str, ...] = ()
    error: str | None = None


@dataclass(frozen=True)
class DoctorFacts:
    """All that the checks judge.

    Attributes:
        machine: what Ray would offer if it were started here.
        compiles_torch_anew: whether every process that imports torch compiles it: no bytecode is kept.
    """

    python: str
    versions: Mapping[str, str]
    environ: Mapping[str, str]
    under_uv_run: bool
    shared_memory: DiskFacts | None
    session_disk: DiskFacts | None
    machine: Mapping[str, float] = field(default_factory=dict)
    cluster: ClusterFacts = field(default_factory=ClusterFacts)
    compiles_torch_anew: bool = False


def gib(amount: float) -> str:
    """Bytes, for people."""
    return f"{amount / 1024**3:.1f} GiB"


def gather_facts(environ: Mapping[str, str], address: str | None = None) -> DoctorFacts:
    """Look at this machine and at the running cluster, if there is one; none is started."""
    return DoctorFacts(
        python=platform.python_version(),
        versions={name: _version(name) for name in _PACKAGES},
        environ={n: value for n, value in environ.items() if n in _VARIABLES or n.startswith(NOSET)},
        # uv counts how deep `uv run` is nested, for the programs it starts.
        under_uv_run="UV_RUN_RECURSION_DEPTH" in environ,
        shared_memory=_disk(_SHARED_MEMORY) if sys.platform == "linux" else None,
        session_disk=_disk(Path(environ.get("RAY_TMPDIR") or tempfile.gettempdir())),
        machine=_machine(),
        cluster=_look_at_cluster(address),
        compiles_torch_anew=bool(environ.get("PYTHONDONTWRITEBYTECODE")) and not _has_bytecode("torch"),
    )


def _machine() -> dict[str, float]:
    """CPUs, bytes of memory and accelerators, counted the way Ray counts them when it starts."""
    found = {"CPU": float(get_num_cpus()), "GPU": 0.0, "memory": float(get_system_memory())}
    for kind in get_all_accelerator_managers():
        # Several makes go by the name of GPU.
        count = float(kind.get_current_node_num_accelerators())
        if count:
            name = kind.get_resource_name()
            found[name] = found.get(name, 0.0) + count
    return found


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _has_bytecode(package: str) -> bool:
    """Whether an interpreter would find the package compiled; the package is not imported."""
    spec = find_spec(package)
    return spec is None or spec.origin is None or Path(cache_from_source(spec.origin)).exists()


def _disk(path: Path) -> DiskFacts | None:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return None
    return DiskFacts(str(path), usage.total, usage.free)


def _look_at_cluster(address: str | None) -> ClusterFacts:
    asked = address or os.environ.get("RAY_ADDRESS", "")
    joins = not ray.is_initialized()
    try:
        if joins:
            _knock_at(asked)
            ray.init(
                address=address or "auto",
                log_to_driver=False,
                logging_level=logging.ERROR,
                configure_logging=False,
            )
        return ClusterFacts(alive_nodes(), dead_node_addresses())
    except OSError as error:
        return ClusterFacts(error=f"{asked}: {error}" if asked else None)
    except (RuntimeError, ValueError) as error:
        return ClusterFacts(error=str(error))
    finally:
        if joins:
            ray.shutdown()


def _knock_at(address: str) -> None:
    """Fail where nobody answers at this host and port: Ray itself goes on trying for many minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWERS_WITHIN_S).close()
