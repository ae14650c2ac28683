"""Which functions belong to which mode, asked at every call; and how users add their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

from verl_dispatch.errors import InvalidModeError
from verl_dispatch.methods import functions
from verl_dispatch.methods.functions import NdDispatch, collect_one_to_one, dispatch_one_to_one
from verl_dispatch.modes import Dispatch, Execute

if TYPE_CHECKING:
    from verl_dispatch.modes import ExecuteSome

__all__ = [
    "DISPATCH_MODE_FN_REGISTRY",
    "PREDEFINED_PAIRS",
    "get_predefined_dispatch_fn",
    "get_predefined_execute_fn",
    "register_dispatch_mode",
    "register_execute_mode",
    "update_dispatch_mode",
]


def collect_rank_zero(group: Any, output: Any) -> Any:
    """The value of rank 0, the only one called."""
    return output[0] if isinstance(output, list) else output


PREDEFINED_PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "RANK_ZERO": (functions.dispatch_rank_zero, collect_rank_zero),
    "ONE_TO_ALL": (functions.dispatch_one_to_all, functions.collect_all_to_all),
    "ALL_TO_ALL": (functions.dispatch_all_to_all, functions.collect_all_to_all),
    "DP_COMPUTE": (functions.dispatch_dp_compute, functions.collect_dp_compute),
    "DP_COMPUTE_PROTO": (
        functions.dispatch_dp_compute_data_proto,
        functions.collect_dp_compute_data_proto,
    ),
    "DP_COMPUTE_PROTO_WITH_FUNC": (
        functions.dispatch_dp_compute_data_proto_with_func,
        functions.collect_dp_compute_data_proto,
    ),
    "DP_COMPUTE_METRIC": (functions.dispatch_dp_compute_data_proto, functions.collect_dp_compute),
    "ONE_TO_ONE": (dispatch_one_to_one, collect_one_to_one),
    "DIRECT_ROLLOUT_METHOD": (functions.dispatch_direct_rollout_method, functions.collect_all_to_all),
}


DispatchMode: TypeAlias = Dispatch | dict[str, Any]
SelectRanks: TypeAlias = Callable[[int], Iterable[SupportsIndex]]

_PAIR_KEYS = {"dispatch_fn", "collect_fn"}

DISPATCH_MODE_FN_REGISTRY: dict[Dispatch, dict[str, Callable[..., Any]]] = {}
"""Mode -> `{"dispatch_fn", "collect_fn"}`; a plain dict: what it holds at the time of a call counts."""

_EXECUTE_FUNCTION_NAMES: dict[Execute, str] = {
    Execute.ALL: "execute_all",
    Execute.RANK_ZERO: "execute_rank_zero",
}
_RANK_SELECTORS: dict[Execute, SelectRanks] = {}


def get_predefined_dispatch_fn(mode: Dispatch) -> dict[str, Callable[..., Any]]:
    """The functions of a mode, predefined or registered since: `{"dispatch_fn", "collect_fn"}`.

    Raises:
        TypeError: no such mode, or a mode without functions.
    """
    try:
        return DISPATCH_MODE_FN_REGISTRY[mode]
    except (KeyError, TypeError):
        raise _not_a_mode(mode) from None


def get_predefined_execute_fn(mode: Execute) -> dict[str, str]:
    """The name of the group's low-level function for an execute mode: `{"execute_fn_name": ...}`."""
    check_execute_mode(mode)
    return {"execute_fn_name": _EXECUTE_FUNCTION_NAMES.get(mode, "execute_all")}


def register_dispatch_mode(
    name: str, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]
) -> Dispatch:
    """Adds a dispatch mode and returns it; only the driver needs to know it.

    Args:
        name: the new member's name.
        dispatch_fn: `dispatch_fn(group, *args, **kwargs)` returns `(args, kwargs)` whose lists have one entry
            per worker, or a CallPlan.
        collect_fn: `collect_fn(group, outputs)` gets all answers in rank order: values when the call blocks,
            futures when it does not.

    Raises:
        ValueError: the name is taken, or a function cannot be called.

    Example:
        >>> def to_all(group, value):
        ...     return ([value] * group.world_size,), {}
        >>> mode = register_dispatch_mode("SUM_OF_ALL", to_all, lambda group, outputs: sum(outputs))
        >>> mode is Dispatch.SUM_OF_ALL, Dispatch.remove("SUM_OF_ALL") is mode
        (True, True)
    """
    _check_functions(name, dispatch_fn, collect_fn)
    mode = Dispatch.register(name)
    DISPATCH_MODE_FN_REGISTRY[mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}
    return mode


def update_dispatch_mode(mode: Any, dispatch_fn: Callable[..., Any], collect_fn: Callable[..., Any]) -> None:
    """Replaces the functions of a mode; groups already bound follow at their next call.

    Raises:
        TypeError: no such mode.
        ValueError: a function cannot be called.
    """
    if not isinstance(mode, Dispatch) or mode not in Dispatch:
        raise _not_a_mode(mode)
    _check_functions(mode.name, dispatch_fn, collect_fn)
    DISPATCH_MODE_FN_REGISTRY[mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def register_execute_mode(name: str, select_ranks: SelectRanks) -> ExecuteSome:
    """Adds an execute mode: `select_ranks(world_size)` names the ranks that run; answers are `{rank: value}`.

    Raises:
        TypeError: `select_ranks` cannot be called.
        ValueError: the name is taken.
    """
    if not callable(select_ranks):
        raise TypeError(f"select_ranks must be a function of the world size, got {select_ranks!r}")
    mode = Execute.register(name)
    _RANK_SELECTORS[mode] = select_ranks
    return cast("ExecuteSome", mode)


def rank_selector(execute_mode: Execute) -> SelectRanks | None:
    """The function that picks the ranks of a registered execute mode; None for the predefined ones."""
    return _RANK_SELECTORS.get(execute_mode)


def functions_of(dispatch_mode: DispatchMode) -> Mapping[str, Callable[..., Any]]:
    """The pair of functions that a mode has now."""
    return dispatch_mode if isinstance(dispatch_mode, dict) else get_predefined_dispatch_fn(dispatch_mode)


def mode_name(dispatch_mode: DispatchMode) -> str:
    """How messages and plans name a mode."""
    if isinstance(dispatch_mode, Dispatch):
        return dispatch_mode.name
    dispatch_fn = dispatch_mode["dispatch_fn"]
    if isinstance(dispatch_fn, NdDispatch):
        return f"nd({dispatch_fn.mesh_name})"
    while isinstance(dispatch_fn, partial):
        dispatch_fn = dispatch_fn.func
    return str(getattr(dispatch_fn, "__name__", type(dispatch_fn).__name__))


def is_predefined(dispatch_mode: DispatchMode) -> bool:
    """Whether a mode has the functions that this package gave it."""
    pair = functions_of(dispatch_mode)
    return _predefined_planner(pair) is not None


def _predefined_planner(pair: Mapping[str, Callable[..., Any]]) -> object | None:
    dispatch_fn, collect_fn = pair["dispatch_fn"], pair["collect_fn"]
    if isinstance(dispatch_fn, NdDispatch):
        return dispatch_fn
    return next(
        (name for name, known in PREDEFINED_PAIRS.items() if known == (dispatch_fn, collect_fn)), None
    )


# --- checks -----------------------------------------------------------------------------------------------


def check_dispatch_mode(dispatch_mode: object) -> None:
    """Raises unless this is a mode with both of its functions.

    Raises:
        TypeError: no mode at all, or a member without functions.
        ValueError: a dict without exactly the two callables.
    """
    if isinstance(dispatch_mode, dict):
        if set(dispatch_mode) != _PAIR_KEYS:
            raise _incomplete("given as a dict", f"got the keys {sorted(map(str, dispatch_mode))}")
        _check_functions("given as a dict", **dispatch_mode)
    elif not isinstance(dispatch_mode, Dispatch) or dispatch_mode not in DISPATCH_MODE_FN_REGISTRY:
        raise _not_a_mode(dispatch_mode)


def check_execute_mode(execute_mode: object) -> None:
    """Raises unless this is an execute mode.

    Raises:
        TypeError: no execute mode, or a member that no strategy belongs to.
    """
    if not isinstance(execute_mode, Execute) or (
        execute_mode not in _EXECUTE_FUNCTION_NAMES and execute_mode not in _RANK_SELECTORS
    ):
        raise no_mode("execute_mode", execute_mode, Execute.names())


_SPLITS_ROWS = "it splits rows over all ranks, and rows of the ranks that do not run would be lost"
_REFUSALS = {
    "ONE_TO_ONE": "its arguments already name the ranks that run",
    "DP_COMPUTE": "its lists hold one entry for every rank, and those of ranks that do not run would be lost",
    "DP_COMPUTE_PROTO": _SPLITS_ROWS,
    "DP_COMPUTE_PROTO_WITH_FUNC": _SPLITS_ROWS,
    "DP_COMPUTE_METRIC": _SPLITS_ROWS,
    "DIRECT_ROLLOUT_METHOD": "such a method is never called on a group",
}


def check_pair(dispatch_mode: DispatchMode, execute_mode: Execute) -> None:
    """Raises where these two make no sense together.

    Raises:
        InvalidModeError: with the reason.
    """
    if execute_mode is Execute.ALL:
        return
    name = mode_name(dispatch_mode)
    reason = _REFUSALS.get(name) if is_predefined(dispatch_mode) else None
    if isinstance(functions_of(dispatch_mode)["dispatch_fn"], NdDispatch):
        reason = _SPLITS_ROWS
    if name == "RANK_ZERO" and execute_mode is not Execute.RANK_ZERO:
        reason = "this dispatch mode calls rank 0 only"
    if reason:
        raise InvalidModeError(
            f"execute_mode {execute_mode.name} does not go with dispatch_mode {name}: {reason}"
        )


def _check_functions(mode: str, dispatch_fn: object, collect_fn: object) -> None:
    for key, function in (("dispatch_fn", dispatch_fn), ("collect_fn", collect_fn)):
        if not callable(function):
            raise _incomplete(mode, f"{key} is {function!r}")


def _incomplete(mode: str, problem: str) -> InvalidModeError:
    return InvalidModeError(
        f"dispatch mode {mode} needs a callable 'dispatch_fn' and a callable 'collect_fn': {problem}; "
        "give both with register_dispatch_mode, update_dispatch_mode or a dict of exactly these two keys"
    )


def no_mode(parameter: str, given: object, known: Iterable[str]) -> InvalidModeError:
    """The error about a value given where a mode is expected."""
    pair = " or a dict with 'dispatch_fn' and 'collect_fn'" if parameter == "dispatch_mode" else ""
    names = ", ".join(sorted(known))
    return InvalidModeError(f"{parameter} must be a registered member (known: {names}){pair}, got {given!r}")


def _not_a_mode(given: object) -> InvalidModeError:
    known = [mode.name for mode in DISPATCH_MODE_FN_REGISTRY]
    return no_mode("dispatch_mode", given, known)


# The names that the literature on this design uses.
_check_dispatch_mode = check_dispatch_mode
_check_execute_mode = check_execute_mode

for _name, (_dispatch_fn, _collect_fn) in PREDEFINED_PAIRS.items():
    DISPATCH_MODE_FN_REGISTRY[Dispatch[_name]] = {"dispatch_fn": _dispatch_fn, "collect_fn": _collect_fn}
