"""One step of PPO, as calls only: eight of them over five columns, by hand on Ray and with a group.

By hand, every column of every rank is a reference that its maker gave and its readers get; this is what an
expert writes who knows which rank reads what. The group gets whole batches, with remote columns or without.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from verl_dispatch import Dispatch, Worker, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayWorkerGroup

PROMPT_WIDTH = 8
SEQUENCES = ["input_ids", "attention_mask"]


class StepWorker(Worker):
    """Makes columns of the right sizes, and reads all of what it gets.

    It reckons by numpy, as the step by hand does: what is measured is the way of the columns.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=["prompts", "images?"])
    def generate(self, data: DataProto) -> DataProto:
        if "images" in data:
            self._read(data, "images")
        ids = np.repeat(data.tensor("prompts").numpy()[:, :1], self.width, axis=1)
        made = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
        return DataProto.from_dict({key: torch.from_numpy(column) for key, column in made.items()})

    def _read(self, data: DataProto, *keys: str) -> None:
        for key in keys:
            data.tensor(key).numpy()[:, -1].sum()

    def _per_token(self, data: DataProto, *keys: str) -> torch.Tensor:
        self._read(data, *keys)
        return torch.from_numpy(np.zeros((len(data), self.width), np.float32))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=SEQUENCES)
    def log_probs(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"log_probs": self._per_token(data, "input_ids", "attention_mask")})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=SEQUENCES)
    def reference(self, data: DataProto) -> DataProto:
        self._read(data, "input_ids", "attention_mask")
        return DataProto.from_dict({"kl": torch.zeros(len(data))})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=SEQUENCES)
    def values(self, data: DataProto) -> DataProto:
        return DataProto.from_dict({"values": self._per_token(data, "input_ids", "attention_mask")})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, reads=["input_ids"])
    def scores(self, data: DataProto) -> DataProto:
        self._read(data, "input_ids")
        return DataProto.from_dict({"scores": torch.ones(len(data))})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, reads=[*SEQUENCES, "values", "advantages"])
    def update_critic(self, data: DataProto) -> float:
        self._read(data, "input_ids", "attention_mask", "values", "advantages")
        return 0.5

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC, reads=[*SEQUENCES, "log_probs", "advantages"])
    def update_actor(self, data: DataProto) -> float:
        self._read(data, "input_ids", "attention_mask", "log_probs", "advantages")
        return 0.5

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, step: int) -> int:
        return step


class GroupStep:
    """The step with a group: what a ported trainer looks like.

    Args:
        group: from `group_of`.
        prompts: from `prompts_of`.
        width: tokens a row.
        writable: whether workers read copies of their own, or views.
    """

    def __init__(self, group: Any, prompts: DataProto, width: int, writable: bool) -> None:
        self.group, self.prompts, self.width = group, prompts, width
        names = ["generate", "log_probs", "reference", "values", "scores", "update_critic", "update_actor"]
        self.calls = [getattr(group, name).options(read_only=not writable) for name in names]

    def __call__(self) -> float:
        group, batch = self.group, self.prompts
        generate, *makers, update_critic, update_actor = self.calls
        batch = batch.select().union(generate(batch))
        # None of these needs another one, so all are under way at once, as in the step by hand.
        for later in [call.submit(batch) for call in makers]:
            batch.union(later.result())
        # Chunk by chunk, as the column that is made is all that the driver has to hold; and by numpy, as in
        # the other step, for torch's threads wait for each other while the workers have the cores.
        advantages = np.empty((len(batch), self.width), np.float32)
        start = 0
        for part in batch.chunk(4):
            scores, values = (part.tensor(key).numpy() for key in ("scores", "values"))
            np.subtract(scores[:, None], values, out=advantages[start : start + len(part)])
            start += len(part)
        made = DataProto.from_dict({"advantages": torch.from_numpy(advantages)})
        batch.union(group.put(made) if group.answers_stay_remote else made)
        losses = [*update_critic(batch), *update_actor(batch)]
        group.save(1)
        return float(sum(losses))


class PlainActor:
    """The same work with arrays, each column an argument or a return value of its own."""

    def __init__(self, width: int, writable: bool) -> None:
        self.width, self.writable = width, writable

    def _read(self, *arrays: Any) -> None:
        for array in arrays:
            (array.copy() if self.writable else array)[:, -1].sum()

    def generate(self, prompts: Any, images: Any = None) -> Any:
        if images is not None:
            self._read(images)
        ids = np.repeat(prompts[:, :1], self.width, axis=1)
        return ids, np.ones_like(ids)

    def per_token(self, *arrays: Any) -> Any:
        self._read(*arrays)
        return np.zeros((len(arrays[0]), self.width), np.float32)

    def per_row(self, *arrays: Any) -> Any:
        self._read(*arrays)
        return np.ones(len(arrays[0]), np.float32)

    def update(self, *arrays: Any) -> float:
        self._read(*arrays)
        return 0.5

    def save(self, step: int) -> int:
        return step


class PlainStep:
    """The step with references wired by hand."""

    def __init__(
        self, num_workers: int, rows: int, width: int, writable: bool, *, image_bytes: int = 0
    ) -> None:
        actor_class = ray.remote(num_cpus=0)(PlainActor)
        self.actors: list[Any] = [actor_class.remote(width, writable) for _ in range(num_workers)]
        parts = np.array_split(np.ones((rows, PROMPT_WIDTH), np.int64), num_workers)
        self.given: list[Any] = [(part,) for part in parts]
        if image_bytes:
            self.given = [(part, ray.put(np.ones((len(part), image_bytes), np.uint8))) for part in parts]

    def _all(self, method: str, *columns: list[Any]) -> list[Any]:
        return [
            getattr(actor, method).remote(*parts) for actor, *parts in zip(self.actors, *columns, strict=True)
        ]

    def __call__(self) -> float:
        made = [
            actor.generate.options(num_returns=2).remote(*given)
            for actor, given in zip(self.actors, self.given, strict=True)
        ]
        ids, mask = [ref for ref, _ in made], [ref for _, ref in made]
        log_probs = self._all("per_token", ids, mask)
        kl = self._all("per_row", ids, mask)
        values = self._all("per_token", ids, mask)
        scores = self._all("per_row", ids)
        ray.get(kl)
        advantages = [
            score[:, None] - value for score, value in zip(ray.get(scores), ray.get(values), strict=True)
        ]
        stored = [ray.put(part) for part in advantages]
        losses = ray.get(self._all("update", ids, mask, values, stored))
        losses += ray.get(self._all("update", ids, mask, log_probs, stored))
        ray.get([actor.save.remote(1) for actor in self.actors])
        return float(sum(losses))

    def close(self) -> None:
        for actor in self.actors:
            ray.kill(actor)


def group_of(pool: Any, width: int, **options: Any) -> Any:
    """A group that does the step."""
    return RayWorkerGroup(pool, RayClassWithInitArgs(StepWorker, width), **options)


def prompts_of(rows: int, *, image_bytes: int = 0) -> DataProto:
    """What a step begins with; `image_bytes` is the size of an image, 0 for none."""
    images = {"images": torch.ones(rows, image_bytes, dtype=torch.uint8)} if image_bytes else {}
    return DataProto.from_dict({"prompts": torch.ones(rows, PROMPT_WIDTH, dtype=torch.int64), **images})


def costs_of(steps: Mapping[str, GroupStep], rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step of each kind, in turns: on the clock, of the driver's CPU, of all CPU."""
    totals = {name: np.zeros(3) for name in steps}
    for turn in range(2 + rounds):
        for name, step in steps.items():
            before = _spent(step)
            step()
            totals[name] += _spent(step) - before if turn >= 2 else 0
    what = ("clock", "driver CPU", "all CPU")
    return {name: dict(zip(what, total / rounds * 1e3, strict=True)) for name, total in totals.items()}


def _spent(step: GroupStep) -> NDArray[np.float64]:
    """Seconds on the clock, of this process's CPU, and of that and the workers' together."""
    workers: list[float] = ray.get([worker.__ray_call__.remote(_cpu_s) for worker in step.group.workers])
    own = time.process_time()
    return np.array([time.perf_counter(), own, own + sum(workers)])


def _cpu_s(worker: Any) -> float:
    return time.process_time()
