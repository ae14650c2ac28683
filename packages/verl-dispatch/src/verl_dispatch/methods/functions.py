"""The public dispatch and collect functions: what the modes here do, and what custom ones build on.

`dispatch_fn(group, *args, **kwargs)` returns `(args, kwargs)` with one entry per worker in every list, or a
CallPlan. Lists of batches remember padding and order, so that a custom mode built on these functions has both
undone. `collect_fn(group, outputs)` makes the result of the answers, or of futures of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from verl_protocol import DataProtoFuture
from verl_protocol.errors import InvalidTypeError, InvalidValueError
from verl_protocol.futures.any_batch import is_batch

from verl_dispatch.errors import EntryCountError, MeshError, UnsplittableArgumentError
from verl_dispatch.modes import Broadcast, unwrapped
from verl_dispatch.planning.batches import is_splittable
from verl_dispatch.planning.collectors import LIST, BatchCollector, DictCollector
from verl_dispatch.planning.mesh import is_whole, mesh_of, name_problem
from verl_dispatch.planning.options import Labels, current_labels, current_options
from verl_dispatch.planning.plan import CallPlan, Scatter
from verl_dispatch.planning.split import Arguments, Lists, SplitList, split_batches, split_entries

if TYPE_CHECKING:
    from verl_dispatch.modes import NdBatches


# --- whole arguments: to rank 0, or to all ----------------------------------------------------------------


def dispatch_rank_zero(group: Any, /, *args: Any, **kwargs: Any) -> Scatter:
    """One call of rank 0, with the arguments as given; of `Broadcast(x)`, x."""
    return Scatter.of_all(*_unwrapped(args, kwargs), world_size=1)


def _unwrapped(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if Broadcast in map(type, args):
        args = tuple([unwrapped(value) for value in args])
    if Broadcast in map(type, kwargs.values()):
        kwargs = {name: unwrapped(value) for name, value in kwargs.items()}
    return args, kwargs


def dispatch_one_to_all(group: Any, /, *args: Any, **kwargs: Any) -> Lists:
    """Every argument to every worker.

    Example:
        >>> from types import SimpleNamespace
        >>> dispatch_one_to_all(SimpleNamespace(world_size=2), 7, lr=0.1)
        (([7, 7],), {'lr': [0.1, 0.1]})
    """
    args, kwargs = _unwrapped(args, kwargs)
    size = group.world_size
    return tuple([[value] * size for value in args]), {name: [value] * size for name, value in kwargs.items()}


def scatter_one_to_all(group: Any, /, *args: Any, **kwargs: Any) -> Scatter:
    """The same call of every rank; backends see that it is the same by its containers."""
    return Scatter.of_all(*_unwrapped(args, kwargs), group.world_size)


def dispatch_direct_rollout_method(group: Any, /, *args: Any, **kwargs: Any) -> Lists:
    """Refuses: such a method is called on its worker, never on a group.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"method {current_labels().method or 'with DIRECT_ROLLOUT_METHOD'!r} is called directly on its "
        "worker and cannot be called on a group; register it with another dispatch mode to do so"
    )


# --- one entry per worker ---------------------------------------------------------------------------------


def dispatch_all_to_all(group: Any, /, *args: Any, **kwargs: Any) -> Lists:
    """Lists with one entry per worker, batches split by rows, `Broadcast(x)` to all.

    Raises:
        EntryCountError, UnsplittableArgumentError, UnevenRowsError, RowCountError: see `split_batches`.
    """
    labels, options = current_labels(), current_options()
    return split_batches(group.world_size, args, kwargs, labels, options, takes_entries=True)


def dispatch_dp_compute(group: Any, /, *args: Any, **kwargs: Any) -> Lists:
    """Lists or tuples with one entry per worker, `Broadcast(x)` to all.

    Raises:
        EntryCountError: a list of another length.
        UnsplittableArgumentError: neither a list nor a tuple.
    """
    return split_entries(group.world_size, args, kwargs, current_labels())


def _check_count(label: str, num_workers: int, entries: Sequence[Any]) -> None:
    if len(entries) != num_workers:
        raise EntryCountError(label, num_workers, len(entries))


def collect_rank_zero(group: Any, output: Any) -> Any:
    """The value of rank 0, the only one called."""
    return output[0] if isinstance(output, list) else output


def collect_all_to_all(group: Any, output: Any) -> Any:
    """The answers as they are."""
    return output


def collect_dp_compute(group: Any, output: Sequence[Any]) -> Sequence[Any]:
    """The answers as they are, one per worker.

    Raises:
        EntryCountError: another number of answers.
    """
    _check_count("the output", group.world_size, output)
    return output


# --- each argument says which rank gets what, and only those ranks are called -----------------------------


_BY_RANK = "{rank: value}, or a list with one entry per worker"


def dispatch_one_to_one(group: Any, /, *args: Any, **kwargs: Any) -> CallPlan:
    """Each argument is `{rank: value}`, or a list with one entry per worker; `Broadcast(x)` to all named.

    Raises:
        InvalidValueError: arguments that name different ranks, ranks outside the world, or none at all.
        EntryCountError: a list of another length.
    """
    labels, world_size = current_labels(), group.world_size
    arguments = Arguments(args, kwargs, labels)
    named = {
        label: _by_rank(labels.method, label, value, world_size)
        for label, value in zip(labels.all(args, kwargs), arguments.values, strict=True)
        if not isinstance(value, Broadcast)
    }
    ranks = _common_ranks(labels.method, named, world_size)
    entries = iter(named.values())
    lists = []
    for value in arguments.values:
        column = dict.fromkeys(ranks, value.value) if isinstance(value, Broadcast) else next(entries)
        lists.append([column[rank] for rank in ranks])
    scatter = Scatter.of_lists(*arguments.cut_into(lists), ranks)
    as_dict = any(isinstance(value, Mapping) for value in arguments.values)
    collect = DictCollector(labels.method, ranks) if as_dict else LIST
    return CallPlan(scatter.calls, fetched_ranks=ranks, collect=collect)


def _bad_ranks(method: str, problem: str) -> InvalidValueError:
    return InvalidValueError(f"ONE_TO_ONE arguments of {method!r} must name the same ranks: {problem}")


def _by_rank(method: str, label: str, value: Any, world_size: int) -> Mapping[int, Any]:
    if isinstance(value, Mapping):
        return value
    if not isinstance(value, (list, tuple)):
        raise _bad_ranks(method, f"{label} must be {_BY_RANK}, got {type(value).__name__}")
    _check_count(label, world_size, value)
    return dict(enumerate(value))


def _common_ranks(method: str, named: Mapping[str, Mapping[int, Any]], world_size: int) -> tuple[int, ...]:
    if not named:
        raise _bad_ranks(method, f"no argument names any rank; give at least one as {_BY_RANK}")
    (first_label, first), *others = named.items()
    for label, entries in others:
        if set(entries) != set(first):
            both = (first_label, first), (label, entries)
            told = [f"{each} names ranks {sorted(ranks, key=str)}" for each, ranks in both]
            raise _bad_ranks(method, ", but ".join(told))
    in_world = all(is_whole(rank) and 0 <= rank < world_size for rank in first)
    if not (first and in_world):
        world = f"0..{world_size - 1}"
        raise _bad_ranks(
            method, f"{first_label} names ranks {sorted(first, key=str)}, but the group has ranks {world}"
        )
    # Numpy's numbers are ranks too.
    return tuple(sorted(map(int, first)))


# --- batches, split by rows -------------------------------------------------------------------------------


def dispatch_dp_compute_data_proto(group: Any, /, *args: Any, **kwargs: Any) -> Lists:
    """Batches split by rows over the ranks, `Broadcast(x)` to all; padded where a batch asks for it.

    Raises:
        UnsplittableArgumentError, UnevenRowsError, RowCountError: see `split_batches`.
    """
    return split_batches(group.world_size, args, kwargs, current_labels(), current_options())


def dispatch_dp_compute_data_proto_with_func(group: Any, /, *args: Any, **kwargs: Any) -> Lists:
    """First a function, to every worker; the rest as `dispatch_dp_compute_data_proto`.

    The function may be passed by the name of the method's first parameter.

    Raises:
        UnsplittableArgumentError: the first argument is no function, or another one no batch.
    """
    labels, num_workers = current_labels(), group.world_size
    given, *rest = args or (kwargs.pop(next(iter(labels.parameters), ""), None),)
    function = unwrapped(given)
    if not callable(function):
        expected = "a function for every worker, then batches"
        raise UnsplittableArgumentError(labels.positional(0), given, num_workers, expected)
    lists, named = split_batches(
        num_workers, rest, kwargs, Labels(labels.method, labels.parameters, start=1), current_options()
    )
    return ([function] * num_workers, *lists), named


def _split_args_kwargs_data_proto(chunks: int, /, *args: Any, **kwargs: Any) -> Lists:
    """Batches cut into `chunks` parts of equal rows, never padded."""
    options = current_options().changed(auto_padding=False)
    return split_batches(chunks, args, kwargs, current_labels(), options)


def _split_args_kwargs_data_proto_with_auto_padding(chunks: int, /, *args: Any, **kwargs: Any) -> Lists:
    """Batches cut into `chunks` parts of equal rows, padded copies where a batch asks for it."""
    return split_batches(chunks, args, kwargs, current_labels(), current_options())


def collect_dp_compute_data_proto(group: Any, output: Sequence[Any]) -> Any:
    """The answers joined to one batch; from futures, one DataProtoFuture.

    Raises:
        AnswerError: an answer that is neither a batch nor a future.
    """
    return _concat_data_proto_or_future(collect_dp_compute(group, output))


def _concat_data_proto_or_future(output: Sequence[Any]) -> Any:
    """Batches joined to one batch, futures to one DataProtoFuture."""
    if any(isinstance(value, DataProtoFuture) or _is_pending(value) for value in output):
        return DataProtoFuture.concat(list(output))
    return BatchCollector("collect", tuple(range(len(output)))).collect(output)


def _is_pending(value: Any) -> bool:
    return not is_batch(value) and (hasattr(value, "future") or hasattr(value, "result"))


# --- batches over a named mesh: rows split over dp ranks, every replica of a dp rank gets the same part ---


def dispatch_nd_compute(
    dp_rank_mapping: Sequence[int], dp_size: int, group: Any, /, *args: Any, **kwargs: Any
) -> Lists:
    """Lists with one entry per dp rank, spread over all ranks: replicas get the very same object.

    Raises:
        EntryCountError: a list without one entry per dp rank, or a mapping without one per worker.
        MeshError: a dp rank outside `0..dp_size-1`.

    Example:
        >>> from types import SimpleNamespace
        >>> dispatch_nd_compute([0, 0, 1, 1], 2, SimpleNamespace(world_size=4), ["a", "b"])
        ((['a', 'a', 'b', 'b'],), {})
    """
    _check_mapping(dp_rank_mapping, dp_size, group.world_size)
    arguments = Arguments(args, kwargs, current_labels())
    places = range(len(arguments.values))
    return arguments.cut_into([_spread(arguments, place, dp_rank_mapping, dp_size) for place in places])


def dispatch_nd_compute_dataproto(
    dp_rank_mapping: Sequence[int], dp_size: int, group: Any, /, *args: Any, **kwargs: Any
) -> Lists:
    """Batches split by rows over the dp ranks, then spread over all ranks.

    Raises:
        UnsplittableArgumentError, UnevenRowsError, RowCountError: see `split_batches`.
    """
    lists, named = split_batches(dp_size, args, kwargs, current_labels(), current_options())
    return dispatch_nd_compute(dp_rank_mapping, dp_size, group, *lists, **named)


def _check_mapping(dp_rank_mapping: Sequence[int], dp_size: int, world_size: int) -> None:
    _check_count("dp_rank_mapping", world_size, dp_rank_mapping)
    outside = sorted({dp for dp in dp_rank_mapping if not 0 <= dp < dp_size})
    if outside:
        table = "\n".join(f"  rank {rank} -> dp rank {dp}" for rank, dp in enumerate(dp_rank_mapping))
        raise MeshError("dp_rank_mapping", f"dp ranks {outside} are outside 0..{dp_size - 1}", table)


def _spread(arguments: Arguments, place: int, dp_rank_mapping: Sequence[int], dp_size: int) -> list[Any]:
    entries = arguments.values[place]
    if not isinstance(entries, (list, tuple)) or len(entries) != dp_size:
        count = len(entries) if hasattr(entries, "__len__") else 1
        raise EntryCountError(arguments.label(place), dp_size, count)
    spread = [entries[dp] for dp in dp_rank_mapping]
    if not isinstance(entries, SplitList):
        return spread
    return SplitList(spread, entries.layout.of_parts(dp_rank_mapping))


def collect_nd_compute(collect_mask: Sequence[bool], group: Any, output: Sequence[Any]) -> list[Any]:
    """The answers of those ranks that the mask names, in rank order.

    Raises:
        EntryCountError: the mask or the output has not one entry per worker.
    """
    _check_count("the collect mask", group.world_size, collect_mask)
    _check_count("the output", group.world_size, output)
    return [value for value, collects in zip(output, collect_mask, strict=True) if collects]


def collect_nd_compute_dataproto(collect_mask: Sequence[bool], group: Any, output: Sequence[Any]) -> Any:
    """The batches of those ranks that the mask names, joined in rank order."""
    return _concat_data_proto_or_future(collect_nd_compute(collect_mask, group, output))


@dataclass(frozen=True, slots=True)
class NdDispatch:
    """The dispatch function of a mesh mode; which ranks the mesh has is asked of the group at the call."""

    mesh_name: str

    def __call__(self, group: Any, /, *args: Any, **kwargs: Any) -> Lists:
        """Batches split over the dp ranks of the group's mesh."""
        mesh = mesh_of(group, self.mesh_name)
        return dispatch_nd_compute_dataproto(mesh.dp_ranks, mesh.dp_size, group, *args, **kwargs)

    def scatter(self, group: Any, /, *args: Any, **kwargs: Any) -> Scatter:
        """The calls of all ranks, of which only the answering ones are fetched, in dp order.

        Raises:
            InvalidTypeError: no batch among the arguments.
        """
        mesh, labels = mesh_of(group, self.mesh_name), current_labels()
        lists, named = split_batches(mesh.dp_size, args, kwargs, labels, current_options())
        if not any(map(is_splittable, [*args, *kwargs.values()])):
            raise InvalidTypeError(
                f"{labels.method!r} splits batches over mesh {self.mesh_name!r} and needs at least one batch "
                "(DataProto, TensorDict or DataProtoFuture) among its arguments, got none"
            )
        parts = Scatter.of_lists(lists, named, range(mesh.dp_size))
        calls = [parts.calls[dp]._replace(rank=rank) for rank, dp in enumerate(mesh.dp_ranks)]
        return Scatter(tuple(calls), mesh.answering_ranks, parts.layout)


@dataclass(frozen=True, slots=True)
class NdCollect:
    """The collect function of a mesh mode."""

    mesh_name: str

    def __call__(self, group: Any, output: Sequence[Any]) -> Any:
        """The answers of the answering ranks, joined in dp order."""
        output = collect_dp_compute(group, output)
        return _concat_data_proto_or_future(
            [output[rank] for rank in mesh_of(group, self.mesh_name).answering_ranks]
        )


def make_nd_compute_dataproto_dispatch_fn(mesh_name: str) -> NdBatches:
    """A dispatch mode that splits batches over the dp ranks of a named mesh.

    Workers register their place in it with `_register_dispatch_collect_info(mesh_name, dp_rank, is_collect)`.
    Only answering ranks are fetched, and the result is in dp order.

    Raises:
        MeshError: `mesh_name` is no text.

    Example:
        >>> from verl_dispatch import register
        >>> class Actor:
        ...     @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("actor"))
        ...     def update(self, batch): ...
    """
    problem = name_problem(mesh_name)
    if problem:
        raise MeshError(mesh_name, problem)
    return cast("NdBatches", {"dispatch_fn": NdDispatch(mesh_name), "collect_fn": NdCollect(mesh_name)})
