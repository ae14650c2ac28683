"""Colocated roles on Ray: actor and critic share each process, and so its memory and device."""

import os

from verl_dispatch import Dispatch, Worker, register
from verl_ray import RayClassWithInitArgs, RayResourcePool, RayWorkerGroup, create_colocated_worker_cls


class Actor(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def write(self, word: str) -> tuple[str, int]:
        return word * (self.rank + 1), os.getpid()


class Critic(Worker):
    @register(dispatch_mode=Dispatch.ALL_TO_ALL)
    def judge(self, text: str) -> tuple[int, int]:
        return len(text), os.getpid()


if __name__ == "__main__":
    both = create_colocated_worker_cls(
        {"actor": RayClassWithInitArgs(Actor), "critic": RayClassWithInitArgs(Critic)}
    )
    with RayResourcePool([2], use_gpu=False) as pool, RayWorkerGroup(pool, both) as group:
        actor, critic = group.role("actor", Actor), group.role("critic", Critic)
        written = actor.write("ha")
        judged = critic.judge([text for text, _ in written])

    print("  rank  text  value  in one process")
    for rank, ((text, one), (value, other)) in enumerate(zip(written, judged, strict=True)):
        print(f"  {rank:>4}  {text:<4}  {value:>5}  {one == other}")
