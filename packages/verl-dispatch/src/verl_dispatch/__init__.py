"""How one call on a worker group is spread over its workers and its answers put together."""

from importlib.metadata import version

from verl_dispatch.collect import (
    _concat_data_proto_or_future as _concat_data_proto_or_future,
)
from verl_dispatch.collect import (
    collect_all_to_all,
    collect_dp_compute,
    collect_dp_compute_data_proto,
    collect_nd_compute,
    collect_nd_compute_dataproto,
)
from verl_dispatch.colocate import create_colocated_worker_raw_cls
from verl_dispatch.dispatch_functions import (
    _split_args_kwargs_data_proto as _split_args_kwargs_data_proto,
)
from verl_dispatch.dispatch_functions import (
    _split_args_kwargs_data_proto_with_auto_padding as _split_args_kwargs_data_proto_with_auto_padding,
)
from verl_dispatch.dispatch_functions import (
    dispatch_all_to_all,
    dispatch_dp_compute,
    dispatch_dp_compute_data_proto,
    dispatch_dp_compute_data_proto_with_func,
    dispatch_one_to_all,
)
from verl_dispatch.errors import CallTimeout, WorkerFailure, WorkerGroupError
from verl_dispatch.group_method import GroupMethod
from verl_dispatch.local import LocalWorkerGroup
from verl_dispatch.markers import Broadcast
from verl_dispatch.mesh import Mesh
from verl_dispatch.mesh_modes import (
    dispatch_nd_compute,
    dispatch_nd_compute_dataproto,
    make_nd_compute_dataproto_dispatch_fn,
)
from verl_dispatch.modes import (
    Dispatch,
    DynamicEnum,
    Execute,
    init_predefined_dispatch_mode,
    init_predefined_execute_mode,
)
from verl_dispatch.options import CallOptions
from verl_dispatch.plan import CallPlan, RankCall
from verl_dispatch.register import MAGIC_ATTR, register
from verl_dispatch.register import _materialize_futures as _materialize_futures
from verl_dispatch.registry import (
    DISPATCH_MODE_FN_REGISTRY,
    get_predefined_dispatch_fn,
    get_predefined_execute_fn,
    register_dispatch_mode,
    register_execute_mode,
    update_dispatch_mode,
)
from verl_dispatch.registry import _check_dispatch_mode as _check_dispatch_mode
from verl_dispatch.registry import _check_execute_mode as _check_execute_mode
from verl_dispatch.resource_pool import ClassWithInitArgs, ResourcePool
from verl_dispatch.worker import Worker
from verl_dispatch.worker_group import WorkerGroup

__all__ = [
    "DISPATCH_MODE_FN_REGISTRY",
    "MAGIC_ATTR",
    "Broadcast",
    "CallOptions",
    "CallPlan",
    "CallTimeout",
    "ClassWithInitArgs",
    "Dispatch",
    "DynamicEnum",
    "Execute",
    "GroupMethod",
    "LocalWorkerGroup",
    "Mesh",
    "RankCall",
    "ResourcePool",
    "Worker",
    "WorkerFailure",
    "WorkerGroup",
    "WorkerGroupError",
    "__version__",
    "collect_all_to_all",
    "collect_dp_compute",
    "collect_dp_compute_data_proto",
    "collect_nd_compute",
    "collect_nd_compute_dataproto",
    "create_colocated_worker_raw_cls",
    "dispatch_all_to_all",
    "dispatch_dp_compute",
    "dispatch_dp_compute_data_proto",
    "dispatch_dp_compute_data_proto_with_func",
    "dispatch_nd_compute",
    "dispatch_nd_compute_dataproto",
    "dispatch_one_to_all",
    "get_predefined_dispatch_fn",
    "get_predefined_execute_fn",
    "init_predefined_dispatch_mode",
    "init_predefined_execute_mode",
    "make_nd_compute_dataproto_dispatch_fn",
    "register",
    "register_dispatch_mode",
    "register_execute_mode",
    "update_dispatch_mode",
]

__version__ = version("verl-dispatch")
