# The one list of the public names of this package and where each is defined. Type checkers read it, and
# `names_of_stub`, which imports a name when it is first asked for.

from verl_dispatch.errors import CallTimeout as CallTimeout
from verl_dispatch.errors import MeshError as MeshError
from verl_dispatch.errors import UnknownMethodError as UnknownMethodError
from verl_dispatch.errors import WorkerFailure as WorkerFailure
from verl_dispatch.errors import WorkerGroupError as WorkerGroupError
from verl_dispatch.groups.bound_method import GroupMethod as GroupMethod
from verl_dispatch.groups.call import CallFuture as CallFuture
from verl_dispatch.groups.group import WorkerGroup as WorkerGroup
from verl_dispatch.groups.pool import ClassWithInitArgs as ClassWithInitArgs
from verl_dispatch.groups.pool import ResourcePool as ResourcePool
from verl_dispatch.groups.trace import Trace as Trace
from verl_dispatch.local.group import LocalWorkerGroup as LocalWorkerGroup
from verl_dispatch.methods.decorator import MAGIC_ATTR as MAGIC_ATTR
from verl_dispatch.methods.decorator import _materialize_futures as _materialize_futures
from verl_dispatch.methods.decorator import register as register
from verl_dispatch.methods.functions import _concat_data_proto_or_future as _concat_data_proto_or_future
from verl_dispatch.methods.functions import _split_args_kwargs_data_proto as _split_args_kwargs_data_proto
from verl_dispatch.methods.functions import (
    _split_args_kwargs_data_proto_with_auto_padding as _split_args_kwargs_data_proto_with_auto_padding,
)
from verl_dispatch.methods.functions import collect_all_to_all as collect_all_to_all
from verl_dispatch.methods.functions import collect_dp_compute as collect_dp_compute
from verl_dispatch.methods.functions import collect_dp_compute_data_proto as collect_dp_compute_data_proto
from verl_dispatch.methods.functions import collect_nd_compute as collect_nd_compute
from verl_dispatch.methods.functions import collect_nd_compute_dataproto as collect_nd_compute_dataproto
from verl_dispatch.methods.functions import dispatch_all_to_all as dispatch_all_to_all
from verl_dispatch.methods.functions import dispatch_dp_compute as dispatch_dp_compute
from verl_dispatch.methods.functions import dispatch_dp_compute_data_proto as dispatch_dp_compute_data_proto
from verl_dispatch.methods.functions import (
    dispatch_dp_compute_data_proto_with_func as dispatch_dp_compute_data_proto_with_func,
)
from verl_dispatch.methods.functions import dispatch_nd_compute as dispatch_nd_compute
from verl_dispatch.methods.functions import dispatch_nd_compute_dataproto as dispatch_nd_compute_dataproto
from verl_dispatch.methods.functions import dispatch_one_to_all as dispatch_one_to_all
from verl_dispatch.methods.functions import (
    make_nd_compute_dataproto_dispatch_fn as make_nd_compute_dataproto_dispatch_fn,
)
from verl_dispatch.methods.registry import DISPATCH_MODE_FN_REGISTRY as DISPATCH_MODE_FN_REGISTRY
from verl_dispatch.methods.registry import _check_dispatch_mode as _check_dispatch_mode
from verl_dispatch.methods.registry import _check_execute_mode as _check_execute_mode
from verl_dispatch.methods.registry import get_predefined_dispatch_fn as get_predefined_dispatch_fn
from verl_dispatch.methods.registry import get_predefined_execute_fn as get_predefined_execute_fn
from verl_dispatch.methods.registry import register_dispatch_mode as register_dispatch_mode
from verl_dispatch.methods.registry import register_execute_mode as register_execute_mode
from verl_dispatch.methods.registry import update_dispatch_mode as update_dispatch_mode
from verl_dispatch.methods.static import Method as Method
from verl_dispatch.modes import Broadcast as Broadcast
from verl_dispatch.modes import Dispatch as Dispatch
from verl_dispatch.modes import DynamicEnum as DynamicEnum
from verl_dispatch.modes import Execute as Execute
from verl_dispatch.modes import init_predefined_dispatch_mode as init_predefined_dispatch_mode
from verl_dispatch.modes import init_predefined_execute_mode as init_predefined_execute_mode
from verl_dispatch.planning.mesh import Mesh as Mesh
from verl_dispatch.planning.options import CallOptions as CallOptions
from verl_dispatch.planning.plan import CallPlan as CallPlan
from verl_dispatch.planning.plan import RankCall as RankCall
from verl_dispatch.workers.roles import create_colocated_worker_raw_cls as create_colocated_worker_raw_cls
from verl_dispatch.workers.worker import Worker as Worker

__version__: str
