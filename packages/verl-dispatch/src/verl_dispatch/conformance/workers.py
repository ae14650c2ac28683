"""The worker classes of the suite: one with a method for every mode, and few more."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from verl_protocol import DataProto, DataProtoFuture

from verl_dispatch.methods.decorator import register
from verl_dispatch.methods.functions import collect_all_to_all, make_nd_compute_dataproto_dispatch_fn
from verl_dispatch.modes import Dispatch, Execute
from verl_dispatch.planning.plan import CallPlan
from verl_dispatch.workers.roles import create_colocated_worker_raw_cls
from verl_dispatch.workers.worker import Worker

BROKEN_MESHES = {
    "hole": ([0, 0, 2, 2], [1, 0, 1, 0]),
    "two": ([0, 0, 1, 1], [1, 1, 1, 0]),
    "one_lost": ([0, 0, 1, 1], [1, 0, 0, 0]),
    "nobody": ([0, 0, 1, 1], [0, 0, 0, 0]),
    "negative": ([-1, 0, 0, 1], [1, 1, 0, 1]),
}


WIDTH = 40_000
"""Entries in a row of a wide column: a few rows of it are worth a place in a store."""


class ModesWorker(Worker):
    """Says what reached it, in every mode."""

    def __init__(self, label: Any = "") -> None:
        super().__init__()
        self.label = label
        self.kept: Any = None
        half = max(1, self.world_size // 2)
        self._register_dispatch_collect_info("pairs", self.rank % half, self.rank < half)
        self._register_dispatch_collect_info("each", self.rank, True)
        if self.world_size == 4:
            for name, (dp_ranks, collects) in BROKEN_MESHES.items():
                self._register_dispatch_collect_info(name, dp_ranks[self.rank], bool(collects[self.rank]))

    # values; what gives them back in other modes is below

    def _said(self, x: Any, y: Any = None) -> Any:
        return self.rank, x, y

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def one_to_all(self, x: Any, y: Any = None) -> Any:
        """Documented."""
        return self.rank, x, y

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    async def one_to_all_async(self, x: Any, y: Any = None) -> Any:
        return self.rank, x, y

    @register(dispatch_mode=Dispatch.DP_COMPUTE)
    def dp_compute(self, /, *xs: Any, y: Any = "no", **named: Any) -> Any:
        return self.rank, xs, y, named

    # batches; those that mark the rows over a mesh are below

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def rows(self, data: Any, more: Any = None) -> Any:
        return self._marked(data, more)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    async def rows_async(self, data: Any, more: Any = None) -> Any:
        return self._marked(data, more)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def twice(self, data: DataProto) -> DataProto:
        return data.repeat(2, interleave=True)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def widened(self, data: DataProto) -> DataProto:
        """The ids, and a column of them so wide that it may stay where it is made."""
        wide = data.tensor("i")[:, None].repeat(1, WIDTH)
        return DataProto.from_dict({"i": data.tensor("i"), "wide": wide}, meta_info=dict(data.meta_info))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def narrowed(self, data: DataProto) -> DataProto:
        """The first and the last entry of each row of the wide column, after a write into it."""
        remote = np.array([",".join(data.remote_keys)] * len(data), dtype=object)
        wide = data.batch["wide"]
        found = DataProto.from_dict(
            {"i": wide[:, 0].clone(), "last": wide[:, -1].clone()}, {"remote": remote}
        )
        wide.fill_(-1)
        return found

    @register(
        dispatch_mode=Dispatch.DP_COMPUTE_PROTO,
        reads={"i": torch.int64, "s": object},
        writes={"i": torch.int64, "rank": None, "s": None},
    )
    def declared(self, data: DataProto) -> Any:
        """Marked, but for what it is not told to read; on the rank that `meta_info` names with `x`."""
        found = data.meta_info.get("wrong") == self.rank or "x" in data
        return self._marked(data).union(DataProto.from_dict({"x": data.tensor("i")} if found else {}))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, reads={"x": ("i", "wide"), "y": ("i", "s?")})
    def declared_to_all(self, x: Any, y: Any) -> Any:
        return [[key for key in ("i", "s", "x", "wide") if key in data] for data in (x, y)]

    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("pairs"))
    def narrowed_over_pairs(self, data: DataProto) -> Any:
        return self._marked(DataProto.from_dict({"i": data.tensor("wide")[:, 0].clone()}))

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def summary(self, data: DataProto) -> DataProto:
        return DataProto(meta_info={"metrics": {"rows": len(data)}})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def one_row_less(self, data: DataProto) -> DataProto:
        return data[: len(data) - 1]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def no_batch(self, data: Any) -> Any:
        return {"rank": self.rank}

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, materialize_futures=False)
    def late(self, data: Any) -> DataProto:
        is_future = isinstance(data, DataProtoFuture)
        kind, found = ("future", data.get()) if is_future else ("batch", data)
        return DataProto.from_dict(
            {"i": found.tensor("i")}, {"kind": np.array([kind] * len(found), dtype=object)}
        )

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO_WITH_FUNC)
    def with_function(self, function: Any, data: Any) -> Any:
        return function(self, data)

    @register(dispatch_mode=Dispatch.DP_COMPUTE_METRIC)
    def metric(self, data: Any) -> dict[str, int]:
        return {"rank": self.rank, "rows": len(data)}

    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def all_to_all_rows(self, data: Any, flag: Any = None) -> Any:
        return self.rank, ids_of(data), flag

    def _marked(self, data: Any, more: Any = None) -> Any:
        """The rows, and which rank had them; of `more` the ids."""
        self.kept = ids_of(data)
        added = {"rank": torch.full((len(data),), self.rank)}
        if more is not None:
            added["more"] = torch.tensor(ids_of(more))
        if not isinstance(data, DataProto):
            return data.clone().update(added)
        columns = {key: data.tensor(key) for key in ("i", "x") if key in data}
        named = {"s": data.column("s")} if "s" in data else None
        return DataProto.from_dict(columns | added, named, meta_info=dict(data.meta_info))

    # isolation

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def write_into(self, data: Any) -> Any:
        if isinstance(data, DataProto):
            data.tensor("i").add_(self.rank + 1)
            data.column("s")[0] = f"rank {self.rank}"
            data.meta_info["seen"].append(self.rank)
            return int(data.tensor("i")[0]), data.column("s")[0], data.meta_info["seen"]
        data["tensor"].add_(self.rank + 1)
        data["list"].append(self.rank)
        return float(data["tensor"][0]), data["list"]

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def write_rows(self, data: DataProto) -> DataProto:
        data.tensor("i").add_(100)
        return data

    @register(dispatch_mode=Dispatch.ONE_TO_ALL, read_only=True)
    def sum_read_only(self, weights: Any, written: int = 0) -> float:
        return float((weights["w"].add_(written) if written else weights["w"]).sum())

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def keep(self, value: Any) -> Any:
        self.kept = value
        return value

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def change_kept(self) -> Any:
        self.kept["w"].fill_(self.rank + 7.0)
        return float(self.kept["w"][0])

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get_kept(self) -> Any:
        return self.kept

    # identity, failure

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def identity(self) -> dict[str, Any]:
        return {
            "rank": self.rank,
            "world_size": self.world_size,
            "local_rank": self.local_rank,
            "label": self.label,
            "master": self.get_master_addr_port(),
        }

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def raise_on(self, rank: int, message: Any = "boom", kind: type[BaseException] = KeyError) -> int:
        if self.rank == rank:
            raise kind(message)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sleep(self, seconds: float, but_rank: int | None = None) -> int:
        if self.rank == but_rank:
            raise KeyError("boom")
        time.sleep(seconds)
        return self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sum_of_ranks(self) -> int:
        return int(self.process_group().all_reduce(torch.tensor(self.rank)))

    def unregistered(self, *values: Any) -> Any:
        return self.rank, values


def custom(dispatch_fn: Any, collect_fn: Any = collect_all_to_all) -> dict[str, Any]:
    """A mode given as a dict, so that no registry is needed where the workers run."""
    return {"dispatch_mode": {"dispatch_fn": dispatch_fn, "collect_fn": collect_fn}}


SAYING: dict[str, dict[str, Any]] = {
    "rank_zero": {"dispatch_mode": Dispatch.RANK_ZERO},
    "one_to_all_rank_zero": {"dispatch_mode": Dispatch.ONE_TO_ALL, "execute_mode": Execute.RANK_ZERO},
    "all_to_all": {},
    "all_to_all_rank_zero": {"execute_mode": Execute.RANK_ZERO},
    "one_to_one": {"dispatch_mode": Dispatch.ONE_TO_ONE},
    "direct": {"dispatch_mode": Dispatch.DIRECT_ROLLOUT_METHOD},
    "custom": custom(
        lambda group, x: (([[x, rank] for rank in range(group.world_size)],), {}),
        lambda group, outputs: list(outputs)[::-1],
    ),
    "custom_plan": custom(lambda group, x: CallPlan.of({group.world_size - 1: ((x,), {})})),
    "custom_wrong": custom(lambda group, x: (([x] * (group.world_size + 1),), {})),
    "custom_rank_zero": custom(lambda group, x: (([x, x],), {}), lambda group, output: {"rank zero": output})
    | {"execute_mode": Execute.RANK_ZERO},
}
"""Methods that give back their rank and what they got, with how they are registered."""

for _name, _options in SAYING.items():
    setattr(ModesWorker, _name, register(**_options)(ModesWorker._said))

for _mesh in ("pairs", "each", "nope", *BROKEN_MESHES):
    _over_mesh = register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn(_mesh))
    setattr(ModesWorker, f"over_{_mesh}", _over_mesh(ModesWorker._marked))


def ids_of(data: Any, key: str = "i") -> list[int]:
    """The ids of a batch's rows, or the numbers of another column."""
    numbers = data.tensor(key) if isinstance(data, DataProto) else data[key]
    found: list[int] = numbers.tolist()
    return found


class PlainWorker:
    """No `Worker`, and still a worker."""

    def __init__(self, label: str = "plain") -> None:
        self.label = label

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get(self) -> str:
        return self.label


class SilentWorker(Worker):
    """Never calls the constructor of `Worker`."""

    def __init__(self) -> None:
        self.seen: int = self.rank

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def get(self) -> tuple[int, int]:
        return self.seen, self.world_size


class ClosingWorker(Worker):
    """Notes at its end which rank it was."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        self.notes = notes

    def close(self) -> None:
        with self.notes.open("a") as file:
            file.write(f"{self.rank}\n")


class FailingWorker(Worker):
    """Cannot be built on rank 1."""

    def __init__(self) -> None:
        super().__init__()
        if self.rank == 1:
            raise ValueError("no model here")


class RoleA(Worker):
    """Role `a` of the colocation tests."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def b_c(self) -> str:
        return f"A.b_c {self.rank}"

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def ask_sibling(self) -> Any:
        return self.get_fused_worker_by_name("a_b").c()


class RoleAB(ModesWorker):
    """Role `a_b`, whose name begins like that of role `a`."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def c(self) -> str:
        return f"AB.c {self.rank}"


_Fused: Any = create_colocated_worker_raw_cls({"a": RoleA, "a_b": RoleAB})


class BothRoles(_Fused):  # type: ignore[misc]
    """A fused worker that has its roles as attributes, and a constructor of its own."""

    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def both(self) -> tuple[str, str, str]:
        return self.word, self.a.b_c(), self.a_b.c()


class OrderWorker(Worker):
    """Notes every call with how many calls are running then."""

    def __init__(self) -> None:
        super().__init__()
        self.running: int = 0
        self.log: list[tuple[int, int]] = []

    def _noted(self, value: Any, number: int) -> Any:
        self.running += 1
        self.log.append((number, self.running))
        self.running -= 1
        return value

    async def _noted_async(self, value: Any, number: int) -> Any:
        self._noted(value, number)
        self.running += 1
        # A loop that may run other calls meanwhile gets the chance to.
        await asyncio.sleep(0.002 if number % 8 == 0 else 0)
        self.running -= 1
        return value

    plain: Any = register(dispatch_mode=Dispatch.ONE_TO_ALL)(_noted)
    asynchronous: Any = register(dispatch_mode=Dispatch.ONE_TO_ALL)(_noted_async)
    pass_on: Any = register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)(_noted)
    pass_on_async: Any = register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)(_noted_async)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def take_log(self) -> list[tuple[int, int]]:
        log, self.log = self.log, []
        return log
