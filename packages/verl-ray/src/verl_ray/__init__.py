"""Worker groups on Ray: resource pools, placement, actors and failures."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from verl_ray._clock import IMPORTED_AT as _IMPORTED_AT  # noqa: F401 - starts the clock before other imports

# isort: split
from verl_protocol._lazy import names_on_demand

if TYPE_CHECKING:
    from verl_dispatch.errors import CallTimeout, WorkerGroupError

    from verl_ray.calls.packing import parallel_put
    from verl_ray.errors import ResourceUnavailable
    from verl_ray.group.attach import destroy_detached
    from verl_ray.group.group import RayWorkerGroup
    from verl_ray.group.worker_set import Death, Watch
    from verl_ray.pools.placement import sort_placement_group_by_node_ip
    from verl_ray.pools.pool import (
        RayResourcePool,
        ResourcePoolManager,
        SubRayResourcePool,
        extract_pg_from_exist,
        merge_resource_pool,
        split_resource_pool,
    )
    from verl_ray.worker.actor import (
        RayClassWithInitArgs,
        create_colocated_worker_cls,
        create_colocated_worker_cls_fused,
        create_colocated_worker_raw_cls,
    )

__all__ = [
    "CallTimeout",
    "Death",
    "RayClassWithInitArgs",
    "RayResourcePool",
    "RayWorkerGroup",
    "ResourcePoolManager",
    "ResourceUnavailable",
    "SubRayResourcePool",
    "Watch",
    "WorkerGroupError",
    "__version__",
    "create_colocated_worker_cls",
    "create_colocated_worker_cls_fused",
    "create_colocated_worker_raw_cls",
    "destroy_detached",
    "extract_pg_from_exist",
    "merge_resource_pool",
    "parallel_put",
    "sort_placement_group_by_node_ip",
    "split_resource_pool",
]

__version__ = version("verl-ray")

_HOMES = {
    "CallTimeout": "errors",
    "Death": "group.worker_set",
    "RayClassWithInitArgs": "worker.actor",
    "RayResourcePool": "pools.pool",
    "RayWorkerGroup": "group.group",
    "ResourcePoolManager": "pools.pool",
    "ResourceUnavailable": "errors",
    "SubRayResourcePool": "pools.pool",
    "Watch": "group.worker_set",
    "WorkerGroupError": "errors",
    "create_colocated_worker_cls": "worker.actor",
    "create_colocated_worker_cls_fused": "worker.actor",
    "create_colocated_worker_raw_cls": "worker.actor",
    "destroy_detached": "group.attach",
    "extract_pg_from_exist": "pools.pool",
    "merge_resource_pool": "pools.pool",
    "parallel_put": "calls.packing",
    "sort_placement_group_by_node_ip": "pools.placement",
    "split_resource_pool": "pools.pool",
}


if not TYPE_CHECKING:
    # A type checker that saw this would take any name for one that there is.
    # At run time `python -m verl_ray doctor` needs none.
    __getattr__ = names_on_demand(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
