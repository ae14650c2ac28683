"""Dynamic enums: which modes exist, and how a method's execution is spread over ranks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from verl_dispatch.errors import UnknownMemberError

if TYPE_CHECKING:
    from verl_dispatch import typed_modes as typed

__all__ = ["Broadcast", "Dispatch", "DynamicEnum", "Execute"]


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
        raise ValueError(f"a member of {cls.__name__} needs an identifier as its name, got {name!r}")
    key: str = name.upper()
    if key in cls._registry:
        raise ValueError(
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

    RANK_ZERO: ClassVar[typed.RankZero]
    ONE_TO_ALL: ClassVar[typed.OneToAll]
    ALL_TO_ALL: ClassVar[typed.AllToAll]
    DP_COMPUTE: ClassVar[typed.DpCompute]
    DP_COMPUTE_PROTO: ClassVar[typed.DpComputeProto]
    DP_COMPUTE_PROTO_WITH_FUNC: ClassVar[typed.DpComputeProtoWithFunc]
    DP_COMPUTE_METRIC: ClassVar[typed.DpComputeMetric]
    ONE_TO_ONE: ClassVar[typed.OneToOne]
    DIRECT_ROLLOUT_METHOD: ClassVar[typed.DirectRollout]


class Execute(DynamicEnum):
    """Which ranks run a call. Further strategies: `register_execute_mode`."""

    __slots__ = ()

    ALL: ClassVar[typed.ExecuteAll]
    RANK_ZERO: ClassVar[typed.ExecuteRankZero]


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
