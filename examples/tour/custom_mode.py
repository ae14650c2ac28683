"""A dispatch mode of one's own: items are dealt like cards, and come back in the order of the deck."""

from typing import Any

from verl_dispatch import LocalWorkerGroup, Worker, register, register_dispatch_mode


def deal(group: Any, items: list[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """One list of arguments per parameter, one entry per rank."""
    return ([items[rank :: group.world_size] for rank in range(group.world_size)],), {}


def gather(group: Any, answers: list[list[Any]]) -> list[Any]:
    """The answers in rank order, put back in the order of the items."""
    gathered: list[Any] = [None] * sum(map(len, answers))
    for rank, hand in enumerate(answers):
        gathered[rank :: group.world_size] = hand
    return gathered


Deal = register_dispatch_mode("DEAL", deal, gather)


class Player(Worker):
    @register(dispatch_mode=Deal)
    def play(self, cards: list[str]) -> list[str]:
        return [f"{card} by rank {self.rank}" for card in cards]


with LocalWorkerGroup(Player, 3) as group:
    deck = list("ABCDEFG")
    for call in group.play.plan(deck):
        print(f"rank {call.rank} is dealt {' '.join(call.args[0])}")
    print("\n" + "\n".join(f"  {played}" for played in group.play(deck)))
