"""A group in this process: a breakpoint in a worker's method stops in your own terminal.

`PYTHONBREAKPOINT=0` runs on; in the debugger try `p self.rank, batch`, and `c` to go to the next rank.
"""

import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register
from verl_protocol import DataProto


class Scorer(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def score(self, batch: DataProto) -> DataProto:
        scores = batch.tensor("x") ** 2
        breakpoint()
        ranks = torch.full((len(batch),), self.rank)
        return DataProto.from_dict(tensors={"score": scores, "rank": ranks})


with LocalWorkerGroup(Scorer, 3) as group:
    batch = DataProto.from_dict(tensors={"x": torch.arange(6)})
    print(group.score.plan(batch))
    answer = group.score(batch)

print("\n  x  score  by rank")
for x, score, rank in zip(range(6), answer.tensor("score"), answer.tensor("rank"), strict=True):
    print(f"  {x}  {score:>5}  {rank:>7}")
