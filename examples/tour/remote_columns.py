"""Remote columns: large columns stay where they were made; the driver holds a batch that names them."""

import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register
from verl_protocol import DataProto


class Policy(Worker):
    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO, remote=True)
    def generate(self, batch: DataProto) -> DataProto:
        tokens = batch.tensor("prompt").repeat(1, 50_000)
        return DataProto.from_dict(tensors={"tokens": tokens, "prompt": batch.tensor("prompt")})

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def score(self, batch: DataProto) -> DataProto:
        return DataProto.from_dict(tensors={"score": batch.tensor("tokens").float().mean(dim=1)})


prompts = DataProto.from_dict(tensors={"prompt": torch.arange(4)[:, None]})
with LocalWorkerGroup(Policy, 2) as group:
    batch = group.generate(prompts)
    print(batch)
    best = batch[[3, 2]].union(group.score(batch[[3, 2]]))  # names other rows; fetches nothing

    print("\n  column  where")
    for key in ("tokens", "prompt", "score"):
        print(f"  {key:<6}  {'with the workers' if key in best.remote_keys else 'here'}")
    print("\nscores", best.tensor("score").tolist(), "of", best.tensor("tokens").shape)
