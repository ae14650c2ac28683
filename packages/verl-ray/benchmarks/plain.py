"""The same work written by hand on Ray, with numpy: what the group calls are measured against."""

from itertools import pairwise
from typing import Any

import numpy as np
import ray
from data_sizes import Arrays


class PlainActor:
    """Does what the benchmark's worker does, without any library in between."""

    def ping(self, value: int) -> int:
        return value

    def count(self, arrays: Arrays) -> int:
        return len(next(iter(arrays.values())))

    def clone_and_count(self, arrays: Arrays) -> int:
        return self.count({key: array.copy() for key, array in arrays.items()})

    def count_two(self, first: Arrays, second: Arrays) -> int:
        return self.count(join([first, second]))

    def echo(self, arrays: Arrays) -> Arrays:
        return arrays


def split(arrays: Arrays, parts: int) -> list[Arrays]:
    """Row slices, as views."""
    rows = len(next(iter(arrays.values())))
    bounds = [rows * part // parts for part in range(parts + 1)]
    return [{key: array[start:stop] for key, array in arrays.items()} for start, stop in pairwise(bounds)]


def join(parts: list[Arrays]) -> Arrays:
    """The rows of all parts in one set of arrays."""
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


class PlainGroup:
    """A few lines of Ray per call, as an engineer without a library would write them."""

    def __init__(self, num_workers: int) -> None:
        actor_class = ray.remote(num_cpus=0)(PlainActor)
        self.actors: list[Any] = [actor_class.remote() for _ in range(num_workers)]

    def ping(self, value: int) -> list[int]:
        return list(ray.get([actor.ping.remote(value) for actor in self.actors]))

    def broadcast(self, arrays: Arrays) -> list[int]:
        stored = ray.put(arrays)
        return list(ray.get([actor.count.remote(stored) for actor in self.actors]))

    def broadcast_and_clone(self, arrays: Arrays) -> list[int]:
        stored = ray.put(arrays)
        return list(ray.get([actor.clone_and_count.remote(stored) for actor in self.actors]))

    def echo_parts(self, arrays: Arrays) -> list[Any]:
        parts = split(arrays, len(self.actors))
        return [actor.echo.remote(part) for actor, part in zip(self.actors, parts, strict=True)]

    def split_and_echo(self, arrays: Arrays) -> Arrays:
        return join(ray.get(self.echo_parts(arrays)))

    def split_and_count(self, arrays: Arrays) -> int:
        parts = split(arrays, len(self.actors))
        return sum(
            ray.get([actor.count.remote(part) for actor, part in zip(self.actors, parts, strict=True)])
        )

    def chain_aligned(self, arrays: Arrays) -> int:
        """Every actor counts the part that it made itself."""
        refs = self.echo_parts(arrays)
        return sum(ray.get([actor.count.remote(ref) for actor, ref in zip(self.actors, refs, strict=True)]))

    def chain_aligned_and_clone(self, arrays: Arrays) -> int:
        """Every actor clones the part that it made itself, so that it may write into it."""
        refs = self.echo_parts(arrays)
        pairs = zip(self.actors, refs, strict=True)
        return sum(ray.get([actor.clone_and_count.remote(ref) for actor, ref in pairs]))

    def chain_rechunked(self, arrays: Arrays) -> int:
        """Half as many consumers, each of two neighbouring parts."""
        refs = self.echo_parts(arrays)
        pairs = zip(self.actors, refs[::2], refs[1::2], strict=False)
        return sum(ray.get([actor.count_two.remote(first, second) for actor, first, second in pairs]))
