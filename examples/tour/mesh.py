"""An n-d mesh: two data-parallel replicas of two tensor-parallel ranks, which get the same rows."""

import torch
from verl_dispatch import LocalWorkerGroup, Mesh, Worker, make_nd_compute_dataproto_dispatch_fn, register
from verl_protocol import DataProto


class Sharded(Worker):
    @register(dispatch_mode=make_nd_compute_dataproto_dispatch_fn("actor"))
    def total(self, batch: DataProto) -> DataProto:
        """Sum two of the four columns on each tp rank, then both halves over the replica."""
        first = self.rank // 2 * 2
        columns = slice(0, 2) if self.rank == first else slice(2, 4)
        halves = self.process_group().all_gather(batch.tensor("x")[:, columns].sum(dim=1))
        total = halves[first] + halves[first + 1]
        return DataProto.from_dict(tensors={"total": total, "rank": torch.full((len(batch),), self.rank)})


batch = DataProto.from_dict(tensors={"x": torch.arange(16).reshape(4, 4)})
with LocalWorkerGroup(Sharded, 4, concurrent=True) as group:
    group.add_mesh(Mesh.from_sizes("actor", {"dp": 2, "tp": 2}))
    print(group.total.plan(batch))
    answer = group.total(batch)

print("\n  row           total  answered by rank")
for row, total, rank in zip(batch.tensor("x"), answer.tensor("total"), answer.tensor("rank"), strict=True):
    print(f"  {row.tolist()!s:<16}  {total:>2}  {rank:>16}")
