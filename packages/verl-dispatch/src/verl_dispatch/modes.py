"""Which modes there are, what each takes and gives, and how an argument says that it is to be copied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, Self, TypeAlias, TypeVar

from verl_protocol.errors import InvalidValueError

from verl_dispatch.errors import UnknownMemberError

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from verl_protocol.batch.proto import DataProto
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
        key = _checked_name(cls, name)
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


def _checked_name(cls: type[DynamicEnum], name: Any) -> str:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise InvalidValueError(f"a member of {cls.__name__} needs an identifier as its name, got {name!r}")
    key: str = name.upper()
    if key in cls._registry:
        raise InvalidValueError(
            f"{cls.__name__} already has a member {key!r}; known members: {', '.join(cls.names())}"
        )
    return key


def _load_member(cls: type[_E], name: str) -> _E:
    member = cls.from_name(name) or cls._unlisted.get(name)
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


X_co = TypeVar("X_co", covariant=True)
Takes = TypeVar("Takes")
Gives = TypeVar("Gives")
GivesLater = TypeVar("GivesLater")


class Arg:
    """Stands for the type of each parameter of the worker's method."""


class Res:
    """Stands for what the worker's method returns; for an async method, what it returns when awaited."""


class Ref(Generic[X_co]):
    """Stands for one worker's pending answer: an ObjectRef on Ray, a Future in-process."""


class Batch(Generic[X_co]):
    """Stands for that part of a type that is a batch of rows; what has none can only be broadcast."""

    kinds: ClassVar[DataProto | TensorDictBase | DataProtoFuture[Any]]


class Mode(DispatchBase, Generic[Takes, Gives, GivesLater]):
    """The static type of a dispatch mode.

    A tuple as `Takes` types the parameters in turn, its last item all that follow. A mode whose result
    follows the form of its arguments lists these forms, modes themselves, as a tuple type in `forms`.

    Example:
        >>> class Summing(Mode[Arg, Res, Ref[Res]]):
        ...     "Takes arguments as they are; gives one value of the type that each worker returns."
    """


Whole: TypeAlias = "Arg | Ref[Arg] | DataProtoFuture[Batch[Arg]] | Broadcast[Arg]"
Rows: TypeAlias = "Batch[Arg] | DataProtoFuture[Batch[Arg]] | Broadcast[Arg]"
PerWorker: TypeAlias = "Sequence[Arg | Ref[Arg]] | Broadcast[Arg]"
PerWorkerOrRows: TypeAlias = (
    "Sequence[Arg | Ref[Arg]] | Batch[Arg] | DataProtoFuture[Batch[Arg]] | Broadcast[Arg]"
)
ByRank: TypeAlias = "Mapping[int, Arg | Ref[Arg]] | Sequence[Arg | Ref[Arg]] | Broadcast[Arg]"


class RankZero(Mode[Whole, Res, Ref[Res]]): ...


class OneToAll(Mode[Whole, list[Res], list[Ref[Res]]]): ...


class AllToAll(Mode[PerWorkerOrRows, list[Res], list[Ref[Res]]]): ...


class DpCompute(Mode[PerWorker, list[Res], list[Ref[Res]]]): ...


class DpComputeProto(Mode[Rows, Res, "DataProtoFuture[Res]"]): ...


class DpComputeProtoWithFunc(Mode["tuple[Arg, Rows]", Res, "DataProtoFuture[Res]"]): ...


class DpComputeMetric(Mode[Rows, list[Res], list[Ref[Res]]]): ...


class OneToOneByPlace(Mode[PerWorker, list[Res], list[Ref[Res]]]): ...


class OneToOneByRank(Mode[ByRank, dict[int, Res], dict[int, Ref[Res]]]): ...


class OneToOne(Mode[ByRank, dict[int, Res] | list[Res], dict[int, Ref[Res]] | list[Ref[Res]]]):
    forms: ClassVar[tuple[OneToOneByPlace, OneToOneByRank]]


class SomeRanks(Mode[Whole, dict[int, Res], dict[int, Ref[Res]]]): ...


class DirectRollout(Mode[Never, Never, Never]): ...


class NdBatches(Mode[Rows, Res, "DataProtoFuture[Res]"]):
    # At run time this mode is a dict.
    def __getitem__(self, key: str, /) -> Callable[..., Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        raise NotImplementedError


WholeMode: TypeAlias = RankZero | OneToAll | AllToAll
SplittingMode: TypeAlias = (
    DpCompute
    | DpComputeProto
    | DpComputeProtoWithFunc
    | DpComputeMetric
    | OneToOne
    | DirectRollout
    | NdBatches
)


class ExecuteAll(ExecuteBase): ...


class ExecuteRankZero(ExecuteBase): ...


class ExecuteSome(ExecuteBase): ...
