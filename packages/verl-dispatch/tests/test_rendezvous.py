"""Ranks in threads meet, get equal bits, and never wait for one that cannot come."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from verl_dispatch.errors import CollectiveError
from verl_dispatch.local.collectives import LocalProcessGroup, Rendezvous, Seat
from verl_dispatch.workers.collectives import ProcessGroup, ReduceOp
from verl_protocol import DataProto, all_gather_data_proto

pytestmark = pytest.mark.timeout(30)


def meet(world_size: int, body: Callable[[ProcessGroup], Any], absent: tuple[int, ...] = ()) -> list[Any]:
    """Run `body` on every rank; the value or the exception of each."""
    present = [rank for rank in range(world_size) if rank not in absent]
    rendezvous = Rendezvous(world_size, "step", present)

    def run(rank: int) -> Any:
        seat = Seat()
        seat.rendezvous = rendezvous
        try:
            value = body(LocalProcessGroup(rank, world_size, seat))
        except Exception as error:
            rendezvous.leave(rank, error)
            return error
        rendezvous.leave(rank)
        return value

    with ThreadPoolExecutor(len(present)) as threads:
        return list(threads.map(run, present))


@pytest.mark.parametrize(
    ("op", "expected"), [("sum", 6.0), ("mean", 2.0), ("max", 3.0), ("min", 1.0), ("product", 6.0)]
)
def test_all_reduce(op: ReduceOp, expected: float) -> None:
    def body(group: ProcessGroup) -> list[float]:
        tensor = torch.full((2,), group.rank + 1.0)
        assert group.all_reduce(tensor, op) is tensor
        return tensor.tolist()

    assert meet(3, body) == [[expected] * 2] * 3


def test_many_rounds_give_every_rank_the_same_bits() -> None:
    def body(group: ProcessGroup) -> torch.Tensor:
        generator = torch.Generator().manual_seed(group.rank)
        tensor = torch.randn(64, generator=generator)
        for _ in range(50):
            group.all_reduce(tensor, "mean")
            tensor += group.rank
        return group.all_reduce(tensor)

    first, *others = meet(4, body)
    assert all(torch.equal(first, other) for other in others)


def test_all_gather_gives_each_rank_its_own_copies_in_rank_order() -> None:
    def body(group: ProcessGroup) -> list[list[int]]:
        mine = torch.tensor([group.rank])
        parts = group.all_gather(mine)
        mine.fill_(99)
        group.barrier()
        parts[0].add_(10 * group.rank)
        group.barrier()
        return [part.tolist() for part in parts]

    assert meet(3, body) == [[[0], [1], [2]], [[10], [1], [2]], [[20], [1], [2]]]


def test_objects_of_all_ranks_are_copies() -> None:
    def body(group: ProcessGroup) -> Any:
        mine: dict[str, Any] = {"rank": group.rank, "weights": [torch.ones(2) * group.rank]}
        parts = group.all_gather_object(mine)
        mine["weights"].clear()
        group.barrier()
        return [(part["rank"], float(part["weights"][0].sum())) for part in parts]

    assert meet(3, body) == [[(0, 0.0), (1, 2.0), (2, 4.0)]] * 3


def test_batches_of_all_ranks() -> None:
    def body(group: ProcessGroup) -> Any:
        data = DataProto.from_dict({"i": torch.arange(group.rank + 1) + 10 * group.rank})
        all_gather_data_proto(data, group)
        return data.tensor("i").tolist()

    assert meet(2, body) == [[0, 10, 11]] * 2


def test_broadcast_from_any_rank_overwrites_in_place() -> None:
    def body(group: ProcessGroup) -> int:
        tensor = torch.tensor(group.rank)
        group.broadcast(tensor, source=2)
        return int(tensor)

    assert meet(3, body) == [2, 2, 2]


def test_gradients_that_require_grad_can_be_reduced() -> None:
    def body(group: ProcessGroup) -> list[float]:
        weight = torch.nn.Parameter(torch.ones(2))
        group.broadcast(weight)
        torch.autograd.backward((weight * (group.rank + 1)).sum())
        gradient = weight.grad
        assert gradient is not None
        return group.all_reduce(gradient, "mean").tolist()

    assert meet(2, body) == [[1.5, 1.5]] * 2


def test_barrier_waits_for_the_last_rank() -> None:
    arrived: list[int] = []
    lock = threading.Lock()

    def body(group: ProcessGroup) -> int:
        if group.rank == 1:
            threading.Event().wait(0.1)
        with lock:
            arrived.append(group.rank)
        group.barrier()
        return len(arrived)

    assert meet(3, body) == [3, 3, 3]


def test_a_rank_that_fails_ends_the_wait_of_the_others() -> None:
    def body(group: ProcessGroup) -> None:
        if group.rank == 1:
            raise KeyError("boom")
        group.barrier()

    first, failing, last = meet(3, body)
    assert isinstance(failing, KeyError)
    for error in (first, last):
        assert isinstance(error, CollectiveError)
        assert "barrier in 'step' cannot be finished: rank 1 failed with KeyError: 'boom'" in str(error)


def test_a_rank_that_returns_early_ends_the_wait_of_the_others() -> None:
    def body(group: ProcessGroup) -> str:
        if group.rank == 0:
            group.barrier()
        return "done"

    waiting, done = meet(2, body)
    assert done == "done"
    assert isinstance(waiting, CollectiveError)
    assert "rank 1 returned without joining it" in str(waiting)


def test_a_rank_that_was_not_called_is_not_waited_for() -> None:
    [error] = meet(2, lambda group: group.barrier(), absent=(1,))
    assert isinstance(error, CollectiveError)
    assert "rank 1 was not called" in str(error)


def test_ranks_out_of_step_are_told_so() -> None:
    def body(group: ProcessGroup) -> None:
        if group.rank == 0:
            group.barrier()
        else:
            group.all_reduce(torch.ones(3))

    for error in meet(2, body):
        assert isinstance(error, CollectiveError)
        assert "out of step" in str(error)
        assert "all_reduce" in str(error)
        assert "barrier" in str(error)


def test_shapes_that_differ_are_out_of_step() -> None:
    errors = meet(2, lambda group: group.all_reduce(torch.ones(group.rank + 1)))
    assert all(isinstance(error, CollectiveError) and "(2,)" in str(error) for error in errors)


def test_giving_up_ends_every_wait() -> None:
    rendezvous = Rendezvous(2, "step", [0, 1])
    seat = Seat()
    seat.rendezvous = rendezvous
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(LocalProcessGroup(0, 2, seat).barrier)
        rendezvous.abort("the group was shut down")
        with pytest.raises(CollectiveError, match="the group was shut down"):
            waiting.result()


def test_outside_a_call_there_is_nobody_to_meet() -> None:
    with pytest.raises(CollectiveError, match=r"barrier on rank 1 .* no call"):
        LocalProcessGroup(1, 2, Seat()).barrier()


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "all_gather_object", "broadcast", "barrier"])
def test_a_rank_that_runs_alone_raises_instead_of_waiting(name: str) -> None:
    group = LocalProcessGroup(0, 2, Seat("ranks run one after the other; use concurrent=True"))
    arguments = [] if name == "barrier" else [torch.ones(1)]
    with pytest.raises(CollectiveError, match=f"{name} on rank 0 .* concurrent=True"):
        getattr(group, name)(*arguments)


def test_a_group_of_one_needs_nobody() -> None:
    group = LocalProcessGroup(0, 1, Seat())
    tensor = torch.tensor([2.0])
    assert group.all_reduce(tensor, "mean").tolist() == [2.0]
    [gathered] = group.all_gather(tensor)
    assert gathered.tolist() == [2.0]
    assert gathered.data_ptr() != tensor.data_ptr()
    assert group.broadcast(tensor) is tensor
    group.barrier()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda group: group.all_reduce(torch.ones(1), "average"), "op='average'.*sum, mean"),
        (lambda group: group.broadcast(torch.ones(1), 2), "source=2.*0 to 1"),
        (lambda group: group.broadcast(torch.ones(1), -1), "source=-1"),
        (lambda group: group.broadcast(torch.ones(1), "0"), "source='0'.*0 to 1"),
        (lambda group: group.broadcast([1], 0), r"tensor=\[1\], expected a tensor"),
        (lambda group: group.all_reduce(3), "tensor=3, expected a tensor"),
        (lambda group: group.all_gather(None), "tensor=None, expected a tensor; all_gather_object"),
    ],
)
def test_arguments_are_checked_before_anybody_waits(
    call: Callable[[ProcessGroup], Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        call(LocalProcessGroup(0, 2, Seat()))
