"""How one call on a worker group is spread over its workers and its answers put together."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from verl_protocol.names_on_demand import names_on_demand

# Imported at once: the module has the name of the function, and would else stand here in its place.
from verl_dispatch.register import register

if TYPE_CHECKING:
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
    from verl_dispatch.register import MAGIC_ATTR
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

_HOMES = {
    "DISPATCH_MODE_FN_REGISTRY": "registry",
    "MAGIC_ATTR": "register",
    "Broadcast": "markers",
    "CallOptions": "options",
    "CallPlan": "plan",
    "CallTimeout": "errors",
    "ClassWithInitArgs": "resource_pool",
    "Dispatch": "modes",
    "DynamicEnum": "modes",
    "Execute": "modes",
    "GroupMethod": "group_method",
    "LocalWorkerGroup": "local",
    "Mesh": "mesh",
    "RankCall": "plan",
    "ResourcePool": "resource_pool",
    "Worker": "worker",
    "WorkerFailure": "errors",
    "WorkerGroup": "worker_group",
    "WorkerGroupError": "errors",
    "collect_all_to_all": "collect",
    "collect_dp_compute": "collect",
    "collect_dp_compute_data_proto": "collect",
    "collect_nd_compute": "collect",
    "collect_nd_compute_dataproto": "collect",
    "create_colocated_worker_raw_cls": "colocate",
    "dispatch_all_to_all": "dispatch_functions",
    "dispatch_dp_compute": "dispatch_functions",
    "dispatch_dp_compute_data_proto": "dispatch_functions",
    "dispatch_dp_compute_data_proto_with_func": "dispatch_functions",
    "dispatch_nd_compute": "mesh_modes",
    "dispatch_nd_compute_dataproto": "mesh_modes",
    "dispatch_one_to_all": "dispatch_functions",
    "get_predefined_dispatch_fn": "registry",
    "get_predefined_execute_fn": "registry",
    "init_predefined_dispatch_mode": "modes",
    "init_predefined_execute_mode": "modes",
    "make_nd_compute_dataproto_dispatch_fn": "mesh_modes",
    "register_dispatch_mode": "registry",
    "register_execute_mode": "registry",
    "update_dispatch_mode": "registry",
    "_check_dispatch_mode": "registry",
    "_check_execute_mode": "registry",
    "_concat_data_proto_or_future": "collect",
    "_materialize_futures": "register",
    "_split_args_kwargs_data_proto": "dispatch_functions",
    "_split_args_kwargs_data_proto_with_auto_padding": "dispatch_functions",
}


if not TYPE_CHECKING:
    # A type checker that saw this would take any name for one that there is.
    # At run time a worker needs few of them.
    __getattr__ = names_on_demand(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
