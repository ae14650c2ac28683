"""Streaming answers: each is there as soon as its rank has it, the slowest holds up nobody."""

import time

from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register


class Rollout(Worker):
    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def generate(self, tokens: int) -> str:
        time.sleep(tokens / 100)
        return "#" * tokens


with LocalWorkerGroup(Rollout, 4, concurrent=True) as group:
    print("  rank  tokens, as the answers come")
    for rank, answer in group.generate.stream([28, 4, 20, 12]):
        print(f"  {rank:>4}  {answer}")
