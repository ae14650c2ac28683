"""What users see of each fault: every one is done to a real group on a Ray of its own, and told in a table.

    python packages/verl-ray/benchmarks/faults.py [--only TEXT] [--within S] [--write docs/reliability.md]

`what the caller gets` is what the driver's call raised or gave, `after s` the seconds from the fault until
it did, `restart works` whether `group.restart()` gave a group that answers, and `left` what was still there
of it after the end of group and pool: CPUs, placement groups, processes, bytes in the object store. The
exit status is 1 if a fault was told otherwise than promised or too late, if no restart helped, if something
is left.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import io
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "tools"))

import ray
import torch
from benchmark_harness import markdown_table, put_into_page, rows_in_page
from memory import stored_mib
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group_table
from verl_dispatch import Broadcast, Dispatch, Worker, WorkerGroupError, register
from verl_protocol import DataProto
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, destroy_detached
from verl_ray.errors import StaleFutureError

_PLACES = re.compile(r" \(node [^)]*\)|group '\w+', | of group '\w+'| [0-9a-f]{32}")
"""What differs from run to run."""
CPUS = 4
STORE_BYTES = 150 * 2**20
HEAD = ["fault", "what the caller gets", "after s", "restart works", "left"]
BOUND_S = 120.0
"""Whatever hangs for so long ends the program, with all stacks."""


class Victim(Worker):
    """Does what it is told; where it is told to die, rank 1 does, and notes when.

    Only methods that get a batch load torch, for the others start in half the time.
    """

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = Path(folder)
        if self.rank == 1 and (self.folder / "constructor").exists():
            (self.folder / "constructor").unlink()
            self._die()

    def _die(self) -> NoReturn:
        """As the kernel does where memory ends. One clock serves all processes of a machine."""
        (self.folder / "when").write_text(str(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("unreachable")

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def pid(self) -> int:
        return os.getpid()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def fail(self, how: str, others_s: float = 60.0) -> int:
        if self.rank == 1 and how == "raise":
            raise KeyError("boom")
        if self.rank == 1 and how == "die":
            time.sleep(0.5)
            self._die()
        time.sleep(others_s)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def meet(self) -> None:
        if self.rank == 1:
            time.sleep(0.5)
            self._die()
        self.process_group().barrier()

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def make(self, data: DataProto, dies: bool = False) -> DataProto:
        if dies and self.rank == 1:
            time.sleep(0.5)
            self._die()
        return data.from_dict({"wide": data.tensor("x").new_ones(len(data), 1 << 18).float()})


class Stage:
    """One group of two workers, and the moment at which the fault was done to it."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="verl_faults_"))
        self.pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1)
        self.group: Any = None
        self.happened()

    def start(self) -> Stage:
        """With a group that answers."""
        self.group = RayWorkerGroup(self.pool, RayClassWithInitArgs(Victim, str(self.folder)))
        self.group.pid()
        self.happened()
        return self

    def happened(self) -> None:
        """The fault is done now."""
        self._began = time.monotonic()

    @property
    def began(self) -> float:
        """When the fault was done: by this program, or by a worker that died."""
        when = self.folder / "when"
        return float(when.read_text()) if when.exists() else self._began

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """A signal to the process of rank 1."""
        pid = self.group.pid()[1]
        self.happened()
        os.kill(pid, sign)

    def dies_at_its_next_start(self) -> None:
        """Rank 1 will, in its constructor."""
        (self.folder / "constructor").touch()

    def restart(self) -> str:
        """Whether a restarted group works."""
        self.group.restart()
        return "yes" if len(set(self.group.pid())) == 2 else "no"

    def close(self) -> None:
        if self.group is not None:
            self.group.shutdown()
        self.pool.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)


def batch(rows: int = 4) -> DataProto:
    return DataProto.from_dict({"x": torch.arange(rows)})


# --- the faults, each with how the caller is promised to be told ------------------------------------------


@dataclass(frozen=True)
class Fault:
    """One line of the table.

    Attributes:
        act: does the fault to a group and gives what its caller sees; or, on its own, the whole line.
        promise: how the text of what the caller gets begins.
        alone: whether it brings a cluster or a driver of its own.
    """

    act: Callable[..., Any]
    promise: str
    alone: bool

    @property
    def words(self) -> str:
        return str(self.act.__name__).replace("_", " ")


FAULTS: list[Fault] = []


def fault(promise: str, *, alone: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Puts a function among the faults."""

    def add(act: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS.append(Fault(act, promise, alone))
        return act

    return add


@fault("`WorkerGroupError`")
def a_method_raises(stage: Stage) -> Any:
    return stage.group.fail("raise", others_s=0.0)


@fault("`WorkerGroupError`")
def a_worker_is_killed_before_a_call(stage: Stage) -> Any:
    stage.kill()
    return stage.group.pid()


@fault("`WorkerGroupError`")
def a_worker_is_killed_in_a_call(stage: Stage) -> Any:
    return stage.group.fail("die")


@fault("no error")
def a_worker_is_killed_after_a_call(stage: Stage) -> Any:
    future = stage.group.make.options(blocking=False)(batch())
    future.row_count()
    stage.kill()
    return f"no error: {len(future.get())} of 4 rows read"


@fault("`WorkerGroupError`")
def a_worker_is_killed_in_a_collective(stage: Stage) -> Any:
    return stage.group.meet()


@fault("`WorkerGroupError`")
def a_worker_is_killed_while_answers_are_streamed(stage: Stage) -> Any:
    answers = stage.group.fail.stream("die", others_s=0.0)
    first = next(answers)
    return first, list(answers)


@fault("`WorkerGroupError`")
def a_worker_is_killed_before_its_future_is_read(stage: Stage) -> Any:
    future = stage.group.make.options(blocking=False)(batch(), dies=Broadcast(True))
    return future.get()


@fault("`WorkerGroupError`")
def a_worker_is_killed_after_its_future_was_handed_on(stage: Stage) -> Any:
    future = stage.group.make.options(blocking=False)(batch(), dies=Broadcast(True))
    return stage.group.make(future)


@fault("no error")
def a_worker_is_killed_before_its_remote_columns_are_read(stage: Stage) -> Any:
    made = stage.group.make.options(remote=True)(batch())
    stage.kill()
    return f"no error: {int(made.tensor('wide').sum())} of {4 << 18} values read"


@fault("`CallTimeout`")
def a_worker_hangs(stage: Stage) -> Any:
    stage.kill(signal.SIGSTOP)
    return stage.group.pid.options(timeout_s=2.0)()


@fault("no error but for calls in flight")
def the_group_is_restarted_while_others_call(stage: Stage) -> Any:
    told: set[str] = set()
    answered: Counter[int] = Counter()
    over = threading.Event()
    strange: list[BaseException] = []

    def call(number: int) -> None:
        while not over.is_set():
            try:
                stage.group.pid()
                answered[number] += 1
            except (StaleFutureError, WorkerGroupError) as error:
                told.add(type(error).__name__)
            except BaseException as error:
                strange.append(error)
                return

    threads = [threading.Thread(target=call, args=(number,), daemon=True) for number in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            stage.group.restart()
        stage.happened()
        before = Counter(answered)
        while not strange and any(answered[number] == before[number] for number in range(3)):
            if time.monotonic() - stage.began > 60:
                raise TimeoutError(f"of 3 threads that call, {answered - before} got answers")
            time.sleep(0.01)
    finally:
        over.set()
        for thread in threads:
            thread.join(60)
    if strange:
        raise strange[0]
    return f"no error but for calls in flight: {', '.join(sorted(told)) or 'none'}"


@fault("no error")
def the_object_store_is_full(stage: Stage) -> Any:
    kept = [stage.group.make.options(remote=True)(batch(64)) for _ in range(5)]
    stage.happened()
    values = sum(int(each.tensor("wide")[:, 0].sum()) for each in kept)
    nbytes = sum(each.tensor("wide").nbytes for each in kept)
    return (
        f"no error: {nbytes >> 20} MiB in a store of {STORE_BYTES >> 20} MiB, {values} of {5 * 64} rows read"
    )


@fault("`WorkerGroupError`")
def a_worker_is_killed_in_its_constructor_by_a_restart(stage: Stage) -> Any:
    stage.dies_at_its_next_start()
    return stage.group.restart()


# --- faults that need a cluster, or a driver, of their own ------------------------------------------------


@fault("`WorkerGroupError`", alone=True)
def a_worker_is_killed_in_its_constructor() -> list[str]:
    """The group is never there; a second one on the same pool is."""
    stage = Stage()
    stage.dies_at_its_next_start()
    told = outcome(stage.start, stage)
    works = "yes, a new group" if len(stage.start().group.pid()) == 2 else "no"
    return [*told, works, left(stage.close)]


DRIVER = """
import os, sys, faults, ray
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup
ray.cloudpickle.register_pickle_by_value(faults)  # its workers cannot import it
ray.init("auto", namespace="faults", log_to_driver=False)
detached = len(sys.argv) > 1
pool = RayResourcePool([2], use_gpu=False, max_colocate_count=1, detached=detached, name_prefix="faults_pool")
template = RayClassWithInitArgs(faults.Victim, "/")
group = RayWorkerGroup(pool, template, detached=detached, name_prefix="faults")
group.pid()
print(*group.worker_names, flush=True)
os.kill(os.getpid(), 9)
"""


def names_left_by_a_killed_driver(*arguments: str) -> list[str]:
    """The workers of another driver, which has killed itself."""
    address = ray.get_runtime_context().gcs_address
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "RAY_ADDRESS": address}
    command = [sys.executable, "-c", DRIVER, *arguments]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=BOUND_S)
    if len(names := done.stdout.split()) != 2:
        raise RuntimeError(f"the other driver started no group:\n{done.stderr}")
    return names


@fault("no error", alone=True)
def the_driver_of_a_detached_group_is_killed() -> list[str]:
    """Another driver attaches, calls, and frees all of it."""
    names = names_left_by_a_killed_driver("detached")
    attached: Any = None

    def attach() -> str:
        nonlocal attached
        template = RayClassWithInitArgs(Victim, "/")
        attached = RayWorkerGroup.from_detached(worker_names=names, ray_cls_with_init=template)
        return f"no error: {len(attached.pid())} ranks answer whoever attaches"

    told = outcome(attach)
    attached.restart()
    works = "yes" if len(attached.pid()) == 2 else "no"
    return [*told, works, left(lambda: destroy_detached(attached.worker_names, placement_groups=True))]


@fault("no error", alone=True)
def the_driver_of_a_group_is_killed() -> list[str]:
    """Nobody is there to free anything."""
    names_left_by_a_killed_driver()
    told = outcome(lambda: f"no error: of its workers there is {left()}")
    return [*told, "-", left()]


@contextmanager
def full_disk() -> Iterator[Stage]:
    """A group where nothing is spilled: Ray takes a disk for full once a share of it is in use, here any."""
    ray.shutdown()
    start_ray(_system_config={"local_fs_capacity_threshold": 0.001})
    try:
        yield Stage().start()
    finally:
        ray.shutdown()
        start_ray()


@fault("`WorkerGroupError`", alone=True)
def object_store_and_disk_are_full() -> list[str]:
    with full_disk() as stage:
        told = outcome(lambda: stage.group.make(batch(400)), stage)
        return [*told, stage.restart(), left(stage.close)]


@fault("`ColumnsLost`", alone=True)
def object_store_and_disk_are_full_for_remote_columns() -> list[str]:
    """The call itself needs no room: whoever reads the columns is told."""
    with full_disk() as stage:
        made = stage.group.make.options(remote=True)(batch(400))
        stage.happened()
        told = outcome(partial(made.tensor, "wide"), stage)
        del made
        return [*told, stage.restart(), left(stage.close)]


@contextmanager
def cluster_that_loses_a_node() -> Iterator[tuple[Stage, Callable[[], None], Callable[[], object]]]:
    """A group on the only node that takes workers, what kills that node, and what adds another one."""
    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    node = cluster.add_node(num_cpus=2)
    ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
    stage = Stage().start()

    def lose() -> None:
        stage.happened()
        cluster.remove_node(node, allow_graceful=False)

    try:
        yield stage, lose, lambda: cluster.add_node(num_cpus=2)
    finally:
        ray.shutdown()
        cluster.shutdown()
        start_ray()


@fault("`WorkerGroupError`", alone=True)
def a_node_is_lost_in_a_call() -> list[str]:
    with cluster_that_loses_a_node() as (stage, lose, add):
        timer = threading.Timer(1.0, lose)
        timer.start()
        told = outcome(lambda: stage.group.fail("wait"), stage)
        timer.join()
        add()
        return [*told, stage.restart(), left(stage.close)]


@fault("`ColumnsLost`", alone=True)
def a_node_is_lost_with_remote_columns() -> list[str]:
    with cluster_that_loses_a_node() as (stage, lose, add):
        made = stage.group.make.options(remote=True)(batch())
        lose()
        told = outcome(lambda: made.tensor("wide"), stage)
        add()
        return [*told, stage.restart(), left(stage.close)]


# --- running and telling ----------------------------------------------------------------------------------


def start_ray(**more: Any) -> None:
    """A Ray of our own."""
    ray.init(
        address="local",
        num_cpus=CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=STORE_BYTES,
        namespace="faults",
        **more,
    )


def outcome(act: Callable[[], Any], stage: Stage | None = None) -> list[str]:
    """What it raised or gave, and the seconds from the fault, or from now, until then."""
    start = time.monotonic()
    try:
        told = str(act())
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        said = textwrap.shorten(_PLACES.sub("", "; ".join(lines[:2])), 110, placeholder=" ...")
        told = f"`{type(error).__name__}`: {said}"
    after = time.monotonic() - (start if stage is None else stage.began)
    return [told.replace("|", "/"), f"{max(0.0, after):.1f}"]


def left(close: Callable[[], object] = bool, wait_s: float = 20.0) -> str:
    """What is still there a while after `close`."""
    close()
    until = time.monotonic() + wait_s
    while (found := there()) and time.monotonic() < until:
        gc.collect()
        time.sleep(0.1)
    return ", ".join(found) or "nothing"


def there() -> list[str]:
    """What groups and their batches hold of this cluster."""
    untyped: Any = ray
    cpus = untyped.cluster_resources().get("CPU", 0) - untyped.available_resources().get("CPU", 0)
    groups = sum(entry["state"] != "REMOVED" for entry in placement_group_table().values())
    processes = sum(b"ray::Victim" in title for title in process_titles())
    stored = round(stored_mib(), 2)  # Ray keeps a few bytes of bookkeeping
    held = {"CPUs": cpus, "placement groups": groups, "processes": processes, "MiB stored": stored}
    return [f"{number:g} {what}" for what, number in held.items() if number]


def process_titles() -> Iterator[bytes]:
    """Of all processes that can be seen."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield entry.read_bytes()
        except OSError:  # it has ended
            continue


def line_of(one: Fault) -> list[str]:
    """One line of the table."""
    if one.alone:
        return [one.words, *one.act()]
    with closing(Stage()) as stage:
        stage.start()
        told = outcome(lambda: one.act(stage), stage)
        works = outcome(stage.restart)[0]
        return [one.words, *told, works, left(stage.close)]


def broken_promises(one: Fault, line: list[str], within_s: float) -> list[str]:
    """What is not as users are told it is."""
    _, told, after, works, rest = line
    broken = []
    if not told.startswith(one.promise):
        broken.append(f"expected {one.promise}, got {told}")
    if float(after) > within_s:
        broken.append(f"told after {after} s, expected {within_s:g} s at most")
    if works.split(",")[0] not in ("yes", "-"):
        broken.append(f"after a restart: {works}")
    if rest != "nothing":
        broken.append(f"left: {rest}")
    return [f"{one.words}: {what}" for what in broken]


def main(arguments: Sequence[str] | None = None) -> int:
    """Do all faults, print the table, and say by the exit status whether all promises were kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="faults whose names contain this")
    parser.add_argument("--within", type=float, default=10.0, help="seconds in which each shall be told")
    parser.add_argument("--write", type=Path, help="put these lines into the table of this page")
    options = parser.parse_args(arguments)
    chosen = [one for one in FAULTS if options.only in one.words]
    if not chosen:
        parser.error(f"no fault is called {options.only!r}; there are: {', '.join(o.words for o in FAULTS)}")
    lines, broken = [], []
    with redirect_stdout(io.StringIO()):  # there Ray tells at length of each death
        start_ray()
        for one in chosen:
            faulthandler.dump_traceback_later(BOUND_S, exit=True)
            lines.append(line_of(one))
            broken += broken_promises(one, lines[-1], options.within)
            sys.stderr.write(f"{': '.join(lines[-1][:2])}, after {lines[-1][2]} s\n")
        faulthandler.cancel_dump_traceback_later()
        ray.shutdown()
    table = markdown_table(HEAD, lines)
    sys.stdout.write(table + "\n")
    if options.write is not None:
        known = {cells[0]: cells for cells in [*rows_in_page(options.write, "faults"), *lines]}
        told = [known[one.words] for one in FAULTS if one.words in known]
        put_into_page(options.write, "faults", markdown_table(HEAD, told))
    for each in broken:
        sys.stderr.write(f"broken promise: {each}\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
