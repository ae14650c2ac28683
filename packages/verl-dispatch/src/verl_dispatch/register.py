"""`@register`: says how a worker method is called on a group, and resolves futures among its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from verl_dispatch.argument_parts import has_unresolved, resolve_parts, resolve_parts_async, trim_answer
from verl_dispatch.errors import InvalidModeError, RegisterOptionError
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.registry import DispatchMode, check_dispatch_mode, check_execute_mode, check_pair

if TYPE_CHECKING:
    from verl_dispatch import typed_modes as typed
    from verl_dispatch.typed_methods import Decorator, M, RefusedPair

__all__ = ["MAGIC_ATTR", "RegisterOptions", "register", "register_options"]

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


# For type checkers: pairs that are refused, modes on rank 0 or some ranks, a mode on all ranks, the default
# mode, and last whatever is known only at run time, which must not let refused pairs through.
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: typed.SplittingMode,
    execute_mode: typed.ExecuteRankZero | typed.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> RefusedPair: ...
@overload
def register(
    dispatch_mode: typed.WholeMode = ...,
    *,
    execute_mode: typed.ExecuteRankZero,
    blocking: Literal[True] = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[typed.RankZero, Literal[True]]: ...
@overload
def register(
    dispatch_mode: typed.WholeMode = ...,
    *,
    execute_mode: typed.ExecuteRankZero,
    blocking: Literal[False],
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[typed.RankZero, Literal[False]]: ...
@overload
def register(
    dispatch_mode: typed.OneToAll,
    execute_mode: typed.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[typed.SomeRanks, Any]: ...
@overload
def register(
    dispatch_mode: M,
    execute_mode: typed.ExecuteAll = ...,
    blocking: Literal[True] = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[M, Literal[True]]: ...
@overload
def register(
    dispatch_mode: M,
    execute_mode: typed.ExecuteAll = ...,
    *,
    blocking: Literal[False],
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[M, Literal[False]]: ...
@overload
def register(
    *,
    execute_mode: typed.ExecuteAll = ...,
    blocking: Literal[True] = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[typed.AllToAll, Literal[True]]: ...
@overload
def register(
    *,
    execute_mode: typed.ExecuteAll = ...,
    blocking: Literal[False],
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> Decorator[typed.AllToAll, Literal[False]]: ...
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
        raise RegisterOptionError("tensor_transport", tensor_transport, "the name of a transport, or None")
    marks = {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode, "blocking": blocking}
    options = RegisterOptions(materialize_futures, read_only, tensor_transport)

    def decorate(function: F) -> F:
        if not inspect.isfunction(function):
            raise TypeError(f"register decorates functions, got {function!r}; put it below other decorators")
        wrapper = _wrapped(function, materialize_futures)
        setattr(wrapper, MAGIC_ATTR, marks)
        setattr(wrapper, _OPTIONS_ATTR, options)
        return cast(F, wrapper)

    return decorate


def _check_flags(**flags: Any) -> None:
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise RegisterOptionError(name, value, "True or False")


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
        raise InvalidModeError("dispatch_mode", marks, Dispatch.names())
    return cast("Mapping[str, Any] | None", marks)
