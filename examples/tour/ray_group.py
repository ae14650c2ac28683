"""The same on Ray: a pool reserves places, the group starts a process in each, a call goes to all."""

import os

from verl_dispatch import Dispatch, Worker, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup


class Greeter(Worker):
    def __init__(self, word: str) -> None:
        super().__init__()
        self.word = word

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def greet(self, name: str) -> tuple[str, int]:
        return f"{self.word}, {name}", os.getpid()


if __name__ == "__main__":
    greeters = RayClassWithInitArgs(Greeter, "Hello")
    with RayResourcePool([2], use_gpu=False) as pool, RayWorkerGroup(pool, greeters) as group:
        answers = group.greet("Ada")

    print("  rank  answer      in a process of its own")
    for rank, (text, pid) in enumerate(answers):
        print(f"  {rank:>4}  {text:<10}  {pid != os.getpid()}")
