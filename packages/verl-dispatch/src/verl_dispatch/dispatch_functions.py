"""The public dispatch functions, for custom modes: `(group, *args, **kwargs) -> (args, kwargs)`.

Every list that they return has one entry per worker. Those that split batches remember padding and order in
the lists, so that a custom mode built on them has both undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from verl_dispatch.call_scope import current_labels, current_options
from verl_dispatch.errors import UnsplittableArgumentError
from verl_dispatch.markers import unwrapped
from verl_dispatch.split import split_batches, split_entries

__all__ = [
    "dispatch_all_to_all",
    "dispatch_direct_rollout_method",
    "dispatch_dp_compute",
    "dispatch_dp_compute_data_proto",
    "dispatch_dp_compute_data_proto_with_func",
    "dispatch_one_to_all",
    "dispatch_rank_zero",
]

Lists = tuple[tuple[list[Any], ...], dict[str, list[Any]]]


def dispatch_rank_zero(group: Any, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as given."""
    return args, kwargs


def dispatch_one_to_all(group: Any, *args: Any, **kwargs: Any) -> Lists:
    """Every argument to every worker.

    Example:
        >>> from types import SimpleNamespace
        >>> dispatch_one_to_all(SimpleNamespace(world_size=2), 7, lr=0.1)
        (([7, 7],), {'lr': [0.1, 0.1]})
    """
    size = group.world_size
    return (
        tuple([unwrapped(value)] * size for value in args),
        {name: [unwrapped(value)] * size for name, value in kwargs.items()},
    )


def dispatch_all_to_all(group: Any, *args: Any, **kwargs: Any) -> Lists:
    """Lists with one entry per worker, batches split by rows, `Broadcast(x)` to all.

    Raises:
        EntryCountError, UnsplittableArgumentError, UnevenRowsError, UnequalRowsError: see `split_batches`.
    """
    split = split_batches(
        group.world_size, args, kwargs, current_labels(), current_options(), takes_entries=True
    )
    return split.args, split.kwargs


def dispatch_dp_compute(group: Any, *args: Any, **kwargs: Any) -> Lists:
    """Lists or tuples with one entry per worker, `Broadcast(x)` to all.

    Raises:
        EntryCountError: a list of another length.
        UnsplittableArgumentError: neither a list nor a tuple.
    """
    split = split_entries(group.world_size, args, kwargs, current_labels())
    return split.args, split.kwargs


def dispatch_dp_compute_data_proto(group: Any, *args: Any, **kwargs: Any) -> Lists:
    """Batches split by rows over the ranks, `Broadcast(x)` to all; padded where a batch asks for it.

    Raises:
        UnsplittableArgumentError, UnevenRowsError, UnequalRowsError: see `split_batches`.
    """
    return _split_args_kwargs_data_proto_with_auto_padding(group.world_size, *args, **kwargs)


def dispatch_dp_compute_data_proto_with_func(group: Any, *args: Any, **kwargs: Any) -> Lists:
    """First a function, to every worker; the rest as `dispatch_dp_compute_data_proto`.

    Raises:
        UnsplittableArgumentError: the first argument is no function, or another one no batch.
    """
    function, args, kwargs = function_first(group.world_size, args, kwargs)
    split = split_batches(group.world_size, args, kwargs, current_labels().after(1), current_options())
    return ([function] * group.world_size, *split.args), split.kwargs


def dispatch_direct_rollout_method(group: Any, *args: Any, **kwargs: Any) -> Lists:
    """Refuses: such a method is called on its worker, never on a group.

    Raises:
        NotImplementedError: always.
    """
    raise NotImplementedError(
        f"method {current_labels().method or 'with DIRECT_ROLLOUT_METHOD'!r} is called directly on its "
        "worker and cannot be called on a group; register it with another dispatch mode to do so"
    )


def function_first(
    num_workers: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """The function that comes first, and the other arguments; it may be passed by the parameter's name.

    Raises:
        UnsplittableArgumentError: there is none.
    """
    labels, rest = current_labels(), dict(kwargs)
    given = args[0] if args else rest.pop(next(iter(labels.parameters), ""), None)
    if not callable(unwrapped(given)):
        expected = "a function for every worker, then batches"
        raise UnsplittableArgumentError(labels.positional(0), given, num_workers, expected)
    return unwrapped(given), args[1:], rest


def _split_args_kwargs_data_proto(chunks: int, *args: Any, **kwargs: Any) -> Lists:
    """Batches cut into `chunks` parts of equal rows, never padded."""
    split = split_batches(
        chunks, args, kwargs, current_labels(), current_options().changed(auto_padding=False)
    )
    return split.args, split.kwargs


def _split_args_kwargs_data_proto_with_auto_padding(chunks: int, *args: Any, **kwargs: Any) -> Lists:
    """Batches cut into `chunks` parts of equal rows, padded copies where a batch asks for it."""
    split = split_batches(chunks, args, kwargs, current_labels(), current_options())
    return split.args, split.kwargs
