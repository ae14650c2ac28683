"""The dispatch modes: the table of those that are here, and the registry that groups ask at every call.

How to add a mode of this package:
1. Write its dispatch function in `functions.py`, and a collect function if none of those there fits.
2. Add its line to MODES: how answers are put together, which options about rows it takes, what it refuses.
3. Annotate its member of `Dispatch` in `modes.py` with a class there that says what it takes and gives.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias, cast

from verl_dispatch.errors import InvalidModeError
from verl_dispatch.methods import functions
from verl_dispatch.methods.functions import NdCollect, NdDispatch
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.planning.collectors import BatchCollector, Collector, SingleCollector, as_list, untrimmed
from verl_dispatch.planning.options import ROW_OPTIONS

if TYPE_CHECKING:
    from verl_dispatch.modes import ExecuteSome


Function: TypeAlias = Callable[..., Any]
DispatchMode: TypeAlias = Dispatch | dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModeSpec:
    """One dispatch mode: how a call is cut, how its answers are put together, and what it refuses.

    Attributes:
        name: how messages and plans name it.
        dispatch_fn: cuts the arguments; public, for custom modes to build on.
        collect_fn: puts answers together where a custom mode builds on this one.
        collector: what puts answers together in the mode itself; None leaves it to the plan that
            `dispatch_fn` returns, or in a custom mode to `collect_fn`.
        scatter: cuts the arguments in place of `dispatch_fn` where lists could not say how.
        row_options: which of ROW_OPTIONS it takes.
        refuses: why no other execute mode than ALL goes with it; empty where others do.
        is_custom: whether its functions are the user's own.
    """

    name: str
    dispatch_fn: Function
    collect_fn: Function
    collector: Callable[..., Collector] | None = None
    scatter: Function | None = None
    row_options: tuple[str, ...] = ()
    refuses: str = ""
    is_custom: bool = False


_LOSES_ROWS = "it splits rows over all ranks, and rows of the ranks that do not run would be lost"
_LOSES_ENTRIES = "its lists hold one entry for every rank, and those of ranks that do not run would be lost"
_NAMES_RANKS = "its arguments already name the ranks that run"

RANK_ZERO = ModeSpec(
    "RANK_ZERO",
    functions.dispatch_rank_zero,
    functions.collect_rank_zero,
    SingleCollector,
    refuses="this dispatch mode calls rank 0 only",
)

_splits_rows = partial(ModeSpec, row_options=ROW_OPTIONS, refuses=_LOSES_ROWS)

MODES: dict[Dispatch, ModeSpec] = {
    Dispatch[spec.name]: spec
    for spec in (
        RANK_ZERO,
        ModeSpec(
            "ONE_TO_ALL",
            functions.dispatch_one_to_all,
            functions.collect_all_to_all,
            as_list,
            scatter=functions.scatter_one_to_all,
        ),
        ModeSpec(
            "ALL_TO_ALL",
            functions.dispatch_all_to_all,
            functions.collect_all_to_all,
            as_list,
            # A list of answers has no rows whose input order a balanced call could restore.
            row_options=("uneven", "auto_padding"),
        ),
        ModeSpec(
            "ONE_TO_ONE", functions.dispatch_one_to_one, functions.collect_all_to_all, refuses=_NAMES_RANKS
        ),
        ModeSpec(
            "DP_COMPUTE",
            functions.dispatch_dp_compute,
            functions.collect_dp_compute,
            as_list,
            refuses=_LOSES_ENTRIES,
        ),
        _splits_rows(
            "DP_COMPUTE_PROTO",
            functions.dispatch_dp_compute_data_proto,
            functions.collect_dp_compute_data_proto,
            BatchCollector,
        ),
        _splits_rows(
            "DP_COMPUTE_PROTO_WITH_FUNC",
            functions.dispatch_dp_compute_data_proto_with_func,
            functions.collect_dp_compute_data_proto,
            BatchCollector,
        ),
        _splits_rows(
            "DP_COMPUTE_METRIC",
            functions.dispatch_dp_compute_data_proto,
            functions.collect_dp_compute,
            untrimmed,
        ),
        ModeSpec(
            "DIRECT_ROLLOUT_METHOD",
            functions.dispatch_direct_rollout_method,
            functions.collect_all_to_all,
            as_list,
            refuses="such a method is never called on a group",
        ),
    )
}


# --- what a mode is now: groups ask at every call ---------------------------------------------------------


DISPATCH_MODE_FN_REGISTRY: dict[Dispatch, dict[str, Function]] = {
    mode: {"dispatch_fn": spec.dispatch_fn, "collect_fn": spec.collect_fn} for mode, spec in MODES.items()
}
"""Mode -> `{"dispatch_fn", "collect_fn"}`; a plain dict: what it holds at the time of a call counts."""


def get_predefined_dispatch_fn(mode: Dispatch) -> dict[str, Function]:
    """The functions of a mode, predefined or registered since: `{"dispatch_fn", "collect_fn"}`.

    Raises:
        TypeError: no such mode, or a mode without functions.
    """
    try:
        return DISPATCH_MODE_FN_REGISTRY[mode]
    except (KeyError, TypeError):
        raise _not_a_mode(mode) from None


def functions_of(dispatch_mode: DispatchMode) -> Mapping[str, Function]:
    """The pair of functions that a mode has now."""
    return dispatch_mode if isinstance(dispatch_mode, dict) else get_predefined_dispatch_fn(dispatch_mode)


def spec_of(dispatch_mode: DispatchMode) -> ModeSpec:
    """The mode with the functions that it has now; one with other functions than MODES says is custom."""
    found, name = functions_of(dispatch_mode), mode_name(dispatch_mode)
    pair = found["dispatch_fn"], found["collect_fn"]
    known = None if isinstance(dispatch_mode, dict) else MODES.get(dispatch_mode)
    if known is not None and pair == (known.dispatch_fn, known.collect_fn):
        return known
    match pair:
        case NdDispatch(split) as dispatch_fn, NdCollect(joined) if split == joined:
            scatter = dispatch_fn.scatter
            return _splits_rows(name, *pair, BatchCollector, scatter)
    return ModeSpec(name, *pair, row_options=ROW_OPTIONS, is_custom=True)


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


# --- modes of the user's own ------------------------------------------------------------------------------


def register_dispatch_mode(name: str, dispatch_fn: Function, collect_fn: Function) -> Dispatch:
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


def update_dispatch_mode(mode: Any, dispatch_fn: Function, collect_fn: Function) -> None:
    """Replaces the functions of a mode; groups already bound follow at their next call.

    Raises:
        TypeError: no such mode.
        ValueError: a function cannot be called.
    """
    if not isinstance(mode, Dispatch) or mode not in Dispatch:
        raise _not_a_mode(mode)
    _check_functions(mode.name, dispatch_fn, collect_fn)
    DISPATCH_MODE_FN_REGISTRY[mode] = {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}


def check_dispatch_mode(dispatch_mode: object) -> None:
    """Raises unless this is a mode with both of its functions.

    Raises:
        TypeError: no mode at all, or a member without functions.
        ValueError: a dict without exactly the two callables.
    """
    if isinstance(dispatch_mode, dict):
        if set(dispatch_mode) != {"dispatch_fn", "collect_fn"}:
            raise _incomplete("given as a dict", f"got the keys {sorted(map(str, dispatch_mode))}")
        _check_functions("given as a dict", **dispatch_mode)
    elif not isinstance(dispatch_mode, Dispatch) or dispatch_mode not in DISPATCH_MODE_FN_REGISTRY:
        raise _not_a_mode(dispatch_mode)


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
    names = sorted(known)
    kind = "Dispatch" if parameter == "dispatch_mode" else "Execute"
    near = [f"{kind}.{name}" for name in difflib.get_close_matches(str(given).upper(), names, n=1)]
    maybe = f"; did you mean {near[0]}, without quotes?" if near and isinstance(given, str) else ""
    return InvalidModeError(
        f"{parameter} must be a registered member (known: {', '.join(names)}){pair}, got {given!r}{maybe}"
    )


def _not_a_mode(given: object) -> InvalidModeError:
    return no_mode("dispatch_mode", given, [mode.name for mode in DISPATCH_MODE_FN_REGISTRY])


# --- which ranks run a call -------------------------------------------------------------------------------


SelectRanks: TypeAlias = Callable[[int], Iterable[SupportsIndex]]

RANK_SELECTORS: dict[Execute, SelectRanks | None] = {Execute.ALL: None, Execute.RANK_ZERO: None}
"""Execute mode -> what names its ranks; None for the predefined ones."""


def get_predefined_execute_fn(mode: Execute) -> dict[str, str]:
    """The name of the group's low-level function for an execute mode: `{"execute_fn_name": ...}`."""
    check_execute_mode(mode)
    return {"execute_fn_name": "execute_rank_zero" if mode is Execute.RANK_ZERO else "execute_all"}


def register_execute_mode(name: str, select_ranks: SelectRanks) -> ExecuteSome:
    """Adds an execute mode: `select_ranks(world_size)` names the ranks that run; answers are `{rank: value}`.

    Raises:
        TypeError: `select_ranks` cannot be called.
        ValueError: the name is taken.
    """
    if not callable(select_ranks):
        raise TypeError(f"select_ranks must be a function of the world size, got {select_ranks!r}")
    mode = Execute.register(name)
    RANK_SELECTORS[mode] = select_ranks
    return cast("ExecuteSome", mode)


def check_execute_mode(execute_mode: object) -> None:
    """Raises unless this is an execute mode.

    Raises:
        TypeError: no execute mode, or a member that no strategy belongs to.
    """
    if not isinstance(execute_mode, Execute) or execute_mode not in RANK_SELECTORS:
        raise no_mode("execute_mode", execute_mode, Execute.names())


def check_pair(dispatch_mode: DispatchMode, execute_mode: Execute) -> None:
    """Raises where these two make no sense together.

    Raises:
        InvalidModeError: with the reason.
    """
    spec = spec_of(dispatch_mode)
    same = spec is RANK_ZERO and execute_mode is Execute.RANK_ZERO
    if spec.refuses and execute_mode is not Execute.ALL and not same:
        pair = f"execute_mode {execute_mode.name} does not go with dispatch_mode {spec.name}"
        raise InvalidModeError(f"{pair}: {spec.refuses}")


# The names that the literature on this design uses.
_check_dispatch_mode = check_dispatch_mode
_check_execute_mode = check_execute_mode
