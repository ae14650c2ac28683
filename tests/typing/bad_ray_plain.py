"""Mistakes that are found on Ray without the plugin: every marked line must be an error."""

import ray
import verl_ray
from ray import ObjectRef
from verl_protocol import DataProto
from verl_ray import (
    RayClassWithInitArgs,
    RayResourcePool,
    RayWorkerGroup,
    ResourcePoolManager,
    SubRayResourcePool,
    create_colocated_worker_cls,
    create_colocated_worker_cls_fused,
    merge_resource_pool,
    split_resource_pool,
)

from tests.typing.workers import Other, Trainer


def templates() -> None:
    verl_ray.RayWorkerGrup()  # type: ignore[attr-defined]
    RayWorkerGroup(None, RayClassWithInitArgs(Trainer, lr=0.1), name_prefx="a")  # type: ignore[arg-type]
    RayClassWithInitArgs(Trainer)  # type: ignore[call-overload]
    RayClassWithInitArgs(Trainer, lr="much")  # type: ignore[call-overload]


def calls(group: RayWorkerGroup[Trainer]) -> None:
    group.call(Other.size)  # type: ignore[arg-type]
    group.call(Trainer.load, 1)  # type: ignore[arg-type]
    group.bind(Trainer.load_later)("path")[0].upper()  # type: ignore[attr-defined]


def pools(pool: RayResourcePool) -> None:
    RayResourcePool(2)  # type: ignore[arg-type]
    RayResourcePool(["two"])  # type: ignore[list-item]
    RayResourcePool([2], use_gpu="no")  # type: ignore[arg-type]
    RayResourcePool([2], name_prefix=3)  # type: ignore[arg-type]
    RayResourcePool([2], max_colocate_count="one")  # type: ignore[arg-type]
    RayResourcePool([2], detached="no")  # type: ignore[arg-type]
    RayResourcePool([2], True, "a", 1, False, "A100", 3)  # type: ignore[arg-type, call-arg]
    RayResourcePool([2], accelerator=4)  # type: ignore[arg-type]
    RayResourcePool([2], cpus_per_worker="2")  # type: ignore[arg-type]
    RayResourcePool([2], cpu_per_worker=2)  # type: ignore[call-arg]
    RayResourcePool([2], timeout_s="long")  # type: ignore[arg-type]
    RayResourcePool([2], label_selector=["gpu"])  # type: ignore[arg-type]
    RayResourcePool([2], topology_strategy="pack")  # type: ignore[arg-type]
    SubRayResourcePool(pool, 0)  # type: ignore[call-arg]
    SubRayResourcePool([2], 0, 1)  # type: ignore[arg-type]
    split_resource_pool(pool)  # type: ignore[call-arg]
    split_resource_pool(pool, "2")  # type: ignore[arg-type]
    split_resource_pool([2], 2)  # type: ignore[arg-type]
    split_resource_pool(pool, 2).world_size  # type: ignore[attr-defined]
    merge_resource_pool(pool)  # type: ignore[call-arg]
    merge_resource_pool(pool, [pool])  # type: ignore[arg-type]
    pool.world_size.upper()  # type: ignore[attr-defined]
    pool.get_placement_groups(strategy=3)  # type: ignore[arg-type]
    pool.shutdown("now")  # type: ignore[call-arg]
    pool.nodes()  # type: ignore[attr-defined]
    ResourcePoolManager([2])  # type: ignore[arg-type]
    ResourcePoolManager({"p": 1})  # type: ignore[dict-item]
    ResourcePoolManager({"p": [1]}, ["actor"])  # type: ignore[arg-type]
    ResourcePoolManager({"p": [1]}, {"actor": 1})  # type: ignore[dict-item]
    ResourcePoolManager({"p": [1]}, {"actor": "p"}).get_resource_pool(1)  # type: ignore[arg-type]


def groups(pool: RayResourcePool, template: RayClassWithInitArgs[Trainer]) -> None:
    RayWorkerGroup(pool, Trainer)  # type: ignore[arg-type]
    RayWorkerGroup(template, pool)  # type: ignore[arg-type]
    RayWorkerGroup([2], template)  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, bin_pack="yes")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, name_prefix=3)  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, detached="yes")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, use_gpu="no")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, device_name=3)  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, worker_env=["A"])  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, worker_env={"A": 1})  # type: ignore[dict-item]
    RayWorkerGroup(pool, template, forward_env=1)  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, master_port_range=[1, 2])  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, ray_wait_register_center_timeout="long")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, wait="no")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, on_restart="restarted")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, remote="yes")  # type: ignore[arg-type]
    RayWorkerGroup(pool, template, profile_steps=3)  # type: ignore[arg-type]
    other: RayWorkerGroup[Other] = RayWorkerGroup(pool, template)  # type: ignore[arg-type]
    RayWorkerGroup.from_detached(ray_cls_with_init=Trainer)  # type: ignore[arg-type]
    template.update_options(["num_cpus"])  # type: ignore[arg-type]
    template.set_additional_resource("gpu")  # type: ignore[arg-type]
    RayClassWithInitArgs(Trainer, 0.1, nme="x")  # type: ignore[call-arg]
    RayClassWithInitArgs(Trainer, 0.1, "name", 3)  # type: ignore[call-overload]
    create_colocated_worker_cls([template])  # type: ignore[arg-type]
    create_colocated_worker_cls({"actor": Trainer})  # type: ignore[dict-item]
    create_colocated_worker_cls_fused({"actor": Trainer})  # type: ignore[dict-item]


def life(group: RayWorkerGroup[Trainer]) -> None:
    group.restart("now")  # type: ignore[call-arg]
    group.watch(every_s="long")  # type: ignore[arg-type]
    group.watch(on_death=3)  # type: ignore[arg-type]
    group.watch().start()  # type: ignore[attr-defined]
    group.start_worker_aliveness_check("often")  # type: ignore[arg-type]
    group.startup_report().upper()  # type: ignore[attr-defined]
    group.worker_names.upper()  # type: ignore[attr-defined]
    group.generation.upper()  # type: ignore[attr-defined]
    group.role("actor", 3)  # type: ignore[call-overload]
    group.role("actor", Trainer).call(Other.size)  # type: ignore[arg-type]


def more_calls(group: RayWorkerGroup[Trainer], batch: DataProto, number: ObjectRef[int]) -> None:
    group.call(Trainer.update_actor, number)  # type: ignore[arg-type]
    group.call(Trainer.seed, [number], [number])  # type: ignore[list-item]
    group.call(Trainer.scale, number)  # type: ignore[arg-type]
    group.on.load(1)  # type: ignore[arg-type]
    group.on.scale(1.0)  # type: ignore[arg-type]
    group.on.generate([batch])  # type: ignore[arg-type]
    group.bind(Trainer.save_later)("path").upper()  # type: ignore[attr-defined]
    group.bind(Trainer.save_later)("path").result()  # type: ignore[attr-defined]
    group.bind(Trainer.load_later)("path").upper()  # type: ignore[attr-defined]
    group.bind(Trainer.generate)(batch).tensor("a")  # type: ignore[attr-defined]
    ray.get(group.bind(Trainer.load_later)("path"))[0].upper()  # type: ignore[attr-defined]
    ray.get(group.bind(Trainer.save_later)("path")).bit_length()  # type: ignore[attr-defined]
    group.submit(Trainer.load, 1)  # type: ignore[arg-type]
    group.stream(Trainer.scale, 1.0)  # type: ignore[arg-type]
    group.execute_all("load", "path").upper()  # type: ignore[attr-defined]
    group.execute_rank_zero("load", "path").result()  # type: ignore[attr-defined]
    with RayResourcePool([2]) as pool:
        pool.upper()  # type: ignore[attr-defined]
