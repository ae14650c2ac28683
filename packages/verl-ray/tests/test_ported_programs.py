"""Programs as they are written for verl, with their imports changed and nothing else.

What such a program must change is said in docs/porting.md; the lines that were changed say so here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import ray
import torch
from tensordict import TensorDict
from verl_dispatch import (
    Dispatch,
    Execute,
    LocalWorkerGroup,
    Worker,
    make_nd_compute_dataproto_dispatch_fn,
    register,
)
from verl_protocol import DataProto, pad_dataproto_to_divisor, unpad_dataproto
from verl_protocol import tensordict_ops as tu
from verl_ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    create_colocated_worker_raw_cls,
)

pytestmark = pytest.mark.timeout(120)


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """A profiler as many programs have it: it hides the name and the signature of what it wraps."""

    def timed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return timed


# --- One step of a fully-async trainer: actors that hand each other their groups --------------------------


def get_device_name() -> str:
    # What such helpers say on a machine without accelerators.
    return "cpu"


class PolicyWorker(Worker):
    def __init__(self, config: Mapping[str, float], role: str) -> None:
        super().__init__()
        self.rate, self.role, self.weight = config["rate"], role, 0.0

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, blocking=False)
    @logged
    def publish_weights(self, version: int, scale: float = 1.0) -> tuple[int, float]:
        return version, self.weight * scale

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def update_actor(self, data: DataProto) -> DataProto:
        step = float((data.batch["rewards"].sum() * self.rate).item())
        self.weight += step
        return DataProto(meta_info={"metrics": {"step": step, "rows": len(data)}})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def compute_log_prob(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"log_probs": -data.batch["rewards"]})


@ray.remote(num_cpus=0.1)
class AsyncTrainer:
    """Makes batches of single samples, and owns the workers that learn from them."""

    def __init__(self, resource_pool_manager: Any) -> None:
        self.resource_pool_manager = resource_pool_manager

    def init_workers(self) -> None:
        actor_cls = RayClassWithInitArgs(cls=ray.remote(PolicyWorker), config={"rate": 0.5}, role="actor")
        self.actor_wg: Any = RayWorkerGroup(
            resource_pool=self.resource_pool_manager.resource_pool_dict["trainer_pool"],
            ray_cls_with_init=actor_cls,
            device_name=get_device_name(),
        )

    def get_actor_wg(self) -> Any:
        return self.actor_wg

    def fit_step(self, samples: list[Any]) -> tuple[dict[str, Any], list[float]]:
        batch = self._assemble(samples)
        log_probs = self.actor_wg.compute_log_prob(batch)
        output = self.actor_wg.update_actor(batch)
        batch = batch.union(log_probs.get())
        metrics = output.get().meta_info["metrics"]
        metrics["age"] = (batch.non_tensor_batch["finished"] - batch.non_tensor_batch["started"]).tolist()
        return metrics, batch.batch["log_probs"].tolist()

    def _assemble(self, samples: list[Any]) -> Any:
        for place, sample in enumerate(samples):
            sample.non_tensor_batch["started"] = [0.25 * place]
        batch: Any = DataProto.concat(samples)
        batch.non_tensor_batch["finished"] = [1.0] * len(batch)
        surplus = len(batch) % self.actor_wg.world_size
        if surplus:
            batch.batch = {key: value[:-surplus] for key, value in batch.batch.items()}
            batch.non_tensor_batch = {key: value[:-surplus] for key, value in batch.non_tensor_batch.items()}
        return batch


@ray.remote(num_cpus=0.1)
class ParameterSynchronizer:
    """Calls the workers of a trainer in another process."""

    def __init__(self, trainer: Any, rollout_wg: Any) -> None:
        self.actor_wg, self.rollout_wg = ray.get(trainer.get_actor_wg.remote()), rollout_wg

    def sync_weights(self, version: int) -> list[tuple[int, float]]:
        published = self.actor_wg.publish_weights(version, scale=2.0)
        again = self.rollout_wg.publish_weights(version=version)
        answers: list[tuple[int, float]] = ray.get(published + again)
        return answers


def test_a_fully_async_trainer_hands_its_groups_to_other_actors(shared_ray: None) -> None:
    # Changed: there every pool has GPUs, and none is ever freed.
    manager: Any = ResourcePoolManager(
        resource_pool_spec={"trainer_pool": [2]}, mapping=None, use_gpu=get_device_name() != "cpu"
    )
    with manager:
        manager.create_resource_pool()
        trainer: Any = AsyncTrainer.remote(manager)  # type: ignore[attr-defined]
        ray.get(trainer.init_workers.remote())
        actor_wg = ray.get(trainer.get_actor_wg.remote())
        assert actor_wg.world_size == 2
        synchronizer: Any = ParameterSynchronizer.remote(trainer, actor_wg)  # type: ignore[attr-defined]
        samples = [DataProto.from_dict(tensors={"rewards": torch.tensor([float(i)])}) for i in range(5)]
        metrics, log_probs = ray.get(trainer.fit_step.remote(samples))
        assert metrics == {"step": [0.5, 2.5], "rows": [2, 2], "age": [1.0, 0.75, 0.5, 0.25]}
        assert log_probs == [0.0, -1.0, -2.0, -3.0]
        synced = ray.get(synchronizer.sync_weights.remote(7))
        assert synced == [(7, 1.0), (7, 5.0), (7, 0.5), (7, 2.5)]


# --- A trainer with fused roles ---------------------------------------------------------------------------


class ActorWorker(Worker):
    def __init__(self, config: Mapping[str, float]) -> None:
        super().__init__()
        self.config = config
        self._register_dispatch_collect_info("actor", dp_rank=self.rank, is_collect=True)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    def add(self, value: float) -> float:
        return value + self.config["step"]

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(mesh_name="actor"))
    @logged
    def update_actor(self, data: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"doubled": data.batch["x"] * 2})


class CriticWorker(Worker):
    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    @logged
    def sub(self, value: float) -> float:
        return value - self.step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def actor_after(self, value: float) -> float:
        added: float = self.get_fused_worker_by_name("actor").add(value)
        return added - self.step

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, execute_mode=Execute.RANK_ZERO)
    def save_checkpoint(self, path: str, step: int = 0) -> str:
        return f"{path}/{step}"


def role_classes() -> dict[str, RayClassWithInitArgs[Any]]:
    return {
        "actor": RayClassWithInitArgs(cls=ray.remote(ActorWorker), config={"step": 2.0}),
        "critic": RayClassWithInitArgs(cls=ray.remote(CriticWorker), step=0.5),
    }


@pytest.fixture(scope="module")
def pool(running_ray: None) -> Iterator[RayResourcePool]:
    with RayResourcePool(process_on_nodes=[2], use_gpu=False, max_colocate_count=1) as made:
        yield made


def test_roles_of_a_pool_become_one_class_and_spawn_a_group_each(pool: RayResourcePool) -> None:
    resource_pool_to_cls = {pool: role_classes()}
    all_wg: dict[str, Any] = {}
    wg_dicts = []
    for resource_pool, class_dict in resource_pool_to_cls.items():
        worker_dict_cls = create_colocated_worker_cls(class_dict=class_dict)
        wg_dict = RayWorkerGroup(
            resource_pool=resource_pool, ray_cls_with_init=worker_dict_cls, device_name=get_device_name()
        )
        all_wg.update(wg_dict.spawn(prefix_set=class_dict.keys()))
        wg_dicts.append(wg_dict)
    actor_wg, critic_wg = all_wg["actor"], all_wg["critic"]
    assert actor_wg.add(value=1.0) == [3.0, 3.0]
    assert critic_wg.sub(1.0) == [0.5, 0.5]
    assert critic_wg.save_checkpoint("ckpt", step=3) == "ckpt/3"
    output = actor_wg.update_actor(DataProto.from_single_dict({"x": torch.arange(4)}))
    assert output.batch["doubled"].tolist() == [0, 2, 4, 6]
    # Added: the pool serves the next test.
    for wg_dict in wg_dicts:
        wg_dict.shutdown()


def test_fused_roles_call_each_other_and_are_attributes_of_their_group(pool: RayResourcePool) -> None:
    fused_cls = create_colocated_worker_cls_fused(class_dict=role_classes())
    assert fused_cls.fused_worker_used
    fused_wg = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=fused_cls)
    fused_wg.fuse(prefix_set={"actor", "critic"})
    assert fused_wg.critic.actor_after(1.0) == [2.5, 2.5]
    assert fused_wg.spawn(prefix_set=["actor"])["actor"].add(0.0) == [2.0, 2.0]
    fused_wg.shutdown()


def test_a_hybrid_worker_finds_its_roles_as_attributes(pool: RayResourcePool) -> None:
    class HybridWorker(create_colocated_worker_raw_cls(class_dict=role_classes())):  # type: ignore[misc]
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        @logged
        def there_and_back(self, value: float) -> float:
            back: float = self.critic.sub(self.actor.add(value))
            return back

    hybrid_cls = RayClassWithInitArgs(cls=ray.remote(HybridWorker))
    hybrid_cls.fused_worker_used = True
    hybrid_wg: Any = RayWorkerGroup(resource_pool=pool, ray_cls_with_init=hybrid_cls)
    hybrid_wg.fuse({"actor", "critic"})
    assert hybrid_wg.there_and_back(value=1.0) == [2.5, 2.5]
    assert hybrid_wg.actor.add(hybrid_wg.critic.sub(1.0)[0]) == [2.5, 2.5]
    hybrid_wg.shutdown()


# --- A loop of agents over several turns: rows come and go ------------------------------------------------


class ToolWorker(Worker):
    """Every prompt is a number to count down from; a turn ends a row that has come to 0."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    @logged
    def generate_sequences(self, prompts: DataProto) -> DataProto:
        left = prompts.batch["left"] - 1
        batch = TensorDict({"responses": left[:, None].repeat(1, 3)}, batch_size=len(prompts))
        said = [
            f"{text} {number}" for text, number in zip(prompts.non_tensor_batch["text"], left, strict=True)
        ]
        return DataProto(
            batch=batch,
            non_tensor_batch={"said": np.array(said, dtype=object)},
            meta_info={"metrics": {"rows": len(prompts)}},
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def score(self, data: TensorDict) -> TensorDict:
        return TensorDict({"scores": data["responses"].sum(-1)}, batch_size=data.batch_size)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def wake_up(self, prompts: DataProto) -> tuple[int, Any]:
        return len(prompts), prompts.meta_info.get("validate")


@pytest.fixture
def rollout_wg() -> Iterator[Any]:
    with LocalWorkerGroup(ToolWorker, 2) as group:
        yield group


def run_agent_loop(rollout_wg: Any, prompts: DataProto, n: int, turns: int) -> tuple[DataProto, list[int]]:
    active: Any = prompts.repeat(repeat_times=n, interleave=True)
    active.non_tensor_batch["index"] = range(len(active))
    active.non_tensor_batch["num_turns"] = [0] * len(active)
    rows_per_turn, finished = [], []
    for turn in range(turns):
        padded, pad_size = pad_dataproto_to_divisor(active, rollout_wg.world_size)
        output = unpad_dataproto(rollout_wg.generate_sequences(padded), pad_size=pad_size)
        rows_per_turn.append(sum(output.meta_info.pop("metrics")["rows"]))
        active = active.union(output)
        active.batch["left"] = active.batch["responses"][:, 0]
        active.non_tensor_batch["text"] = active.non_tensor_batch.pop("said")
        active.non_tensor_batch["num_turns"] = [turn + 1] * len(active)
        is_done = active.batch["left"] <= 0
        finished.append(active.select_idxs(is_done))
        active = active.select_idxs(~is_done)
        if len(active) == 0:
            break
        active.pop(batch_keys=["responses"])
    trajectories = DataProto.concat(finished)
    trajectories.reorder(torch.from_numpy(np.argsort(trajectories.non_tensor_batch["index"])))
    return trajectories, rows_per_turn


def test_rows_of_an_agent_loop_come_and_go(rollout_wg: Any) -> None:
    batch = DataProto.from_dict(
        tensors={"left": torch.tensor([3, 1, 2]), "answer": torch.tensor([7, 8, 9])},
        non_tensors={"text": ["c", "a", "b"]},
        meta_info={"validate": False},
    )
    gen_batch = batch.pop(batch_keys=["left"], non_tensor_batch_keys=["text"])
    trajectories, rows_per_turn = run_agent_loop(rollout_wg, gen_batch, n=2, turns=5)
    assert rows_per_turn == [6, 4, 2]
    whole = batch.repeat(repeat_times=2, interleave=True).union(trajectories)
    assert whole.batch["answer"].tolist() == [7, 7, 8, 8, 9, 9]
    said = ["c 2 1 0", "c 2 1 0", "a 0", "a 0", "b 1 0", "b 1 0"]
    assert whole.non_tensor_batch["text"].tolist() == said
    assert whole.non_tensor_batch["num_turns"].tolist() == [3, 3, 1, 1, 2, 2]


def test_batches_without_rows_or_columns_are_batches(rollout_wg: Any) -> None:
    rows = DataProto.from_dict(tensors={"x": torch.arange(2)}, non_tensors={"text": ["a", "b"]})
    none_left = rows.select_idxs(torch.zeros(2, dtype=torch.bool))
    assert (len(none_left), none_left.batch["x"].shape) == (0, torch.Size([0]))
    assert DataProto.concat([none_left, rows, none_left]).equals(rows)
    assert none_left.repeat(repeat_times=3).union(none_left).non_tensor_batch["text"].tolist() == []
    padded, pad_size = pad_dataproto_to_divisor(none_left, 4)
    assert (len(padded), pad_size) == (0, 0)
    assert len(unpad_dataproto(padded, pad_size=pad_size)) == 0
    only_meta: Any = DataProto(meta_info={"validate": True})
    assert (len(only_meta), only_meta.batch) == (0, None)
    assert rollout_wg.wake_up(only_meta) == [(0, True), (0, True)]
    assert rollout_wg.wake_up(DataProto()) == [(0, None), (0, None)]
    assert only_meta.union(DataProto()).meta_info == {"validate": True}
    only_text = DataProto(non_tensor_batch={"text": np.array(["a", "b"], dtype=object)})
    assert [len(part) for part in only_text.chunk(2)] == [1, 1]
    assert only_text[1].non_tensor_batch["text"] == "b"


def test_rows_of_an_agent_loop_as_a_tensordict(rollout_wg: Any) -> None:
    turns = [{"responses": torch.arange(n), "tool": f"t{n}", "reward": 0.5 * n} for n in (1, 2, 3)]
    data = tu.list_of_dict_to_tensordict(turns)
    tu.assign_non_tensor(data, mini_batch_size=2)
    padded, pad_size = tu.pad_to_divisor(data, 2)
    assert pad_size == 1
    answered = tu.unpad(rollout_wg.score(tu.get_keys(padded, ["responses"])), pad_size)
    whole = tu.union_tensor_dict(data, answered)
    picked = tu.index_select_tensor_dict(whole, torch.tensor([2, 0]))
    assert picked["scores"].tolist() == [3, 0]
    assert [row.tolist() for row in picked["responses"]] == [[0, 1, 2], [0]]
    both = tu.concat_tensordict([picked, *tu.chunk_tensordict(picked, 2)])
    assert tu.get(both, "tool") == ["t3", "t1", "t3", "t1"]
    assert tu.pop(both, "mini_batch_size") == 2
    assert {*both.keys()} == {"responses", "tool", "reward", "scores"}
    batch = DataProto.from_tensordict(both)
    assert {*batch.to_tensordict().keys()} == {*both.keys()}
