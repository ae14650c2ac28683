"""Futures between two groups: what one group makes goes to the other, of another size, past the driver."""

import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register
from verl_protocol import DataProto


class Writer(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, blocking=False)
    def write(self, batch: DataProto) -> DataProto:
        writers = torch.full((len(batch),), self.rank)
        return DataProto.from_dict(tensors={"text": batch.tensor("x") * 10, "writer": writers})


class Judge(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def judge(self, batch: DataProto) -> DataProto:
        judges = torch.full((len(batch),), self.rank)
        return DataProto.from_dict(tensors={**batch.tensors(), "judge": judges})


with (
    LocalWorkerGroup(Writer, 2, concurrent=True) as writers,
    LocalWorkerGroup(Judge, 3, concurrent=True) as judges,
):
    future = writers.write(DataProto.from_dict(tensors={"x": torch.arange(6)}))
    print("at once:", future)
    answer = judges.judge(future)

print("\n  text  written by rank  judged by rank")
for text, writer, judge in zip(*(answer.tensor(key) for key in ("text", "writer", "judge")), strict=True):
    print(f"  {text:>4}  {writer:>15}  {judge:>14}")
