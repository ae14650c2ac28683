"""torchrun's variables for each rank of even and uneven groups."""

from __future__ import annotations

import pytest
from verl_ray.pools.ordering import local_ranks
from verl_ray.worker.environment import rank_env, rank_infos
from verl_ray.worker.rendezvous import Rendezvous

MEETING = Rendezvous("10.0.0.1", 29500)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ("aab", [("0", "2"), ("1", "2"), ("0", "1")]),
        ("abb", [("0", "1"), ("0", "2"), ("1", "2")]),
        ("aabb", [("0", "2"), ("1", "2"), ("0", "2"), ("1", "2")]),
        ("a", [("0", "1")]),
    ],
)
def test_local_numbers_are_those_of_the_own_node(nodes: str, expected: list[tuple[str, str]]) -> None:
    envs = [rank_env(info) for info in rank_infos(list(nodes), MEETING)]
    assert [(env["LOCAL_RANK"], env["LOCAL_WORLD_SIZE"]) for env in envs] == expected
    assert [env["RANK"] for env in envs] == [str(rank) for rank in range(len(nodes))]
    assert {env["WORLD_SIZE"] for env in envs} == {str(len(nodes))}


def test_all_variables_of_torchrun_and_of_the_group_are_there_and_strings() -> None:
    env = rank_env(rank_infos(["a"], MEETING, group_prefix="actor", backend="ray")[0])
    assert env == {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "RAY_LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "WG_PREFIX": "actor",
        "WG_BACKEND": "ray",
    }


def test_the_device_index_is_not_the_local_rank() -> None:
    infos = rank_infos(["a", "a"], MEETING, device_indices=[3, None])
    assert [(info.local_rank, info.device_index) for info in infos] == [(0, 3), (1, None)]


def test_local_ranks_of_nodes_that_come_back() -> None:
    assert local_ranks(["a", "b", "a"]) == [(0, 2), (0, 1), (1, 2)]
