"""`@register`: says how a worker method is called on a group, and resolves futures among its arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, TypeVar, Unpack, cast, overload

from verl_protocol import DataProtoFuture
from verl_protocol.errors import InvalidTypeError

from verl_dispatch.errors import UnevenRowsError
from verl_dispatch.methods.registry import (
    DispatchMode,
    check_dispatch_mode,
    check_execute_mode,
    check_pair,
    no_mode,
)
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.planning.layout import RowTrim
from verl_dispatch.planning.parts import FuturePart, LazyPart, PaddedPart, told_of_call

if TYPE_CHECKING:
    from verl_dispatch import modes
    from verl_dispatch.methods.static import (
        MB,
        BatchDecorator,
        Blocking,
        Decorator,
        M,
        MeshDecorator,
        RefusedPair,
    )

__all__ = [
    "MAGIC_ATTR",
    "RegisterOptions",
    "register",
    "register_options",
]


# --- What the worker does with its arguments before the method runs, and with the answer after it ---------
# Most parts arrive ready. Two kinds are finished at the worker: futures, so that only the rows needed are
# fetched and only where they are needed; and padded parts of calls whose answers the driver never sees.


_UNRESOLVED = (DataProtoFuture, PaddedPart, FuturePart)
Trim: TypeAlias = RowTrim | LazyPart
Resolved: TypeAlias = tuple[tuple[Any, ...], dict[str, Any], Trim | None]


def has_unresolved(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether an argument is still to be finished at the worker: a future, or a padded part."""
    for value in args:
        if isinstance(value, _UNRESOLVED):
            return True
    return bool(kwargs) and any(isinstance(value, _UNRESOLVED) for value in kwargs.values())


def resolve_parts(args: tuple[Any, ...], kwargs: dict[str, Any], materialize: bool) -> Resolved:
    """The arguments as the method wants them, and how its answer is to be trimmed."""
    trims: list[Trim] = []
    values = tuple([_resolve(value, materialize, trims) for value in args])
    named = {name: _resolve(value, materialize, trims) for name, value in kwargs.items()}
    return values, named, trims[0] if trims else None


async def resolve_parts_async(args: tuple[Any, ...], kwargs: dict[str, Any], materialize: bool) -> Resolved:
    """`resolve_parts` that awaits futures instead of blocking the event loop."""
    trims: list[Trim] = []
    values = tuple([await _resolve_async(value, materialize, trims) for value in args])
    named = {name: await _resolve_async(value, materialize, trims) for name, value in kwargs.items()}
    return values, named, trims[0] if trims else None


def trim_answer(answer: Any, trim: Trim | None) -> Any:
    """The answer without the rows that padding caused."""
    return answer if trim is None else trim.apply(answer)


def _resolve(value: Any, materialize: bool, trims: list[Trim]) -> Any:
    if isinstance(value, FuturePart):
        return _resolve_part(value, materialize, trims)
    if isinstance(value, PaddedPart):
        trims.append(value.trim)
        return value.value
    if not materialize or not isinstance(value, DataProtoFuture):
        return value
    try:
        return value.get()
    except UnevenRowsError as error:
        raise told_of_call(value, error) from None


async def _resolve_async(value: Any, materialize: bool, trims: list[Trim]) -> Any:
    if isinstance(value, FuturePart) and materialize:
        return await asyncio.to_thread(_resolve_part, value, materialize, trims)
    if isinstance(value, DataProtoFuture) and materialize:
        try:
            return await value
        except UnevenRowsError as error:
            raise told_of_call(value, error) from None
    return _resolve(value, materialize, trims)


def _resolve_part(part: FuturePart, materialize: bool, trims: list[Trim]) -> Any:
    if not materialize:
        lazy = LazyPart(part)
        trims.append(lazy)
        return lazy.future()
    value, trim = part.resolve()
    if trim is not None:
        trims.append(trim)
    return value


# --------------------------------------------------------------------------------------------------------


MAGIC_ATTR = "__verl_dispatch__"
_OPTIONS_ATTR = "__verl_dispatch_options__"

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class RegisterOptions:
    """What `register` was told beyond mode, execution and blocking.

    Attributes:
        materialize_futures: whether a DataProtoFuture among the arguments is resolved before the method runs.
        read_only: workers may get one shared read-only copy of what several ranks get.
        tensor_transport: how a backend that can moves the tensors of the result; None is its default way.
    """

    materialize_futures: bool = True
    read_only: bool = False
    tensor_transport: str | None = None


class FurtherOptions(TypedDict, total=False):
    """Options of `register` that are not among the three marks."""

    read_only: bool
    tensor_transport: str | None


# For type checkers: pairs that are refused, modes on rank 0 or some ranks, modes on all ranks, the default
# mode, and last whatever is known only at run time, which must not let refused pairs through.
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: modes.SplittingMode,
    execute_mode: modes.ExecuteRankZero | modes.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> RefusedPair: ...
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: modes.RankZero,
    execute_mode: modes.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> RefusedPair: ...
@overload
def register(
    dispatch_mode: modes.WholeMode = ...,
    *,
    execute_mode: modes.ExecuteRankZero,
    blocking: Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[modes.RankZero, Blocking]: ...
@overload
def register(
    dispatch_mode: modes.OneToAll,
    execute_mode: modes.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[modes.SomeRanks, Any]: ...
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: modes.NdBatches,
    execute_mode: modes.ExecuteAll = ...,
    blocking: Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> MeshDecorator[Blocking]: ...
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: MB,
    execute_mode: modes.ExecuteAll = ...,
    blocking: Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> BatchDecorator[MB, Blocking]: ...
@overload
def register(
    dispatch_mode: M,
    execute_mode: modes.ExecuteAll = ...,
    blocking: Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[M, Blocking]: ...
@overload
def register(
    *,
    execute_mode: modes.ExecuteAll = ...,
    blocking: Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[modes.AllToAll, Blocking]: ...
@overload
def register(
    dispatch_mode: DispatchMode = ...,
    execute_mode: Execute = ...,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[Dispatch, Any]: ...
def register(
    dispatch_mode: DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
    *,
    read_only: bool = False,
    tensor_transport: str | None = None,
) -> Any:
    """Marks a worker method, plain or async, as callable on a group.

    The product is a plain function that keeps name, signature and docstring; called on the worker itself it
    does what the method does, after the futures among its arguments are resolved (awaited in an async
    method).

    Args:
        dispatch_mode: a member of Dispatch, or a dict of `dispatch_fn` and `collect_fn`.
        execute_mode: which ranks run the call.
        blocking: whether a call on the group waits for its result.
        materialize_futures: False hands futures to the method unresolved; nothing is fetched before `.get()`.
        read_only: share one read-only copy of what several ranks get, instead of a private writable one each.
        tensor_transport: name of a direct transport for the tensors of non-blocking results, where the
            backend has it (on Ray "gloo", "nccl" or "nixl").

    Raises:
        TypeError: no mode, a dict without two callables, or an option of a wrong kind.
        ValueError: a pair of modes that makes no sense together.

    Example:
        >>> class Trainer:
        ...     @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        ...     def set_lr(self, lr: float) -> float:
        ...         return lr
        >>> Trainer().set_lr(0.1), getattr(Trainer.set_lr, MAGIC_ATTR)["dispatch_mode"]
        (0.1, Dispatch.ONE_TO_ALL)
    """
    check_dispatch_mode(dispatch_mode)
    check_execute_mode(execute_mode)
    check_pair(dispatch_mode, execute_mode)
    _check_flags(blocking=blocking, materialize_futures=materialize_futures, read_only=read_only)
    if not isinstance(tensor_transport, str | None):
        raise _bad_option("tensor_transport", tensor_transport, "the name of a transport, or None")
    marks = {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode, "blocking": blocking}
    options = RegisterOptions(materialize_futures, read_only, tensor_transport)

    def decorate(function: F) -> F:
        if not inspect.isfunction(function):
            problem = f"got {function!r}; put it below other decorators"
            raise InvalidTypeError(f"register decorates functions, {problem}")
        wrapper = _wrapped(function, materialize_futures)
        setattr(wrapper, MAGIC_ATTR, marks)
        setattr(wrapper, _OPTIONS_ATTR, options)
        return cast(F, wrapper)

    return decorate


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise _bad_option(name, value, "True or False")


def _bad_option(option: str, given: object, expected: str) -> InvalidTypeError:
    return InvalidTypeError(f"{option} of register is {given!r}, expected {expected}")


def register_options(function: object) -> RegisterOptions:
    """The further options that a registered function was given."""
    return cast(RegisterOptions, getattr(function, _OPTIONS_ATTR, RegisterOptions()))


def _wrapped(function: Callable[..., Any], materialize: bool) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            if not has_unresolved(args, kwargs):
                return await function(*args, **kwargs)
            args, kwargs, trims = await resolve_parts_async(args, kwargs, materialize)
            return trim_answer(await function(*args, **kwargs), trims)

        return run_async

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if not has_unresolved(args, kwargs):
            return function(*args, **kwargs)
        args, kwargs, trims = resolve_parts(args, kwargs, materialize)
        return trim_answer(function(*args, **kwargs), trims)

    return run


def _materialize_futures(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with every DataProtoFuture among them replaced by its value."""
    resolved, named, _ = resolve_parts(args, kwargs, materialize=True)
    return resolved, dict(named)


def registered_marks(function: object) -> Mapping[str, Any] | None:
    """The three marks of a registered function, or None."""
    marks = getattr(function, MAGIC_ATTR, None)
    if marks is not None and not {"dispatch_mode", "execute_mode", "blocking"} <= set(marks):
        raise no_mode("dispatch_mode", marks, Dispatch.names())
    return cast("Mapping[str, Any] | None", marks)
