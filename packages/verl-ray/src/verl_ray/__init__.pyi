# The one list of the public names of this package and where each is defined. Type checkers read it, and
# `names_of_stub`, which imports a name when it is first asked for.

from verl_dispatch.errors import CallTimeout as CallTimeout
from verl_dispatch.errors import WorkerGroupError as WorkerGroupError

from verl_ray.calls.packing import parallel_put as parallel_put
from verl_ray.errors import ResourceUnavailable as ResourceUnavailable
from verl_ray.group.attach import destroy_detached as destroy_detached
from verl_ray.group.group import RayWorkerGroup as RayWorkerGroup
from verl_ray.group.worker_set import Death as Death
from verl_ray.group.worker_set import Watch as Watch
from verl_ray.pools.placement import sort_placement_group_by_node_ip as sort_placement_group_by_node_ip
from verl_ray.pools.pool import RayResourcePool as RayResourcePool
from verl_ray.pools.pool import ResourcePoolManager as ResourcePoolManager
from verl_ray.pools.pool import SubRayResourcePool as SubRayResourcePool
from verl_ray.pools.pool import extract_pg_from_exist as extract_pg_from_exist
from verl_ray.pools.pool import merge_resource_pool as merge_resource_pool
from verl_ray.pools.pool import split_resource_pool as split_resource_pool
from verl_ray.worker.actor import RayClassWithInitArgs as RayClassWithInitArgs
from verl_ray.worker.actor import create_colocated_worker_cls as create_colocated_worker_cls
from verl_ray.worker.actor import create_colocated_worker_cls_fused as create_colocated_worker_cls_fused
from verl_ray.worker.actor import create_colocated_worker_raw_cls as create_colocated_worker_raw_cls

__version__: str
