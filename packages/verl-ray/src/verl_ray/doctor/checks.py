"""What will bite, judged from the facts alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from verl_protocol.errors import InvalidValueError

from verl_ray.doctor.facts import DoctorFacts, gib
from verl_ray.pools.devices import NOSET, unify_masks
from verl_ray.worker.environment import RANK_VARIABLES

_OLDEST_RAY = (2, 51)
_SMALL_SHARED_MEMORY = 512 * 1024**2
# Ray refuses to put objects on a disk that is fuller than this.
_FULL_DISK = 0.95
_SWITCHES = ("", "0", "false", "1", "true")


@dataclass(frozen=True)
class Finding:
    """Something noticed: errors will bite, warnings may."""

    level: Literal["error", "warning"]
    what: str
    remedy: str


def check(facts: DoctorFacts) -> list[Finding]:
    """All findings, errors first."""
    findings = [*_programs(facts), *_variables(facts), *_space(facts), *_cluster(facts)]
    return sorted(findings, key=lambda finding: finding.level != "error")


def _programs(facts: DoctorFacts) -> Iterator[Finding]:
    version = facts.versions.get("ray", "not installed")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if numbers < _OLDEST_RAY:
        oldest = ".".join(map(str, _OLDEST_RAY))
        yield Finding(
            "error", f"ray is {version}, verl-ray needs {oldest} or newer", f"pip install 'ray>={oldest}'"
        )
    switch = facts.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "1").lower()
    if facts.under_uv_run and switch in ("1", "true"):
        # Ray's own way of bringing the driver's environment to other machines: slow, but wanted by some.
        yield Finding(
            "warning",
            "under `uv run`, ray.init() uploads the working directory and starts every worker through uv: "
            "workers come up slowly, and not at all where uv cannot reach its index",
            "export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0 where all machines have the packages already",
        )
    if facts.compiles_torch_anew:
        yield Finding(
            "warning",
            "PYTHONDONTWRITEBYTECODE is set and torch is not compiled: every worker compiles it anew, which "
            "takes about as long as the rest of its start",
            "unset PYTHONDONTWRITEBYTECODE, or run `python -m compileall` on site-packages once",
        )


def _variables(facts: DoctorFacts) -> Iterator[Finding]:
    try:
        unify_masks(facts.environ)
    except InvalidValueError as conflict:
        yield Finding("error", str(conflict), "unset all but one of them, also where `ray start` is run")
    for name, value in facts.environ.items():
        if name.startswith(NOSET) and value.lower() not in _SWITCHES:
            yield Finding(
                "warning", f"{name} is {value!r}, which Ray reads as off", f"export {name}=1, or unset it"
            )
    if said := sorted(name for name in facts.environ if name in RANK_VARIABLES):
        yield Finding(
            "warning",
            f"{', '.join(said)} set here: a worker class made in the driver would believe them",
            "start the driver as one plain process, not through torchrun, and unset them",
        )


def _space(facts: DoctorFacts) -> Iterator[Finding]:
    shm, disk = facts.shared_memory, facts.session_disk
    if shm is not None and shm.total < _SMALL_SHARED_MEMORY:
        yield Finding(
            "error",
            f"{shm.path} holds {gib(shm.total)}: the object store lands on disk or ends in SIGBUS",
            "give the container more, such as `docker run --shm-size=8g`, or mount a larger tmpfs there",
        )
    for node in facts.cluster.nodes:
        store = node.total.get("object_store_memory", 0)
        if 0 < store < _SMALL_SHARED_MEMORY:
            yield Finding(
                "warning",
                f"node {node.title} has an object store of {gib(store)}: batches will spill to disk",
                "start Ray with a larger --object-store-memory",
            )
    if disk is not None and disk.total and 1 - disk.free / disk.total > _FULL_DISK:
        yield Finding(
            "error",
            f"{disk.path} has {gib(disk.free)} of {gib(disk.total)} free: Ray refuses to spill there",
            "free some space, or point RAY_TMPDIR at another disk",
        )


def _cluster(facts: DoctorFacts) -> Iterator[Finding]:
    if facts.cluster.error:
        yield Finding(
            "error",
            f"the Ray cluster cannot be joined: {facts.cluster.error}",
            "start it with `ray start --head`, correct RAY_ADDRESS, or unset it to use Ray on this machine",
        )
    if facts.cluster.dead:
        yield Finding(
            "warning",
            f"nodes that were lost: {', '.join(facts.cluster.dead)}",
            "restart Ray on them if pools no longer fit",
        )
    for name in ("CPU", "GPU", "NPU", "TPU"):
        total = sum(node.total.get(name, 0) for node in facts.cluster.nodes)
        free = sum(node.free.get(name, 0) for node in facts.cluster.nodes)
        if total and not free:
            yield Finding(
                "warning",
                f"all {total:g} {name} of the cluster are taken: a new pool would wait",
                "shut other pools or jobs down (`ray list placement-groups` shows them)",
            )
