"""Which modes there are, what each takes and gives, and how an argument says that it is to be copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Never,
    Protocol,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
)

from verl_protocol.errors import InvalidValueError

from verl_dispatch.errors import UnknownMemberError

if TYPE_CHECKING:
    from verl_protocol.futures.future import DataProtoFuture


_E = TypeVar("_E", bound="DynamicEnum")


class DynamicEnumMeta(type):
    """Makes an enum class a collection of its members."""

    def __iter__(cls: type[_E]) -> Iterator[_E]:  # type: ignore[misc]
        return iter(cls.values())

    def __len__(cls) -> int:
        return len(cls._registry)  # type: ignore[attr-defined]

    def __contains__(cls, item: object) -> bool:
        registry: dict[str, Any] = cls._registry  # type: ignore[attr-defined]
        if isinstance(item, str):
            return item.upper() in registry
        return isinstance(item, DynamicEnum) and registry.get(item.name) is item

    def __getitem__(cls: type[_E], name: str) -> _E:  # type: ignore[misc]
        member = cls.from_name(name)
        if member is None:
            raise UnknownMemberError(cls.__name__, name, cls.names())
        return member

    if not TYPE_CHECKING:  # a type checker knows the predefined members and is to refuse all others

        def __getattr__(cls, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(f"type object {cls.__name__!r} has no attribute {name!r}")
            raise UnknownMemberError(cls.__name__, name, cls.names())


class DynamicEnum(metaclass=DynamicEnumMeta):
    """An enum that gains members at run time; names are upper case, members are compared by identity.

    A member pickles as its class and name, and loads where it was never registered.

    Example:
        >>> class Colour(DynamicEnum):
        ...     pass
        >>> red = Colour.register("red")
        >>> red is Colour.RED, red.name, red in Colour, Colour["RED"] is red
        (True, 'RED', True, True)
    """

    _registry: ClassVar[dict[str, Any]] = {}
    _unlisted: ClassVar[dict[str, Any]] = {}
    _next_value: ClassVar[int] = 0

    __slots__ = ("name", "value")

    name: str
    value: int

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._registry, cls._unlisted, cls._next_value = {}, {}, 0

    def __init__(self, name: str, value: int) -> None:
        self.name = name
        self.value = value

    def __repr__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _load_member, (type(self), self.name)

    @classmethod
    def register(cls, name: str) -> Self:
        """Adds a member and returns it.

        Raises:
            ValueError: the name is taken, is no identifier, or is an attribute of the class.
        """
        given: Any = name
        if not isinstance(given, str) or not given.isidentifier() or given.startswith("_"):
            raise InvalidValueError(
                f"a member of {cls.__name__} needs an identifier as its name, got {given!r}"
            )
        key = name.upper()
        if key in cls._registry:
            raise InvalidValueError(
                f"{cls.__name__} already has a member {key!r}; known members: {', '.join(cls.names())}"
            )
        member: Self = cls._unlisted.pop(key, None) or cls._create(key)
        cls._registry[key] = member
        setattr(cls, key, member)
        return member

    @classmethod
    def remove(cls, name: str) -> Self:
        """Takes a member out and returns it.

        Raises:
            UnknownMemberError: there is no such member.
        """
        member = cls[name]
        del cls._registry[member.name]
        # A predefined name may be restored straight into the registry, without the attribute.
        if member.name in cls.__dict__:
            delattr(cls, member.name)
        return member

    @classmethod
    def from_name(cls, name: object) -> Self | None:
        """The member of that name in any case, or None."""
        return cls._registry.get(name.upper()) if isinstance(name, str) else None

    @classmethod
    def names(cls) -> list[str]:
        """Names of all members, in order of registration."""
        return list(cls._registry)

    @classmethod
    def values(cls) -> list[Self]:
        """All members, in order of registration."""
        return list(cls._registry.values())

    @classmethod
    def _create(cls, name: str) -> Self:
        member = cls(name, cls._next_value)
        cls._next_value += 1
        return member


def _load_member(cls: type[_E], name: str) -> _E:
    member: _E | None = cls.from_name(name) or cls._unlisted.get(name)
    if member is None:
        member = cls._unlisted[name] = cls._create(name)
    return member


class Dispatch(DynamicEnum):
    """How the arguments of a call are spread over the workers and the answers put together.

    Custom modes: `register_dispatch_mode`.
    """

    __slots__ = ()

    RANK_ZERO: ClassVar[RankZero]
    ONE_TO_ALL: ClassVar[OneToAll]
    ALL_TO_ALL: ClassVar[AllToAll]
    DP_COMPUTE: ClassVar[DpCompute]
    DP_COMPUTE_PROTO: ClassVar[DpComputeProto]
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar[DpComputeProtoWithFunc]
    DP_COMPUTE_METRIC: ClassVar[DpComputeMetric]
    ONE_TO_ONE: ClassVar[OneToOne]
    DIRECT_ROLLOUT_METHOD: ClassVar[DirectRollout]


class Execute(DynamicEnum):
    """Which ranks run a call. Further strategies: `register_execute_mode`."""

    __slots__ = ()

    ALL: ClassVar[ExecuteAll]
    RANK_ZERO: ClassVar[ExecuteRankZero]


def init_predefined_dispatch_mode() -> None:
    """Registers the predefined dispatch modes; those already there stay as they are."""
    _register_missing(Dispatch)


def init_predefined_execute_mode() -> None:
    """Registers the predefined execute modes; those already there stay as they are."""
    _register_missing(Execute)


def _register_missing(cls: type[DynamicEnum]) -> None:
    for name in cls.__annotations__:
        if cls.from_name(name) is None:
            cls.register(name)


init_predefined_dispatch_mode()
init_predefined_execute_mode()


# --- What a caller wraps an argument in to say how it travels ---------------------------------------------


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Broadcast(Generic[T_co]):
    """Marks an argument of a splitting mode that every worker gets as it is.

    Example:
        >>> Broadcast({"lr": 1e-6}).value
        {'lr': 1e-06}
    """

    value: T_co


def unwrapped(value: object) -> object:
    """What is inside a marker, or the value itself."""
    return value.value if isinstance(value, Broadcast) else value


# --- What each dispatch mode takes from the caller and gives back, said for type checkers -----------------
# `Mode[takes, gives, gives when not blocking]`: `Arg` stands for the type of a parameter, `Res` for what the
# worker's method returns, `Ref` for the group's own futures. The mypy plugin and `group.call(Class.method)`
# read these classes and know no mode by name; nothing of them runs.


if TYPE_CHECKING:
    DispatchBase: TypeAlias = Dispatch
    ExecuteBase: TypeAlias = Execute
else:
    # A mode is a value at run time; these classes are then only names, and no enums of their own.
    class DispatchBase: ...

    class ExecuteBase: ...


A = TypeVar("A")
X_co = TypeVar("X_co", covariant=True)
X_contra = TypeVar("X_contra", contravariant=True)
Takes_co = TypeVar("Takes_co", covariant=True)
Gives_co = TypeVar("Gives_co", covariant=True)
GivesLater_co = TypeVar("GivesLater_co", covariant=True)
Form_co = TypeVar("Form_co", covariant=True)
Rest_co = TypeVar("Rest_co", covariant=True)
Named_co = TypeVar("Named_co", covariant=True)


class Arg:
    """Stands for the type of each parameter of the worker's method."""


class Res:
    """Stands for what the worker's method returns; for an async method, what it returns when awaited."""


class Ref(Generic[X_co]):
    """Stands for one worker's pending answer: an ObjectRef on Ray, a Future in-process."""


# --- What a caller gives for a parameter of type A --------------------------------------------------------


class ListOrTuple(Protocol[X_co]):
    """A list or a tuple, covariant in its entries, and no other sequence."""

    # A str holds only strs, a range cannot be multiplied, an array or deque not by all that is an index.
    def __contains__(self, key: object, /) -> bool: ...
    def __iter__(self) -> Iterator[X_co]: ...
    def __mul__(self, value: SupportsIndex, /) -> Sequence[X_co]: ...


class Batch(Protocol[X_co]):
    """A batch of rows that is an X: a DataProto, or a DataProtoFuture where X is one itself."""

    def chunk(self, chunks: int, /) -> Sequence[X_co]: ...
    @staticmethod
    def concat(data: Any, /) -> Any: ...


class TensorBatch(Protocol[X_co]):
    """A TensorDict that is an X, said without tensordict: its older releases have no types."""

    @property
    def batch_size(self) -> Any: ...
    def contiguous(self) -> X_co: ...


OrFuture: TypeAlias = "A | DataProtoFuture[A]"
OfRows: TypeAlias = "Batch[A] | TensorBatch[A] | DataProtoFuture[A] | Broadcast[OrFuture[A]]"
OfWorkers: TypeAlias = "ListOrTuple[OrFuture[A]] | Broadcast[OrFuture[A]]"
OfEither: TypeAlias = "ListOrTuple[OrFuture[A]] | OfRows[A]"
OfRanks: TypeAlias = "Mapping[int, OrFuture[A]] | OfWorkers[A]"

# The same for the placeholder; only the plugin knows which futures a group has.
ArgOrFuture: TypeAlias = "Arg | Ref[Arg] | DataProtoFuture[Arg]"
Whole: TypeAlias = "ArgOrFuture | Broadcast[ArgOrFuture]"
ForRows: TypeAlias = "Batch[Arg] | TensorBatch[Arg] | DataProtoFuture[Arg] | Broadcast[ArgOrFuture]"
ForWorkers: TypeAlias = "ListOrTuple[ArgOrFuture] | Broadcast[ArgOrFuture]"
ForEither: TypeAlias = "ListOrTuple[ArgOrFuture] | ForRows"
ForRanks: TypeAlias = "Mapping[int, ArgOrFuture] | ForWorkers"
ForFunctionAndRows: TypeAlias = "tuple[Arg, ForRows]"


class Rest(Protocol[X_contra]):
    """Any number of arguments of one type."""

    def __call__(self, *args: X_contra, **kwargs: X_contra) -> Any: ...


class Named(Protocol[X_contra]):
    """Any number of named arguments of one type."""

    def __call__(self, **kwargs: X_contra) -> Any: ...


class RestAfterFunction(Protocol):
    """A function, then any number of batches."""

    def __call__(self, function: Any, /, *args: OfRows[Any], **kwargs: OfRows[Any]) -> Any: ...


class Per(Generic[Form_co, Rest_co, Named_co]):
    """What a mode takes for each parameter; and what any arguments, and any named ones, have to be."""


class PerWorker(Per["ForWorkers", "Rest[OfWorkers[Any]]", "Named[OfWorkers[Any]]"]): ...


class PerRow(Per["ForRows", "Rest[OfRows[Any]]", "Named[OfRows[Any]]"]): ...


class PerWorkerOrRow(Per["ForEither", "Rest[OfEither[Any]]", "Named[OfEither[Any]]"]): ...


class PerRank(Per["ForRanks", "Rest[OfRanks[Any]]", "Named[OfRanks[Any]]"]): ...


class FunctionThenRows(Per["ForFunctionAndRows", "RestAfterFunction", "Named[OfRows[Any]]"]): ...


class Mode(DispatchBase, Generic[Takes_co, Gives_co, GivesLater_co]):
    """The static type of a dispatch mode.

    A tuple as what it takes types the parameters in turn, its last item all that follow. A mode whose result
    follows the form of its arguments lists these forms, modes themselves, as a tuple type in `forms`.

    Example:
        >>> class Summing(Mode[Arg, Res, Ref[Res]]):
        ...     "Takes arguments as they are; gives one value of the type that each worker returns."
    """


class RankZero(Mode["Whole", Res, Ref[Res]]): ...


class OneToAll(Mode["Whole", list[Res], list[Ref[Res]]]): ...


class AllToAll(Mode[PerWorkerOrRow, list[Res], list[Ref[Res]]]): ...


class DpCompute(Mode[PerWorker, list[Res], list[Ref[Res]]]): ...


class DpComputeProto(Mode[PerRow, Res, "DataProtoFuture[Res]"]): ...


class DpComputeProtoWithFunc(Mode[FunctionThenRows, Res, "DataProtoFuture[Res]"]): ...


class DpComputeMetric(Mode[PerRow, list[Res], list[Ref[Res]]]): ...


class OneToOneByPlace(Mode[PerWorker, list[Res], list[Ref[Res]]]): ...


class OneToOneByRank(Mode[PerRank, dict[int, Res], dict[int, Ref[Res]]]): ...


class OneToOne(Mode[PerRank, dict[int, Res] | list[Res], dict[int, Ref[Res]] | list[Ref[Res]]]):
    forms: ClassVar[tuple[OneToOneByPlace, OneToOneByRank]]


class SomeRanks(Mode["Whole", dict[int, Res], dict[int, Ref[Res]]]): ...


class DirectRollout(Mode[Never, Never, Never]): ...


class NdBatches(Mode[PerRow, Res, "DataProtoFuture[Res]"]):
    # At run time this mode is a dict.
    def __getitem__(self, key: str, /) -> Callable[..., Any]: ...  # type: ignore[empty-body]
    def __iter__(self) -> Iterator[str]: ...  # type: ignore[empty-body]


WholeMode: TypeAlias = RankZero | OneToAll | AllToAll
BatchMode: TypeAlias = DpComputeProto | DpComputeProtoWithFunc
SplittingMode: TypeAlias = BatchMode | NdBatches | DpCompute | DpComputeMetric | OneToOne | DirectRollout


class ExecuteAll(ExecuteBase): ...


class ExecuteRankZero(ExecuteBase): ...


class ExecuteSome(ExecuteBase): ...
