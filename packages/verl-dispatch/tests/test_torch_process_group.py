"""torch.distributed behind the same four collectives, in processes of their own."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from verl_dispatch.errors import CollectiveError
from verl_dispatch.workers.rank import RankInfo, free_port
from verl_dispatch.workers.torch_collectives import TorchProcessGroup

PROGRAM = textwrap.dedent(
    """
    import sys, torch
    import verl_dispatch.workers.collectives, verl_dispatch.workers.rank
    from verl_dispatch.workers.torch_collectives import TorchProcessGroup
    from verl_dispatch.workers.rank import RankInfo

    rank, port, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    group = TorchProcessGroup(RankInfo(rank, 2, master_addr="127.0.0.1", master_port=port), timeout_s=60)
    mean = torch.tensor([[1.0, 5.0], [rank * 2.0, 0.0]]).t()
    group.all_reduce(mean, "mean")
    gathered = group.all_gather(torch.tensor([rank]))
    objects = group.all_gather_object({"rank": rank})
    source = group.broadcast(torch.tensor(rank + 7), source=1)
    group.barrier()
    group.destroy()
    again = group.all_reduce(torch.tensor(rank + 1), "product")
    group.destroy()
    with open(out, "w") as file:
        file.write(repr([mean.tolist(), [int(g) for g in gathered], objects, int(source), int(again)]))
    """
)


@pytest.mark.timeout(120)
def test_two_processes_meet(tmp_path: Path) -> None:
    port = str(free_port("127.0.0.1"))
    outs = [tmp_path / f"out{rank}" for rank in range(2)]
    processes = [
        subprocess.Popen([sys.executable, "-W", "ignore", "-c", PROGRAM, str(rank), port, str(outs[rank])])
        for rank in range(2)
    ]
    try:
        assert [process.wait(timeout=100) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    expected = repr([[[1.0, 1.0], [5.0, 0.0]], [0, 1], [{"rank": 0}, {"rank": 1}], 8, 2])
    assert [out.read_text() for out in outs] == [expected, expected]


def test_without_an_address_it_says_what_is_missing() -> None:
    with pytest.raises(CollectiveError, match="MASTER_ADDR and MASTER_PORT are not set"):
        TorchProcessGroup(RankInfo(0, 2)).barrier()
