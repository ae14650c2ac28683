"""The functions of every predefined mode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from verl_dispatch import collect, dispatch_functions
from verl_dispatch.one_to_one import collect_one_to_one, dispatch_one_to_one

__all__ = ["PREDEFINED_PAIRS"]


def collect_rank_zero(group: Any, output: Any) -> Any:
    """The value of rank 0, the only one called."""
    return output[0] if isinstance(output, list) else output


PREDEFINED_PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "RANK_ZERO": (dispatch_functions.dispatch_rank_zero, collect_rank_zero),
    "ONE_TO_ALL": (dispatch_functions.dispatch_one_to_all, collect.collect_all_to_all),
    "ALL_TO_ALL": (dispatch_functions.dispatch_all_to_all, collect.collect_all_to_all),
    "DP_COMPUTE": (dispatch_functions.dispatch_dp_compute, collect.collect_dp_compute),
    "DP_COMPUTE_PROTO": (
        dispatch_functions.dispatch_dp_compute_data_proto,
        collect.collect_dp_compute_data_proto,
    ),
    "DP_COMPUTE_PROTO_WITH_FUNC": (
        dispatch_functions.dispatch_dp_compute_data_proto_with_func,
        collect.collect_dp_compute_data_proto,
    ),
    "DP_COMPUTE_METRIC": (dispatch_functions.dispatch_dp_compute_data_proto, collect.collect_dp_compute),
    "ONE_TO_ONE": (dispatch_one_to_one, collect_one_to_one),
    "DIRECT_ROLLOUT_METHOD": (dispatch_functions.dispatch_direct_rollout_method, collect.collect_all_to_all),
}
