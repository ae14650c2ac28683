"""Who is who in a group: ranks over slots, and torchrun's variables for each. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

from verl_dispatch.rank_info import RankInfo

from verl_ray.rendezvous import Rendezvous

__all__ = ["local_ranks", "rank_env", "rank_infos"]


def local_ranks(nodes: Sequence[Hashable]) -> list[tuple[int, int]]:
    """`(local rank, local world size)` of each rank, from what stands for the node of each rank.

    >>> local_ranks(["a", "a", "b"])
    [(0, 2), (1, 2), (0, 1)]
    """
    sizes = Counter(nodes)
    seen: Counter[Hashable] = Counter()
    answer = []
    for node in nodes:
        answer.append((seen[node], sizes[node]))
        seen[node] += 1
    return answer


def rank_infos(
    nodes: Sequence[Hashable],
    rendezvous: Rendezvous,
    *,
    group_prefix: str = "",
    backend: str = "ray",
    device_indices: Sequence[int | None] | None = None,
) -> tuple[RankInfo, ...]:
    """The identity of every rank of a group.

    Args:
        nodes: for each rank what stands for its node, such as `slot.node_key`.
        device_indices: for each rank the index of its device among those it sees, None on CPU.
    """
    devices = device_indices if device_indices is not None else [None] * len(nodes)
    return tuple(
        RankInfo(
            rank=rank,
            world_size=len(nodes),
            local_rank=local_rank,
            local_world_size=local_world_size,
            master_addr=rendezvous.address,
            master_port=str(rendezvous.port),
            group_prefix=group_prefix,
            backend=backend,
            device_index=device,
        )
        for rank, ((local_rank, local_world_size), device) in enumerate(
            zip(local_ranks(nodes), devices, strict=True)
        )
    )


def rank_env(info: RankInfo) -> dict[str, str]:
    """The environment variables of one rank: the same that torchrun sets, and the group's own.

    >>> info, = rank_infos(["a"], Rendezvous("10.0.0.1", 29500), group_prefix="actor")
    >>> [rank_env(info)[name] for name in ("RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "WG_PREFIX")]
    ['0', '1', '29500', 'actor']
    """
    return info.environment()
