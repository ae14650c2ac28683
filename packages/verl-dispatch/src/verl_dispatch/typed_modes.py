"""What each dispatch mode takes from the caller and gives back, said with placeholders for type checkers.

`Mode[takes, gives, gives when not blocking]`: `Arg` stands for the type of a parameter, `Res` for what the
worker's method returns, `Ref` for the group's own futures. The mypy plugin and `group.call(Class.method)`
read these classes and know no mode by name; nothing here runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, TypeAlias, TypeVar

if TYPE_CHECKING:
    from tensordict import TensorDictBase
    from verl_protocol.batch.proto import DataProto
    from verl_protocol.futures.future import DataProtoFuture

    from verl_dispatch.modes import Broadcast, Dispatch, Execute

__all__ = ["Arg", "Batch", "Mode", "Ref", "Res"]


if not TYPE_CHECKING:
    # A mode is a value at run time; these classes are then only names.
    class Dispatch: ...

    class Execute: ...


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


class Mode(Dispatch, Generic[Takes, Gives, GivesLater]):
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


class ExecuteAll(Execute): ...


class ExecuteRankZero(Execute): ...


class ExecuteSome(Execute): ...
