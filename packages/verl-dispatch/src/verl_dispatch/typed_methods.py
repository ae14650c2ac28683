"""The static types around a registered method; nothing here runs.

`worker.method` keeps its plain signature. `WorkerClass.method` is a `Method` that carries what a group takes
and gives for it, so that `group.call(WorkerClass.method, ...)` is checked without a plugin.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypeVar,
    overload,
)

from verl_dispatch.typed_modes import Ref

if TYPE_CHECKING:
    from typing_extensions import ParamSpec as ParamSpecWithDefault
    from typing_extensions import TypeVar as TypeVarWithDefault
    from verl_protocol.futures import DataProtoFuture

    from verl_dispatch.markers import Broadcast
    from verl_dispatch.modes import Dispatch
    from verl_dispatch.typed_access import Registered

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B", bound=bool)
D = TypeVar("D")
G = TypeVar("G")
M = TypeVar("M", bound="Dispatch")
M_co = TypeVar("M_co", bound="Dispatch", covariant=True)
R = TypeVar("R")
W = TypeVar("W")
W_contra = TypeVar("W_contra", contravariant=True)

if TYPE_CHECKING:
    # A group or method whose parameters are not said is one of anything.
    GP = ParamSpecWithDefault("GP", default=...)
    R_co = TypeVarWithDefault("R_co", covariant=True, default=Any)
    G_co = TypeVarWithDefault("G_co", covariant=True, default=Any)
    D_co = TypeVarWithDefault("D_co", covariant=True, default=Any)
    B_co = TypeVarWithDefault("B_co", bound=bool, covariant=True, default=Any)
    # Covariant: a group of a derived class is a group of its base.
    GroupWorker = TypeVarWithDefault("GroupWorker", default=Any, covariant=True)
    GroupRef = TypeVarWithDefault("GroupRef", default=Any)
else:
    GP = ParamSpec("GP")
    R_co = TypeVar("R_co", covariant=True)
    G_co = TypeVar("G_co", covariant=True)
    D_co = TypeVar("D_co", covariant=True)
    B_co = TypeVar("B_co", bound=bool, covariant=True)
    GroupWorker = TypeVar("GroupWorker", covariant=True)
    GroupRef = TypeVar("GroupRef")


class Method(Generic[W_contra, GP, R_co, G_co, D_co, B_co]):
    """A registered method as an attribute of its class.

    Of a worker W; on a group it takes the parameters GP; R is what one worker answers, G what the group
    answers, D the same when not blocking, B whether the method was registered as blocking.
    """

    __name__: str
    __qualname__: str

    # `group.on` is read as the worker's class, so this is what calling `group.on.method` means.
    @overload
    def __call__(
        self: Method[Any, GP, Any, G, Any, Literal[True]], *args: GP.args, **kwargs: GP.kwargs
    ) -> G: ...
    @overload
    def __call__(
        self: Method[Any, GP, Any, Any, D, Literal[False]], *args: GP.args, **kwargs: GP.kwargs
    ) -> D: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError


ListMethod: TypeAlias = "Method[W, P, R, list[R], list[Ref[R]], B]"
OneMethod: TypeAlias = "Method[W, P, R, R, Ref[R], B]"
SomeMethod: TypeAlias = "Method[W, P, R, dict[int, R], dict[int, Ref[R]], B]"
BatchMethod: TypeAlias = "Method[W, P, R, R, DataProtoFuture[R], B]"

Later: TypeAlias = "Coroutine[Any, Any, R]"


class NobodyReturnsThis:
    """Only types that pass for anything do: Any, and classes with a base that checkers do not know."""


X = TypeVar("X", bound=NobodyReturnsThis)

OfRows: TypeAlias = "A | DataProtoFuture[A] | Broadcast[A]"
OfWorkers: TypeAlias = "Sequence[A] | Broadcast[A]"
OfEither: TypeAlias = "Sequence[A] | A | DataProtoFuture[A] | Broadcast[A]"


class HasDefault1(Protocol[R_co]):
    """A method whose first parameter may be left out."""

    def __call__(self, first: Any = ..., /) -> R_co: ...


class HasDefault2(Protocol[R_co]):
    """A method whose second parameter may be left out."""

    def __call__(self, first: Any, second: Any = ..., /) -> R_co: ...


class Decorator(Generic[M_co, B_co]):
    """What `register(...)` returns: makes a method a registered one."""

    # One signature: overloads here would turn any method with an Any in its signature into Any.
    def __call__(
        self, function: Callable[Concatenate[W, P], R], /
    ) -> Registered[W, Callable[P, R], M_co, B_co]:
        raise NotImplementedError


class RefusedPair:
    """What `register(...)` returns for modes that do not go together: it decorates nothing."""

    def __call__(self, function: Never, /) -> Any:
        raise NotImplementedError
