"""The static types around a registered method; nothing here runs.

`worker.method` keeps its plain signature. `WorkerClass.method` is a `Method` that carries what a group takes
and gives for it, so that `group.call(WorkerClass.method, ...)` is checked without a plugin.
"""

# What is here is for type checkers, and is never called.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Unpack,
    overload,
)

if TYPE_CHECKING:
    from typing_extensions import ParamSpec as ParamSpecWithDefault
    from typing_extensions import TypeVar as TypeVarWithDefault
    from verl_protocol.futures.future import DataProtoFuture

    from verl_dispatch.modes import (
        AllToAll,
        Batch,
        BatchMode,
        Dispatch,
        Execute,
        ForEither,
        ForFunctionAndRows,
        ForRows,
        ForWorkers,
        Mode,
        NdBatches,
        OfEither,
        OfRows,
        OfWorkers,
        Per,
        Ref,
        Res,
        TensorBatch,
        Whole,
    )
    from verl_dispatch.planning.options import OptionChanges
    from verl_dispatch.planning.plan import CallPlan

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B", bound=bool)
D = TypeVar("D")
F = TypeVar("F")
G = TypeVar("G")
MB = TypeVar("MB", bound="BatchMode")
M_co = TypeVar("M_co", bound="Dispatch", covariant=True)
R = TypeVar("R")
T = TypeVar("T")
W = TypeVar("W")
F_co = TypeVar("F_co", covariant=True)
W_co = TypeVar("W_co", covariant=True)
W_contra = TypeVar("W_contra", contravariant=True)

if TYPE_CHECKING:
    # A group or method whose parameters are not said is one of anything.
    GP = ParamSpecWithDefault("GP", default=...)
    R_co = TypeVarWithDefault("R_co", covariant=True, default=Any)
    G_co = TypeVarWithDefault("G_co", covariant=True, default=Any)
    D_co = TypeVarWithDefault("D_co", covariant=True, default=Any)
    B_co = TypeVarWithDefault("B_co", bound=bool, covariant=True, default=Any)
    # The mode that `register` is given, or its default.
    M = TypeVarWithDefault("M", bound=Dispatch, default=AllToAll)
    # Covariant: a group of a derived class is a group of its base.
    GroupWorker = TypeVarWithDefault("GroupWorker", default=Any, covariant=True)
    GroupRef = TypeVarWithDefault("GroupRef", default=Any)
    # `blocking` as it was written, and True where it was not.
    Blocking = TypeVarWithDefault("Blocking", Literal[True], Literal[False], default=Literal[True])
else:
    # What runs needs names.
    GP = ParamSpec("GP")
    R_co, G_co, D_co, B_co = map(TypeVar, ("R_co", "G_co", "D_co", "B_co"))
    GroupWorker, GroupRef = map(TypeVar, ("GroupWorker", "GroupRef"))


class NobodyReturnsThis:
    """Only types that pass for anything do: Any, and classes with a base that checkers do not know."""


class NobodyTakesThis:
    """As a parameter fits only what takes anything."""


X = TypeVar("X", bound=NobodyReturnsThis)


# --- What a group is called with: `WorkerClass.method` ----------------------------------------------------


class Method(Generic[W_contra, GP, R_co, G_co, D_co, B_co]):
    """A registered method as an attribute of its class.

    Of a worker W; on a group it takes the parameters GP; R is what one worker answers, G what the group
    answers, D the same when not blocking, B whether the method was registered as blocking. `group.on` is read
    as the worker's class, so what can be done with a Method is what can be done with `group.on.method`.
    """

    __name__: str
    __qualname__: str

    # No checker knows here which futures the group has: `group.bind` does.
    @overload
    def __call__(
        self: Method[Any, GP, Any, G, Any, Literal[True]], *args: GP.args, **kwargs: GP.kwargs
    ) -> G: ...
    @overload
    def __call__(
        self: Method[Any, GP, Any, Any, X, Literal[False]], *args: GP.args, **kwargs: GP.kwargs
    ) -> X: ...
    @overload
    def __call__(
        self: Method[Any, GP, Any, Any, list[Ref[A]], Literal[False]], *args: GP.args, **kwargs: GP.kwargs
    ) -> list[Any]: ...
    @overload
    def __call__(
        self: Method[Any, GP, Any, Any, dict[int, Ref[A]], Literal[False]],
        *args: GP.args,
        **kwargs: GP.kwargs,
    ) -> dict[int, Any]: ...
    @overload
    def __call__(
        self: Method[Any, GP, Any, Any, Ref[A], Literal[False]], *args: GP.args, **kwargs: GP.kwargs
    ) -> Any: ...
    @overload
    def __call__(
        self: Method[Any, GP, Any, Any, D, Literal[False]], *args: GP.args, **kwargs: GP.kwargs
    ) -> D: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    def call(self, *args: GP.args, **kwargs: GP.kwargs) -> G_co: ...

    def submit(self, *args: GP.args, **kwargs: GP.kwargs) -> Submitted[G_co]: ...

    def stream(self, *args: GP.args, **kwargs: GP.kwargs) -> Iterator[tuple[int, R_co]]: ...

    def plan(self, *args: GP.args, **kwargs: GP.kwargs) -> CallPlan: ...

    @overload
    def options(self, **changes: Unpack[OptionChanges]) -> Self: ...
    @overload
    def options(
        self, *, blocking: bool | None, execute_mode: None = None, **changes: Unpack[OptionChanges]
    ) -> Method[W_contra, GP, R_co, G_co, Any, Any]: ...
    @overload
    def options(
        self, *, execute_mode: Execute, blocking: bool | None = None, **changes: Unpack[OptionChanges]
    ) -> Method[W_contra, ..., Any, Any, Any, Any]: ...
    def options(self, **changes: Any) -> Any: ...


class Submitted(Protocol[R_co]):
    """What `submit` returns: a `CallFuture`."""

    def result(self, timeout: float | None = None) -> R_co: ...
    def done(self) -> bool: ...
    def __await__(self) -> Generator[Any, None, R_co]: ...


ListMethod: TypeAlias = "Method[W, P, R, list[R], list[Ref[R]], B]"
OneMethod: TypeAlias = "Method[W, P, R, R, Ref[R], B]"
RankMethod: TypeAlias = "Method[W, P, R, dict[int, R], dict[int, Ref[R]], B]"
PlacedMethod: TypeAlias = "Method[W, P, R, Any, Any, B]"
BatchMethod: TypeAlias = "Method[W, P, R, R, DataProtoFuture[R], B]"


# --- What `@register(...)` makes of a function ------------------------------------------------------------


if TYPE_CHECKING:
    # What mypy cannot infer, as with a method that returns Self, is Any: it would be Never.
    AW = TypeVarWithDefault("AW", default=Any)
    AP = ParamSpecWithDefault("AP", default=...)
    AR = TypeVarWithDefault("AR", default=Any)
    AnyBatch: TypeAlias = Batch[Any] | TensorBatch[Any]
    BatchAnswer = TypeVarWithDefault(
        "BatchAnswer", bound=AnyBatch | Coroutine[Any, Any, AnyBatch], default=Any
    )
    # On a mesh only the answers of collecting ranks count: others may answer None.
    MeshAnswer = TypeVarWithDefault(
        "MeshAnswer", bound=AnyBatch | Coroutine[Any, Any, AnyBatch | None] | None, default=Any
    )
    # What a method answers that is no coroutine, where answers are joined.
    Rows = TypeVar("Rows", bound=AnyBatch | None)


class Function(Protocol[W_contra, P, R_co]):
    """A function of a worker named `self`, which a `**` parameter of it could name too."""

    def __call__(__self, self: W_contra, *args: P.args, **kwargs: P.kwargs) -> R_co: ...  # noqa: N805


# Each decorator has one signature: overloads would turn any method with an Any in its signature into Any.
class Decorator(Generic[M_co, B_co]):
    """What `register(...)` returns: makes a method a registered one."""

    def __call__(
        self, function: Callable[Concatenate[AW, AP], AR] | Function[AW, AP, AR], /
    ) -> Registered[AW, Callable[AP, AR], M_co, B_co]: ...


class BatchDecorator(Generic[M_co, B_co]):
    """What `register(...)` returns for modes that join batches: takes methods that answer one."""

    def __call__(
        self, function: Callable[Concatenate[AW, AP], BatchAnswer] | Function[AW, AP, BatchAnswer], /
    ) -> Registered[AW, Callable[AP, BatchAnswer], M_co, B_co]: ...


class MeshDecorator(Generic[B_co]):
    """What `register(...)` returns for a mesh."""

    def __call__(
        self, function: Callable[Concatenate[AW, AP], MeshAnswer] | Function[AW, AP, MeshAnswer], /
    ) -> Registered[AW, Callable[AP, MeshAnswer], NdBatches, B_co]: ...


class RefusedPair:
    """What `register(...)` returns for modes that do not go together: it decorates nothing."""

    def __call__(self, function: Never, /) -> Any: ...


# --- What a registered method is: on a worker itself, on its class a Method -------------------------------
# The overloads map forms of modes, not modes by name, to the `Method` that a group is called with. Types
# cannot be mapped over a parameter list, so a form that adapts its parameters has one overload per number
# of them. A method that returns a coroutine answers what it gives when awaited; types that pass for
# anything, coroutines too, are therefore picked out first.


A1 = TypeVar("A1")
A2 = TypeVar("A2")

# A registered method by what its mode gives: a list, one value, one joined batch, values by rank.
Listed: TypeAlias = "Registered[W, F, Mode[T, list[Res], Any], B]"
Single: TypeAlias = "Registered[W, F, Mode[T, Res, Ref[Res]], B]"
Joined: TypeAlias = "Registered[W, F, Mode[T, Res, DataProtoFuture[Res]], B]"
ByRank: TypeAlias = "Registered[W, F, Mode[T, dict[int, Res], Any], B]"
Placed: TypeAlias = "Registered[W, F, Mode[T, dict[int, Res] | list[Res], Any], B]"

# What a mode takes of any arguments, and of any named ones beside those of a form.
AnyOf: TypeAlias = "Per[Any, Callable[P, Any], Any]"
NamedOf: TypeAlias = "Per[T, Any, Callable[P, Any]]"

Later: TypeAlias = "Coroutine[Any, Any, R]"

# To mypy a method with a variable of its own fits any types at once; to pyright it is none of these.
Echo: TypeAlias = "Callable[Concatenate[NobodyTakesThis, ...], NobodyReturnsThis]"


class Optional1(Protocol[R_co]):
    """A method whose first parameter may be left out."""

    def __call__(self, first: Any = ..., /) -> R_co: ...


class Optional2(Protocol[R_co]):
    """A method whose second parameter may be left out."""

    def __call__(self, first: Any, second: Any = ..., /) -> R_co: ...


class Optional3(Protocol[R_co]):
    """A method whose third parameter may be left out."""

    def __call__(self, first: Any, second: Any, third: Any = ..., /) -> R_co: ...


# A method of which some parameter may be left out.
SomeOptional: TypeAlias = "Optional1[R] | Optional2[R] | Optional3[R]"


class Registered(Generic[W_co, F_co, M_co, B_co]):
    """A registered method of worker W, with bound signature F, mode M and blocking B."""

    def __call__(
        self: Registered[W, Callable[P, R], Any, Any], worker: W, /, *args: P.args, **kwargs: P.kwargs
    ) -> R: ...

    # Not for groups: no `Method`, so that no group takes it, but the function of a worker.
    @overload
    def __get__(
        self: Registered[W, Callable[P, R], Mode[Never, Never, Never], Any], obj: None, owner: Any
    ) -> Callable[Concatenate[W, P], R]: ...

    # A method that gives what it gets, of whatever type: mypy would infer that it takes and gives Never.
    @overload
    def __get__(self: Listed[W, Echo, AnyOf[P], B], obj: None, owner: Any) -> ListMethod[W, P, Any, B]: ...
    @overload
    def __get__(self: Joined[W, Echo, AnyOf[P], B], obj: None, owner: Any) -> BatchMethod[W, P, Any, B]: ...
    @overload
    def __get__(
        self: Registered[W, Echo, Any, B], obj: None, owner: Any
    ) -> Method[W, ..., Any, Any, Any, B]: ...

    # Arguments as they are: the group has the method's own parameters.
    @overload
    def __get__(
        self: Listed[W, Callable[P, X], Whole, B], obj: None, owner: Any
    ) -> ListMethod[W, P, X, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[P, Later[R]], Whole, B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[P, R], Whole, B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Single[W, Callable[P, X], Whole, B], obj: None, owner: Any
    ) -> OneMethod[W, P, X, B]: ...
    @overload
    def __get__(
        self: Single[W, Callable[P, Later[R]], Whole, B], obj: None, owner: Any
    ) -> OneMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Single[W, Callable[P, R], Whole, B], obj: None, owner: Any
    ) -> OneMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: ByRank[W, Callable[P, X], Whole, B], obj: None, owner: Any
    ) -> RankMethod[W, P, X, B]: ...
    @overload
    def __get__(
        self: ByRank[W, Callable[P, Later[R]], Whole, B], obj: None, owner: Any
    ) -> RankMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: ByRank[W, Callable[P, R], Whole, B], obj: None, owner: Any
    ) -> RankMethod[W, P, R, B]: ...

    # Parameters that may be left out, which cannot be said below: any arguments of the mode's form.
    @overload
    def __get__(
        self: Listed[W, SomeOptional[Later[R]], AnyOf[P], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Listed[W, SomeOptional[R], AnyOf[P], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Joined[W, SomeOptional[Rows], AnyOf[P], B], obj: None, owner: Any
    ) -> BatchMethod[W, P, Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, SomeOptional[Later[R]], AnyOf[P], B], obj: None, owner: Any
    ) -> BatchMethod[W, P, R, B]: ...

    # No parameters, one, or two; besides, any named arguments of the mode's form. A form that takes less
    # goes first, for it is one of those that take more.
    @overload
    def __get__(
        self: Listed[W, Callable[[], Later[R]], NamedOf[Any, P], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[], R], NamedOf[Any, P], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[], Rows], NamedOf[Any, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, P, Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[], Later[R]], NamedOf[Any, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1], Later[R]], NamedOf[ForWorkers, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfWorkers[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1], R], NamedOf[ForWorkers, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfWorkers[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1], Later[R]], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfRows[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1], R], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfRows[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1], Later[R]], NamedOf[ForEither, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfEither[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1], R], NamedOf[ForEither, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfEither[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1], Rows], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[OfRows[A1], P], Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1], Later[R]], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[OfRows[A1], P], R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1], Rows], NamedOf[ForFunctionAndRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[A1, P], Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1], Later[R]], NamedOf[ForFunctionAndRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[A1, P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1, A2], Later[R]], NamedOf[ForWorkers, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfWorkers[A1], OfWorkers[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1, A2], R], NamedOf[ForWorkers, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfWorkers[A1], OfWorkers[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1, A2], Later[R]], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfRows[A1], OfRows[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1, A2], R], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfRows[A1], OfRows[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1, A2], Later[R]], NamedOf[ForEither, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfEither[A1], OfEither[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[[A1, A2], R], NamedOf[ForEither, P], B], obj: None, owner: Any
    ) -> ListMethod[W, Concatenate[OfEither[A1], OfEither[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1, A2], Rows], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[OfRows[A1], OfRows[A2], P], Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1, A2], Later[R]], NamedOf[ForRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[OfRows[A1], OfRows[A2], P], R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1, A2], Rows], NamedOf[ForFunctionAndRows, P], B], obj: None, owner: Any
    ) -> BatchMethod[W, Concatenate[A1, OfRows[A2], P], Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[[A1, A2], Later[R]], NamedOf[ForFunctionAndRows, P], B],
        obj: None,
        owner: Any,
    ) -> BatchMethod[W, Concatenate[A1, OfRows[A2], P], R, B]: ...

    # Any other parameters.
    @overload
    def __get__(
        self: Listed[W, Callable[..., Later[R]], AnyOf[P], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[..., R], AnyOf[P], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Placed[W, Callable[..., Later[R]], AnyOf[P], B], obj: None, owner: Any
    ) -> PlacedMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Placed[W, Callable[..., R], AnyOf[P], B], obj: None, owner: Any
    ) -> PlacedMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[..., Rows], AnyOf[P], B], obj: None, owner: Any
    ) -> BatchMethod[W, P, Rows, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[..., Later[R]], AnyOf[P], B], obj: None, owner: Any
    ) -> BatchMethod[W, P, R, B]: ...

    # A form of one's own: only the result is known.
    @overload
    def __get__(
        self: Listed[W, Callable[..., Later[R]], Any, B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Listed[W, Callable[..., R], Any, B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Single[W, Callable[..., Later[R]], Any, B], obj: None, owner: Any
    ) -> OneMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Single[W, Callable[..., R], Any, B], obj: None, owner: Any
    ) -> OneMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[..., Later[R]], Any, B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Joined[W, Callable[..., R], Any, B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...

    # A mode that is not typed.
    @overload
    def __get__(self, obj: None, owner: Any) -> Method[W_co, ..., Any, Any, Any, B_co]: ...

    # On a worker: the method itself.
    @overload
    def __get__(self, obj: object, owner: Any) -> F_co: ...
    def __get__(self, obj: object, owner: Any) -> Any: ...
