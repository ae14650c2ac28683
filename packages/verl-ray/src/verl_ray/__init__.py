"""Worker groups on Ray: resource pools, placement, actors and failures."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from verl_ray._clock import IMPORTED_AT as _IMPORTED_AT  # noqa: F401 - starts the clock before other imports

# isort: split
from verl_protocol.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from verl_dispatch.errors import CallTimeout, WorkerGroupError

    from verl_ray.actor import RayClassWithInitArgs
    from verl_ray.attach import destroy_detached
    from verl_ray.colocate import (
        create_colocated_worker_cls,
        create_colocated_worker_cls_fused,
        create_colocated_worker_raw_cls,
    )
    from verl_ray.errors import ResourceUnavailable
    from verl_ray.health import Death, Watch
    from verl_ray.placement import sort_placement_group_by_node_ip
    from verl_ray.pool_manager import ResourcePoolManager
    from verl_ray.pool_surgery import extract_pg_from_exist, merge_resource_pool, split_resource_pool
    from verl_ray.resources import (
        RayResourcePool,
        SubRayResourcePool,
    )
    from verl_ray.sending import parallel_put
    from verl_ray.worker_group import RayWorkerGroup

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
    "CallTimeout": "group_errors",
    "Death": "health",
    "RayClassWithInitArgs": "actor",
    "RayResourcePool": "resources",
    "RayWorkerGroup": "worker_group",
    "ResourcePoolManager": "pool_manager",
    "ResourceUnavailable": "errors",
    "SubRayResourcePool": "resources",
    "Watch": "health",
    "WorkerGroupError": "group_errors",
    "create_colocated_worker_cls": "colocate",
    "create_colocated_worker_cls_fused": "colocate",
    "create_colocated_worker_raw_cls": "colocate",
    "destroy_detached": "attach",
    "extract_pg_from_exist": "pool_surgery",
    "merge_resource_pool": "pool_surgery",
    "parallel_put": "sending",
    "sort_placement_group_by_node_ip": "placement",
    "split_resource_pool": "pool_surgery",
}


if not TYPE_CHECKING:
    # A type checker that saw this would take any name for one that there is.
    # At run time `python -m verl_ray doctor` needs none.
    __getattr__ = names_on_demand(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
