"""What users see of each fault: every one is done to a real group on a Ray of its own, and told in a table.

    python packages/verl-ray/benchmarks/faults.py [--only TEXT] [--write docs/reliability.md]

`error` is what the driver's call raised, `after` the seconds from the fault until it did, `restart` whether
`group.restart()` gave a group that works, and `left` what was still reserved after the end of group and pool.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import ray
import torch
from benchmark_harness import markdown_table, put_into_page
from ray.cluster_utils import Cluster
from verl_dispatch import Broadcast, Dispatch, Worker, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, destroy_detached

_PLACES = re.compile(r" \(node [^)]*\)|group '\w+', ")
"""What differs from run to run."""
CPUS = 4
STORE_BYTES = 150 * 2**20
HEAD = ["fault", "what the caller gets", "after s", "restart works", "left"]


class Victim(Worker):
    """Does what it is told, on rank 1 only."""

    def __init__(self, ends_at: str = "") -> None:
        super().__init__()
        if ends_at and self.rank == 1 and not Path(ends_at).exists():
            Path(ends_at).touch()
            os._exit(3)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, how: str, others_s: float = 60.0) -> int:
        if self.rank == 1 and how != "wait":
            if how == "raise":
                raise KeyError("boom")
            time.sleep(0.5)
            os._exit(3)
        time.sleep(others_s)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def meet(self) -> None:
        if self.rank == 1:
            time.sleep(0.5)
            os._exit(3)
        self.process_group().barrier()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def make(self, data: DataProto, ends: bool = False) -> DataProto:
        if ends and self.rank == 1:
            time.sleep(0.5)
            os._exit(3)
        return DataProto.from_dict({"wide": torch.ones(len(data), 1 << 18)})


class Stage:
    """One group of two workers, and the moment at which the fault was done to it."""

    def __init__(self, **options: Any) -> None:
        self.pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
        self.began = time.monotonic()
        self.group: Any = RayWorkerGroup(self.pool, RayClassWithInitArgs(Victim), **options)
        self.group.pid()
        self.happened()

    def happened(self) -> None:
        """The fault is done now."""
        self.began = time.monotonic()

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """A signal to the process of rank 1."""
        pid = self.group.pid()[1]
        self.happened()
        os.kill(pid, sign)

    def restart(self) -> str:
        """Whether a restarted group works."""
        self.group.restart()
        return "yes" if len(set(self.group.pid())) == 2 else "no"

    def close(self) -> None:
        self.group.shutdown()
        self.pool.shutdown()


def batch(rows: int = 4) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(rows)})


# --- the faults: each gives what happened, as the caller sees it ------------------------------------------


def a_method_raises(stage: Stage) -> Any:
    return stage.group.fail("raise", others_s=0.0)


def a_worker_is_killed_before_a_call(stage: Stage) -> Any:
    stage.kill()
    return stage.group.pid()


def a_worker_ends_in_a_call(stage: Stage) -> Any:
    return stage.group.fail("exit")


def a_worker_ends_in_a_collective(stage: Stage) -> Any:
    return stage.group.meet()


def a_worker_ends_while_answers_are_streamed(stage: Stage) -> Any:
    return list(stage.group.fail.stream("exit"))


def a_worker_ends_before_its_future_is_read(stage: Stage) -> Any:
    future = stage.group.make.options(blocking=False)(batch(), ends=Broadcast(True))
    return future.get()


def a_worker_ends_after_its_future_was_handed_on(stage: Stage) -> Any:
    future = stage.group.make.options(blocking=False)(batch(), ends=Broadcast(True))
    return stage.group.make(future)


def a_worker_is_killed_after_it_made_remote_columns(stage: Stage) -> Any:
    made = stage.group.make.options(remote=True)(batch())
    stage.kill()
    return f"no error: {int(made.tensor('wide').sum())} of {4 << 18} values read"


def a_worker_hangs(stage: Stage) -> Any:
    stage.kill(signal.SIGSTOP)
    return stage.group.pid.options(timeout_s=2.0)()


def the_group_is_restarted_while_others_call(stage: Stage) -> Any:
    told: list[str] = []
    over = threading.Event()

    def call() -> None:
        while not over.is_set():
            try:
                stage.group.pid()
            except Exception as error:
                told.append(type(error).__name__)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(2):
        stage.group.restart()
    stage.happened()
    over.set()
    for thread in threads:
        thread.join()
    return f"no error but for calls in flight: {', '.join(sorted(set(told))) or 'none'}"


def the_object_store_is_full(stage: Stage) -> Any:
    kept = [stage.group.make.options(remote=True)(batch(64)) for _ in range(5)]
    stage.happened()
    values = sum(int(each.tensor("wide")[:, 0].sum()) for each in kept)
    nbytes = sum(each.tensor("wide").nbytes for each in kept)
    return (
        f"no error: {nbytes >> 20} MiB in a store of {STORE_BYTES >> 20} MiB, {values} of {5 * 64} rows read"
    )


FAULTS: tuple[Callable[[Stage], Any], ...] = (
    a_method_raises,
    a_worker_is_killed_before_a_call,
    a_worker_ends_in_a_call,
    a_worker_ends_in_a_collective,
    a_worker_ends_while_answers_are_streamed,
    a_worker_ends_before_its_future_is_read,
    a_worker_ends_after_its_future_was_handed_on,
    a_worker_is_killed_after_it_made_remote_columns,
    a_worker_hangs,
    the_group_is_restarted_while_others_call,
    the_object_store_is_full,
)


# --- faults that need a cluster, or a driver, of their own ------------------------------------------------


def a_constructor_ends_its_process() -> list[str]:
    """The group is never there; a second one on the same pool is."""
    mark = f"/tmp/verl_faults_{os.getpid()}"
    pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
    began = time.monotonic()
    told = outcome(lambda: RayWorkerGroup(pool, RayClassWithInitArgs(Victim, mark)), began)
    group: Any = RayWorkerGroup(pool, RayClassWithInitArgs(Victim, mark))
    works = "yes, a new group" if len(group.pid()) == 2 else "no"
    group.shutdown()
    pool.shutdown()
    os.unlink(mark)
    return [*told, works, left()]


DETACHED = """
import os, ray
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
from faults import Victim
ray.init("auto", namespace="faults", log_to_driver=False)
pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1, detached=True, name_prefix="faults_pool")
group = RayWorkerGroup(pool, RayClassWithInitArgs(Victim), detached=True, name_prefix="faults")
group.pid()
print(*group.worker_names, flush=True)
os.kill(os.getpid(), 9)
"""


def the_driver_of_a_detached_group_is_killed() -> list[str]:
    """Another driver attaches, calls, and frees all of it."""
    env = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).parent),
        "RAY_ADDRESS": ray.get_runtime_context().gcs_address,
    }
    done = subprocess.run(
        [sys.executable, "-c", DETACHED], env=env, capture_output=True, text=True, check=False
    )
    names = done.stdout.split()
    began = time.monotonic()
    attached: Any = RayWorkerGroup.from_detached(
        worker_names=names, ray_cls_with_init=RayClassWithInitArgs(Victim)
    )
    told = outcome(lambda: f"no error: {len(attached.pid())} ranks answer whoever attaches", began)
    attached.restart()
    works = "yes" if len(attached.pid()) == 2 else "no"
    destroy_detached(names, placement_groups=True)
    return [*told, works, left()]


def a_node_is_lost() -> list[str]:
    """With a cluster of two nodes of which one takes the workers."""
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False)
    try:
        stage = Stage()
        call = threading.Timer(1.0, lambda: cluster.remove_node(node))
        stage.began = time.monotonic() + 1.0
        call.start()
        told = outcome(lambda: stage.group.fail("wait"), stage.began)
        call.join()
        cluster.add_node(num_cpus=2)
        return [*told, stage.restart(), left(stage.close)]
    finally:
        ray.shutdown()
        cluster.shutdown()  # type: ignore[no-untyped-call]
        start_ray()


APART: tuple[Callable[[], list[str]], ...] = (
    a_constructor_ends_its_process,
    the_driver_of_a_detached_group_is_killed,
    a_node_is_lost,
)


# --- running and telling ----------------------------------------------------------------------------------


def start_ray() -> None:
    """A Ray of our own."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=STORE_BYTES,
        namespace="faults",
    )


def outcome(act: Callable[[], Any], began: float | None = None) -> list[str]:
    """What it raised or gave, and the seconds until then."""
    start = time.monotonic() if began is None else began
    try:
        told = str(act())
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        told = f"`{type(error).__name__}`: {_PLACES.sub('', '; '.join(lines[:2]))[:110]}"
    return [told.replace("|", "/"), f"{max(0.0, time.monotonic() - start):.1f}"]


def left(close: Callable[[], object] = bool) -> str:
    """What is still reserved a while after `close`."""
    close()
    untyped: Any = ray
    until = time.monotonic() + 20
    while time.monotonic() < until:
        total, free = untyped.cluster_resources(), untyped.available_resources()
        if free.get("CPU", 0) == total.get("CPU", 0):
            return "nothing"
        time.sleep(0.1)
    return f"{total['CPU'] - free.get('CPU', 0):g} CPUs"


def row_of(fault: Callable[..., Any]) -> list[str]:
    """One line of the table."""
    if fault in APART:
        return [_words(fault), *fault()]
    with closing(Stage()) as stage:
        told = outcome(lambda: fault(stage))
        told[1] = f"{time.monotonic() - stage.began:.1f}"
        works = outcome(stage.restart)[0]
        return [_words(fault), *told, works, left(stage.close)]


def _words(fault: Any) -> str:
    return str(fault.__name__).replace("_", " ")


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all faults and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--write", type=Path, help="put the table into this page, between its marks")
    options = parser.parse_args(arguments)
    start_ray()
    rows = []
    faults: tuple[Any, ...] = (*FAULTS, *APART)
    for fault in faults:
        if options.only in _words(fault):
            rows.append(row_of(fault))
            sys.stderr.write(f"{rows[-1]}\n")
    ray.shutdown()
    table = markdown_table(HEAD, rows)
    sys.stdout.write(table + "\n")
    if options.write is not None:
        put_into_page(options.write, "faults", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
