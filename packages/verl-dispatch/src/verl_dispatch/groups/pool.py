"""How many processes run on how many nodes, and a class together with its constructor's arguments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, Self

from verl_protocol.arguments import whole_number, whole_numbers
from verl_protocol.tables import html_table

from verl_dispatch.methods.static import GroupWorker, P


class EndsWithBlock:
    """What the end of its `with` or `async with` block shuts down."""

    def shutdown(self) -> None:
        """Ends it. Safe to call twice."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        # What ends may take a moment, for which the event loop goes on.
        await asyncio.to_thread(self.__exit__)


class ResourcePool:
    """Process counts per node, in node order; nodes may differ.

    Attributes:
        store: processes on each node.
        max_colocate_count: how many groups may share the pool at a time.
        n_gpus_per_node: accelerators that a node has.

    Example:
        >>> pool = ResourcePool([4, 2])
        >>> pool.world_size, pool.local_rank_list()
        (6, [0, 1, 2, 3, 0, 1])
    """

    def __init__(
        self,
        process_on_nodes: Sequence[int] | None = None,
        max_colocate_count: int = 10,
        n_gpus_per_node: int = 8,
    ) -> None:
        self._store = whole_numbers("process_on_nodes", process_on_nodes, 1)
        self.max_colocate_count: int = whole_number("max_colocate_count", max_colocate_count, 1)
        self.n_gpus_per_node = n_gpus_per_node

    @property
    def store(self) -> list[int]:
        """Processes on each node."""
        return self._store

    def pool(self) -> list[int]:
        """Processes on each node."""
        return self.store

    def add_node(self, process_count: int) -> None:
        """Appends a node with that many processes."""
        self._store.append(whole_number("process_count", process_count, 1))

    @property
    def world_size(self) -> int:
        """Processes on all nodes."""
        return sum(self.store)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.store})"

    def _repr_html_(self) -> str:
        rows = [(str(node), str(count)) for node, count in enumerate(self.store)]
        return html_table(["node", "processes"], rows, repr(self))

    def local_world_size_list(self) -> list[int]:
        """For every rank how many processes its node has."""
        return [count for count in self.store for _ in range(count)]

    def local_rank_list(self) -> list[int]:
        """For every rank its number on its node."""
        return [local for count in self.store for local in range(count)]


class ClassWithInitArgs(Generic[GroupWorker]):
    """A class together with the arguments its constructor will get; calling it makes the object.

    Example:
        >>> ClassWithInitArgs(complex, 1, imag=2)()
        (1+2j)
    """

    def __init__(self, cls: Callable[P, GroupWorker], *args: P.args, **kwargs: P.kwargs) -> None:
        self.cls: Any = cls
        self.args = args
        self.kwargs = kwargs
        self.fused_worker_used = False

    def __call__(self) -> GroupWorker:
        """The object."""
        made: GroupWorker = self.cls(*self.args, **self.kwargs)
        return made
