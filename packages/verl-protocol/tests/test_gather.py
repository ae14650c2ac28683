"""all_gather_data_proto over a process group of gloo: one process per rank."""

from __future__ import annotations

import datetime
import subprocess
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from verl_protocol.batch.proto import DataProto, all_gather_data_proto
from verl_protocol.columns.checks import jagged_of
from verl_protocol.columns.jagged import ragged_dim


def batch_of(rank: int) -> DataProto:
    rows = rank + 1
    tensors = {
        "a": torch.full((rows,), rank),
        "half": torch.full((rows, 2), rank, dtype=torch.bfloat16),
        "pos": jagged_of([torch.full((3, 2), rank)] * rows, 2),
    }
    meta = {"step": 3, "metrics": {"loss": float(rank)}}
    return DataProto.from_dict(tensors, {"s": [f"rank {rank}"] * rows}, meta)


def gather(rank: int) -> str:
    data = batch_of(rank)
    held = data.meta_info
    all_gather_data_proto(data, dist.group.WORLD)
    checks = {
        "in place": len(data) == 3,
        "order": data.tensor("a").tolist() == [0, 1, 1],
        "dtype": data.tensor("half").dtype == torch.bfloat16,
        "jagged": ragged_dim(data.tensor("pos")) == 2 and data.to_rows()[2]["pos"].tolist() == [[1, 1]] * 3,
        "objects": data.non_tensor_batch["s"].tolist() == ["rank 0", "rank 1", "rank 1"],
        "meta": data.meta_info == {"step": 3, "metrics": {"loss": [0.0, 1.0]}},
        "no alias": held == {"step": 3, "metrics": {"loss": float(rank)}},
    }
    failed = [name for name, passed in checks.items() if not passed]
    return ",".join(failed) or "passed"


def gather_unlike(rank: int) -> str:
    data = DataProto.from_dict({"a" if rank else "b": torch.zeros(2)})
    try:
        all_gather_data_proto(data)
    except ValueError as error:
        return f"{len(data)} rows, {type(error).__name__}"
    return "no error"


def test_every_rank_gets_the_rows_of_all(tmp_path: Path) -> None:
    commands = [[sys.executable, __file__, str(rank), str(tmp_path / "meet")] for rank in range(2)]
    ranks = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for command in commands]
    told = [rank.communicate(timeout=200)[0].splitlines()[-2:] for rank in ranks]
    assert told == [["passed", "2 rows, SchemaError"]] * 2


def main(rank: int, path: str) -> None:
    limit = datetime.timedelta(seconds=100)
    dist.init_process_group("gloo", f"file://{path}", world_size=2, rank=rank, timeout=limit)
    print(gather(rank), gather_unlike(rank), sep="\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
