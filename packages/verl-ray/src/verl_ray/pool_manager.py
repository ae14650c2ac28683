"""Which role runs on which pool."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Generic, Self, TypeVar

from verl_ray.defaults import UnsaidInt
from verl_ray.errors import MadeOfFacts
from verl_ray.pool_spec import InvalidPoolArgument
from verl_ray.resources import RayResourcePool

__all__ = ["ResourcePoolManager", "UnknownRole"]

RoleT = TypeVar("RoleT", bound=Hashable)


class UnknownRole(MadeOfFacts, KeyError):
    """No pool is mapped to the role."""

    def __init__(self, role: object, known: Sequence[object]) -> None:
        self.facts = (role, known)
        self.role, self.known = role, tuple(known)
        super().__init__(role, self.known)

    def __str__(self) -> str:
        known = ", ".join(map(str, self.known)) or "nothing"
        return f"no pool is mapped to role {self.role!r}; mapping has: {known}"


class ResourcePoolManager(Generic[RoleT]):
    """Pools by name and the roles that run on them; a context manager that frees all its pools.

    Args:
        resource_pool_spec: pool name to processes per node.
        mapping: role to pool name.
        max_colocate_count: groups that fit on each pool.
        pool_options: further parameters of every `RayResourcePool`, such as `use_gpu=False`.

    Raises:
        InvalidPoolArgument: a role is mapped to a pool that the spec does not have.

    >>> manager = ResourcePoolManager({"main": [2]}, {"actor": "main", "critic": "main"}, use_gpu=False)
    >>> manager.create_resource_pool()
    >>> manager.get_resource_pool("actor") is manager.get_resource_pool("critic")
    True
    """

    def __init__(
        self,
        resource_pool_spec: Mapping[str, Sequence[int]],
        mapping: Mapping[RoleT, str],
        max_colocate_count: int = UnsaidInt(3),
        **pool_options: Any,
    ) -> None:
        self.resource_pool_spec = {name: list(sizes) for name, sizes in resource_pool_spec.items()}
        self.mapping = dict(mapping)
        self.max_colocate_count = max_colocate_count
        self.resource_pool_dict: dict[str, RayResourcePool] = {}
        self._pool_options = pool_options
        unknown = {role: name for role, name in self.mapping.items() if name not in self.resource_pool_spec}
        if unknown:
            raise InvalidPoolArgument("mapping", unknown, f"pools among {', '.join(self.resource_pool_spec)}")

    def create_resource_pool(self) -> None:
        """Make the pools that do not exist yet; each reserves its slots at its first use."""
        for name, sizes in self.resource_pool_spec.items():
            if name not in self.resource_pool_dict:
                self.resource_pool_dict[name] = RayResourcePool(
                    sizes, name_prefix=name, max_colocate_count=self.max_colocate_count, **self._pool_options
                )

    def get_resource_pool(self, role: RoleT) -> RayResourcePool:
        """The pool of a role, made if need be.

        Raises:
            UnknownRole: the mapping does not name the role.
        """
        if role not in self.mapping:
            raise UnknownRole(role, list(self.mapping))
        self.create_resource_pool()
        return self.resource_pool_dict[self.mapping[role]]

    def get_n_gpus(self) -> int:
        """Processes of all pools together, each of which has one accelerator."""
        return sum(sum(sizes) for sizes in self.resource_pool_spec.values())

    def shutdown(self) -> None:
        """Free all pools. Safe to call twice."""
        for pool in self.resource_pool_dict.values():
            pool.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.shutdown()
