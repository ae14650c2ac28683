"""How one call on a worker group is spread over its workers and its answers put together."""

from importlib.metadata import version
from typing import TYPE_CHECKING

from verl_protocol._lazy import names_on_demand

# Imported at once: the module has the name of the function, and would else stand here in its place.
from verl_dispatch.methods.decorator import register

if TYPE_CHECKING:
    from verl_dispatch.errors import CallTimeout, WorkerFailure, WorkerGroupError
    from verl_dispatch.groups.bound_method import GroupMethod
    from verl_dispatch.groups.group import WorkerGroup
    from verl_dispatch.groups.pool import ClassWithInitArgs, ResourcePool
    from verl_dispatch.local.group import LocalWorkerGroup
    from verl_dispatch.methods.decorator import MAGIC_ATTR
    from verl_dispatch.methods.decorator import _materialize_futures as _materialize_futures
    from verl_dispatch.methods.functions import (
        _concat_data_proto_or_future as _concat_data_proto_or_future,
    )
    from verl_dispatch.methods.functions import (
        _split_args_kwargs_data_proto as _split_args_kwargs_data_proto,
    )
    from verl_dispatch.methods.functions import (
        _split_args_kwargs_data_proto_with_auto_padding as _split_args_kwargs_data_proto_with_auto_padding,
    )
    from verl_dispatch.methods.functions import (
        collect_all_to_all,
        collect_dp_compute,
        collect_dp_compute_data_proto,
        collect_nd_compute,
        collect_nd_compute_dataproto,
        dispatch_all_to_all,
        dispatch_dp_compute,
        dispatch_dp_compute_data_proto,
        dispatch_dp_compute_data_proto_with_func,
        dispatch_nd_compute,
        dispatch_nd_compute_dataproto,
        dispatch_one_to_all,
        make_nd_compute_dataproto_dispatch_fn,
    )
    from verl_dispatch.methods.registry import (
        DISPATCH_MODE_FN_REGISTRY,
        get_predefined_dispatch_fn,
        get_predefined_execute_fn,
        register_dispatch_mode,
        register_execute_mode,
        update_dispatch_mode,
    )
    from verl_dispatch.methods.registry import _check_dispatch_mode as _check_dispatch_mode
    from verl_dispatch.methods.registry import _check_execute_mode as _check_execute_mode
    from verl_dispatch.modes import (
        Broadcast,
        Dispatch,
        DynamicEnum,
        Execute,
        init_predefined_dispatch_mode,
        init_predefined_execute_mode,
    )
    from verl_dispatch.planning.mesh import Mesh
    from verl_dispatch.planning.options import CallOptions
    from verl_dispatch.planning.plan import CallPlan, RankCall
    from verl_dispatch.workers.roles import create_colocated_worker_raw_cls
    from verl_dispatch.workers.worker import Worker

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
    "DISPATCH_MODE_FN_REGISTRY": "methods.registry",
    "MAGIC_ATTR": "methods.decorator",
    "Broadcast": "modes",
    "CallOptions": "planning.options",
    "CallPlan": "planning.plan",
    "CallTimeout": "errors",
    "ClassWithInitArgs": "groups.pool",
    "Dispatch": "modes",
    "DynamicEnum": "modes",
    "Execute": "modes",
    "GroupMethod": "groups.bound_method",
    "LocalWorkerGroup": "local.group",
    "Mesh": "planning.mesh",
    "RankCall": "planning.plan",
    "ResourcePool": "groups.pool",
    "Worker": "workers.worker",
    "WorkerFailure": "errors",
    "WorkerGroup": "groups.group",
    "WorkerGroupError": "errors",
    "collect_all_to_all": "methods.functions",
    "collect_dp_compute": "methods.functions",
    "collect_dp_compute_data_proto": "methods.functions",
    "collect_nd_compute": "methods.functions",
    "collect_nd_compute_dataproto": "methods.functions",
    "create_colocated_worker_raw_cls": "workers.roles",
    "dispatch_all_to_all": "methods.functions",
    "dispatch_dp_compute": "methods.functions",
    "dispatch_dp_compute_data_proto": "methods.functions",
    "dispatch_dp_compute_data_proto_with_func": "methods.functions",
    "dispatch_nd_compute": "methods.functions",
    "dispatch_nd_compute_dataproto": "methods.functions",
    "dispatch_one_to_all": "methods.functions",
    "get_predefined_dispatch_fn": "methods.registry",
    "get_predefined_execute_fn": "methods.registry",
    "init_predefined_dispatch_mode": "modes",
    "init_predefined_execute_mode": "modes",
    "make_nd_compute_dataproto_dispatch_fn": "methods.functions",
    "register_dispatch_mode": "methods.registry",
    "register_execute_mode": "methods.registry",
    "update_dispatch_mode": "methods.registry",
    "_check_dispatch_mode": "methods.registry",
    "_check_execute_mode": "methods.registry",
    "_concat_data_proto_or_future": "methods.functions",
    "_materialize_futures": "methods.decorator",
    "_split_args_kwargs_data_proto": "methods.functions",
    "_split_args_kwargs_data_proto_with_auto_padding": "methods.functions",
}


if not TYPE_CHECKING:
    # A type checker that saw this would take any name for one that there is.
    # At run time a worker needs few of them.
    __getattr__ = names_on_demand(globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
