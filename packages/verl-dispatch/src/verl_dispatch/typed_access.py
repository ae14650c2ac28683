"""The static type of a registered method: what it is on a worker, and on its class; nothing here runs.

The overloads map forms of modes, not modes by name, to the `Method` that a group is called with. Types cannot
be mapped over a parameter list, so a form that adapts its parameters has one overload per number of them.
A method that returns a coroutine answers what it gives when awaited; types that pass for anything, coroutines
too, are therefore picked out first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Never, TypeVar, overload

from verl_dispatch.typed_methods import (
    B,
    B_co,
    BatchMethod,
    HasDefault1,
    HasDefault2,
    Later,
    ListMethod,
    M_co,
    Method,
    OfEither,
    OfRows,
    OfWorkers,
    OneMethod,
    P,
    R,
    SomeMethod,
    W,
    X,
)
from verl_dispatch.typed_modes import Mode, PerWorker, PerWorkerOrRows, Res, Rows, Whole

A1 = TypeVar("A1")
A2 = TypeVar("A2")
W_co = TypeVar("W_co", covariant=True)
F_co = TypeVar("F_co", covariant=True)


class Registered(Generic[W_co, F_co, M_co, B_co]):
    """A registered method of worker W, with bound signature F, mode M and blocking B."""

    def __call__(
        self: Registered[W, Callable[P, R], Any, Any], worker: W, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        raise NotImplementedError

    # Not for groups: no `Method`, so that no group takes it.
    @overload
    def __get__(
        self: Registered[Any, Any, Mode[Never, Never, Never], Any], obj: None, owner: Any
    ) -> Callable[..., Any]: ...

    # Arguments as they are: the group has the method's own parameters.
    @overload
    def __get__(
        self: Registered[W, Callable[P, X], Mode[Whole, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, P, X, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, Later[R]], Mode[Whole, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, R], Mode[Whole, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, X], Mode[Whole, Res, Any], B], obj: None, owner: Any
    ) -> OneMethod[W, P, X, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, Later[R]], Mode[Whole, Res, Any], B], obj: None, owner: Any
    ) -> OneMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, R], Mode[Whole, Res, Any], B], obj: None, owner: Any
    ) -> OneMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, Later[R]], Mode[Whole, dict[int, Res], Any], B], obj: None, owner: Any
    ) -> SomeMethod[W, P, R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, R], Mode[Whole, dict[int, Res], Any], B], obj: None, owner: Any
    ) -> SomeMethod[W, P, R, B]: ...

    # Defaults cannot be written below: parameters unchecked, results known.
    @overload
    def __get__(
        self: Registered[W, HasDefault1[Later[R]], Mode[Any, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault1[R], Mode[Any, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault1[X], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., X, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault1[Later[R]], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault1[R], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault2[Later[R]], Mode[Any, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault2[R], Mode[Any, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault2[X], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., X, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault2[Later[R]], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, HasDefault2[R], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...

    # Adapted arguments: one without a default.
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], Later[R]], Mode[PerWorker, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfWorkers[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], R], Mode[PerWorker, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, [OfWorkers[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], Later[R]], Mode[PerWorkerOrRows, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfEither[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], R], Mode[PerWorkerOrRows, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfEither[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], Later[R]], Mode[Rows, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, [OfRows[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], R], Mode[Rows, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, [OfRows[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], X], Mode[Rows, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, [OfRows[A1]], X, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], Later[R]], Mode[Rows, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, [OfRows[A1]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1], R], Mode[Rows, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, [OfRows[A1]], R, B]: ...

    # Adapted arguments: two without a default.
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], Later[R]], Mode[PerWorker, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfWorkers[A1], OfWorkers[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], R], Mode[PerWorker, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, [OfWorkers[A1], OfWorkers[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], Later[R]], Mode[PerWorkerOrRows, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfEither[A1], OfEither[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], R], Mode[PerWorkerOrRows, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfEither[A1], OfEither[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], Later[R]], Mode[Rows, list[Res], Any], B],
        obj: None,
        owner: Any,
    ) -> ListMethod[W, [OfRows[A1], OfRows[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], R], Mode[Rows, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, [OfRows[A1], OfRows[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], X], Mode[Rows, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, [OfRows[A1], OfRows[A2]], X, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], Later[R]], Mode[Rows, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, [OfRows[A1], OfRows[A2]], R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[[A1, A2], R], Mode[Rows, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, [OfRows[A1], OfRows[A2]], R, B]: ...

    # Any other parameters.
    @overload
    def __get__(
        self: Registered[W, Callable[P, Later[R]], Mode[Any, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, R], Mode[Any, list[Res], Any], B], obj: None, owner: Any
    ) -> ListMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, X], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., X, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, Later[R]], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...
    @overload
    def __get__(
        self: Registered[W, Callable[P, R], Mode[Any, Res, Any], B], obj: None, owner: Any
    ) -> BatchMethod[W, ..., R, B]: ...
    @overload
    def __get__(self, obj: None, owner: Any) -> Method[W_co, ..., Any, Any, Any, B_co]: ...

    # On a worker: the method itself.
    @overload
    def __get__(self, obj: object, owner: Any) -> F_co: ...
    def __get__(self, obj: object, owner: Any) -> Any:
        raise NotImplementedError
