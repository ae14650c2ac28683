"""Failure and restart on Ray: a worker dies, the error says who, a restart makes all of them anew."""

import os

from verl_dispatch import Dispatch, Worker, WorkerGroupError, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Fragile(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def work(self, rank_that_dies: int | None = None) -> str:
        if self.rank == rank_that_dies:
            os._exit(1)
        return f"rank {self.rank} done"


if __name__ == "__main__":
    fragile = RayClassWithInitArgs(Fragile)
    print("  generation  what happens")
    with RayResourcePool([2], use_gpu=False) as pool, RayWorkerGroup(pool, fragile) as group:
        print(f"  {group.generation:>10}  {group.work()}")
        try:
            group.work(1)
        except WorkerGroupError as error:
            cause = type(error.errors[1].cause).__name__
            print(f"  {group.generation:>10}  {cause} in {error.method} of rank {error.failed_ranks[0]}")
        if not group.is_usable:
            print(f"  {group.generation:>10}  refused until restart() or shutdown()")
        group.restart()
        print(f"  {group.generation:>10}  {group.work()}")
