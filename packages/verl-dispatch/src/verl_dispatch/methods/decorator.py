"""`@register`: says how a worker method is called on a group, and finishes its arguments at the worker."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial, wraps
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Union, Unpack, get_args, get_origin, overload

from verl_protocol.errors import InvalidTypeError

from verl_dispatch.errors import InvalidModeError
from verl_dispatch.methods import registry
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.planning.collectors import BatchCollector
from verl_dispatch.planning.options import Labels
from verl_dispatch.planning.parts import Trim, has_unresolved, resolve_parts, resolve_parts_async, trim_answer
from verl_dispatch.planning.schemas import Reads, Schema

if TYPE_CHECKING:
    from verl_dispatch import modes
    from verl_dispatch.methods import static
    from verl_dispatch.planning.schemas import Columns, ReadsBy


MAGIC_ATTR = "__verl_dispatch__"
_OPTIONS_ATTR = "__verl_dispatch_options__"


@dataclass(frozen=True, slots=True)
class RegisterOptions:
    """What `register` was told beyond mode, execution and blocking.

    Attributes:
        materialize_futures: whether a DataProtoFuture among the arguments is resolved before the method runs.
        read_only: workers may get one shared read-only copy of what several ranks get.
        tensor_transport: how a backend that can moves the tensors of the result; None is its default way.
        remote: whether large columns of batches among the results stay where they were made; None is for the
            group to say, False where the method is annotated to answer no batches.
        reads: the columns that the method gets; None for all that there are.
        writes: the columns that it answers; None where nothing is said.
    """

    materialize_futures: bool = True
    read_only: bool = False
    tensor_transport: str | None = None
    remote: bool | None = None
    reads: Reads | None = None
    writes: Schema | None = None


class FurtherOptions(TypedDict, total=False):
    """Options of `register` that are not among the three marks."""

    read_only: bool
    tensor_transport: str | None
    remote: bool
    reads: ReadsBy | None
    writes: Columns | None


# For type checkers: pairs that are refused, modes on rank 0 or some ranks, modes on all ranks (by default
# ALL_TO_ALL), and last whatever is known only at run time, which must not let refused pairs through.
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: modes.SplittingMode,
    execute_mode: modes.ExecuteRankZero | modes.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.RefusedPair: ...
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: modes.RankZero,
    execute_mode: modes.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.RefusedPair: ...
@overload
def register(
    dispatch_mode: modes.WholeMode = ...,
    *,
    execute_mode: modes.ExecuteRankZero,
    blocking: static.Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.Decorator[modes.RankZero, static.Blocking]: ...
@overload
def register(
    dispatch_mode: modes.OneToAll,
    execute_mode: modes.ExecuteSome,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.Decorator[modes.SomeRanks, Any]: ...
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: modes.NdBatches,
    execute_mode: modes.ExecuteAll = ...,
    blocking: static.Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.MeshDecorator[static.Blocking]: ...
@overload
def register(  # type: ignore[overload-overlap]
    dispatch_mode: static.MB,
    execute_mode: modes.ExecuteAll = ...,
    blocking: static.Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.BatchDecorator[static.MB, static.Blocking]: ...
@overload
def register(
    dispatch_mode: static.M = ...,
    execute_mode: modes.ExecuteAll = ...,
    blocking: static.Blocking = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.Decorator[static.M, static.Blocking]: ...
@overload
def register(
    dispatch_mode: registry.DispatchMode = ...,
    execute_mode: Execute = ...,
    blocking: bool = ...,
    materialize_futures: bool = ...,
    **more: Unpack[FurtherOptions],
) -> static.Decorator[Dispatch, Any]: ...
def register(
    dispatch_mode: registry.DispatchMode = Dispatch.ALL_TO_ALL,
    execute_mode: Execute = Execute.ALL,
    blocking: bool = True,
    materialize_futures: bool = True,
    *,
    read_only: bool = False,
    tensor_transport: str | None = None,
    remote: bool = False,
    reads: ReadsBy | None = None,
    writes: Columns | None = None,
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
        remote: large tensor columns of the batches that the method returns stay where they were made; the
            caller gets batches that name them, see `DataProto.remote_keys`.
        reads: the columns that the method gets of each batch among its arguments, as if `select`ed: names, or
            name -> dtype, `(dtype, row shape)` or None; a name that ends in "?" is of a column that may be
            missing. What differs from batch to batch is said by parameter: parameter -> such columns. Others
            are not sent; `meta_info` always is. Remote ones are read in one round before the method begins.
        writes: the columns that the method's batch has, which is checked before it is sent: as `reads`.

    Raises:
        TypeError: no mode, a dict without two callables, or an option of a wrong kind.
        ValueError: a pair of modes that makes no sense together, or columns where there is no batch.

    Example:
        >>> class Trainer:
        ...     @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        ...     def set_lr(self, lr: float) -> float:
        ...         return lr
        >>> Trainer().set_lr(0.1), getattr(Trainer.set_lr, MAGIC_ATTR)["dispatch_mode"]
        (0.1, Dispatch.ONE_TO_ALL)
    """
    undecorated: Any = dispatch_mode
    if inspect.isfunction(undecorated):
        raise InvalidModeError(
            f"register has no mode for {undecorated.__qualname__}: write it with parentheses, such as "
            "@register(dispatch_mode=Dispatch.ONE_TO_ALL), or @register() for ALL_TO_ALL"
        )
    registry.check_dispatch_mode(dispatch_mode)
    registry.check_execute_mode(execute_mode)
    registry.check_pair(dispatch_mode, execute_mode)
    flags = {"blocking": blocking, "materialize_futures": materialize_futures, "read_only": read_only}
    for name, value in {**flags, "remote": remote}.items():
        if not isinstance(value, bool):
            raise _bad_option(name, value, "True or False")
    if not isinstance(tensor_transport, str | None):
        raise _bad_option("tensor_transport", tensor_transport, "the name of a transport, or None")
    if remote and tensor_transport is not None:
        raise _bad_option("remote", remote, "False, as tensor_transport keeps them already")
    marks = {"dispatch_mode": dispatch_mode, "execute_mode": execute_mode, "blocking": blocking}
    written = None if writes is None else Schema.of("writes", writes)
    if reads is not None or writes is not None:
        _check_takes_batches(dispatch_mode, materialize_futures=materialize_futures or reads is None)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        _check_function(function)
        if registry.spec_of(dispatch_mode).collector is BatchCollector:
            _check_answers_batch(function, f"its mode {registry.mode_name(dispatch_mode)} joins batches")
        if written is not None:
            _check_answers_batch(function, "writes of register names columns of batches")
        read = None if reads is None else _reads_of(function, reads)
        stays = remote or (False if _is_never_batch(_return_annotation(function)) else None)
        options = RegisterOptions(
            materialize_futures, read_only, tensor_transport, stays, reads=read, writes=written
        )
        wrapper = _wrapped(function, options)
        _say_self(wrapper)
        setattr(wrapper, MAGIC_ATTR, marks)
        setattr(wrapper, _OPTIONS_ATTR, options)
        return wrapper

    return decorate


def register_options(function: object) -> RegisterOptions:
    """The further options that a registered function was given."""
    options: RegisterOptions = getattr(function, _OPTIONS_ATTR, RegisterOptions())
    return options


# --- what cannot be registered ----------------------------------------------------------------------------


def _bad_option(option: str, given: object, expected: str) -> InvalidTypeError:
    return InvalidTypeError(f"{option} of register is {given!r}, expected {expected}")


def _check_function(function: Any) -> None:
    if not inspect.isfunction(function):
        raise InvalidTypeError(
            f"register decorates functions, got {function!r}; write a method that takes self, register that, "
            "and use the other from there"
        )
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidTypeError(
            f"{function.__qualname__} is a generator, which cannot be sent from a worker to the driver; "
            "return a list, or call a method for each piece (group.method.stream gives the ranks' answers as "
            "they come)"
        )


def _check_answers_batch(function: Any, why: str) -> None:
    annotation = _return_annotation(function)
    if _is_never_batch(annotation):
        shown = getattr(annotation, "__name__", annotation) if isinstance(annotation, type) else annotation
        raise InvalidModeError(
            f"{function.__qualname__} is annotated to answer {shown}, but {why} (DataProto or TensorDict): "
            "return a batch, or register it with DP_COMPUTE_METRIC and without writes, which splits batches "
            "alike and gives a list of per-rank values"
        )


def _check_takes_batches(dispatch_mode: registry.DispatchMode, *, materialize_futures: bool) -> None:
    if registry.spec_of(dispatch_mode) is registry.MODES[Dispatch.DIRECT_ROLLOUT_METHOD]:
        raise InvalidModeError(
            f"reads and writes of register name columns of batches, but a method of mode "
            f"{registry.mode_name(dispatch_mode)} is never called on a group; leave them out"
        )
    if not materialize_futures:
        raise InvalidModeError(
            "reads of register names columns of batches, but with materialize_futures=False the method gets "
            "futures; leave out one of them, and select columns of what the futures give"
        )


def positional_names(parameters: Iterable[inspect.Parameter]) -> tuple[str, ...]:
    """Names of the parameters that an argument without a name may be for."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return tuple(each.name for each in parameters if each.kind in kinds)


def _reads_of(function: Any, given: Any) -> Reads:
    parameters = list(inspect.signature(function).parameters.values())
    # A function that starts with `*args` has no parameter for the worker itself.
    if parameters and parameters[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del parameters[0]
    labels = Labels(function.__name__, positional_names(parameters))
    if any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return Reads.of(given, labels, None)
    named = [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_POSITIONAL]
    return Reads.of(given, labels, named)


def _return_annotation(function: Any) -> Any:
    """What a function is annotated to return; Any where that is not said, or cannot be made out yet."""
    inner = inspect.unwrap(function)
    annotation = inner.__annotations__.get("return", Any)
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, inner.__globals__)
    except Exception:  # a name that only type checkers know, or of the class that is being made
        return Any


def _is_never_batch(annotation: Any) -> bool:
    """Whether no value of this type is a batch; False in doubt, as with Any, protocols and type variables."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _is_never_batch(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return all(map(_is_never_batch, get_args(annotation)))
    kind = origin or annotation
    return kind is None or (isinstance(kind, type) and issubclass(kind, _never_batches()))


def _never_batches() -> tuple[type, ...]:
    tensor = getattr(sys.modules.get("torch"), "Tensor", NoneType)
    return (NoneType, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, tensor)


# --- what is registered: at the worker, the method with its arguments finished ----------------------------


def _wrapped(function: Callable[..., Any], options: RegisterOptions) -> Callable[..., Any]:
    materialize, reads = options.materialize_futures, options.reads
    finished = partial(_finished, function.__name__, options.writes)

    if inspect.iscoroutinefunction(function):

        @wraps(function)
        async def run_async(*args: Any, **kwargs: Any) -> Any:
            trims = None
            if has_unresolved(args, kwargs):
                args, kwargs, trims = await resolve_parts_async(args, kwargs, materialize)
            if reads is not None:
                args, kwargs = _chosen(reads, *args, **kwargs)
            return finished(await function(*args, **kwargs), trims)

        return run_async

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        trims = None
        if has_unresolved(args, kwargs):
            args, kwargs, trims = resolve_parts(args, kwargs, materialize)
        if reads is not None:
            args, kwargs = _chosen(reads, *args, **kwargs)
        return finished(function(*args, **kwargs), trims)

    return run


def _chosen(reads: Reads, worker: Any, /, *args: Any, **kwargs: Any) -> tuple[Any, Any]:
    args, kwargs = reads.chosen(args, kwargs, fetches=True)
    return (worker, *args), kwargs


def _finished(method: str, writes: Schema | None, answer: Any, trims: Trim | None) -> Any:
    if writes is not None:
        writes.check_answer(answer, method)
    return trim_answer(answer, trims)


def _say_self(wrapper: Any) -> None:
    """Gives `f(*args)`, as a decorator without functools.wraps makes of a method, the `self` it takes unsaid.

    Whoever reads the signature takes the first parameter for `self`: groups, and Ray for its handles, which
    looks at the innermost function.
    """
    signature = inspect.signature(wrapper)
    parameters = list(signature.parameters.values())
    if parameters and parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        name = "_self" if "self" in signature.parameters else "self"
        worker = inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY)
        wrapper.__signature__ = signature.replace(parameters=[worker, *parameters])
        del wrapper.__wrapped__


def _materialize_futures(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with every DataProtoFuture among them replaced by its value."""
    resolved, named, _ = resolve_parts(args, kwargs, materialize=True)
    return resolved, dict(named)
