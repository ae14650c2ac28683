"""Named meshes: from sizes, from a DeviceMesh, from registration; checked once, with the whole table."""

from types import SimpleNamespace

import pytest
import torch
from verl_dispatch import Mesh
from verl_dispatch.errors import MeshError


@pytest.mark.parametrize(
    ("sizes", "dp_ranks", "answering"),
    [
        ({"dp": 4}, (0, 1, 2, 3), (0, 1, 2, 3)),
        ({"dp": 2, "tp": 2}, (0, 0, 1, 1), (0, 2)),
        ({"tp": 2, "dp": 2}, (0, 1, 0, 1), (0, 1)),
        ({"pp": 2, "dp": 2, "tp": 2}, (0, 0, 1, 1, 0, 0, 1, 1), (0, 2)),
        ({"tp": 2, "dp": 1}, (0, 0), (0,)),
    ],
)
def test_axis_order_decides_who_shares_rows(
    sizes: dict[str, int], dp_ranks: tuple[int, ...], answering: tuple[int, ...]
) -> None:
    mesh = Mesh.from_sizes("m", sizes)
    assert mesh.dp_ranks == dp_ranks
    assert mesh.answering_ranks == answering
    assert mesh.world_size == len(dp_ranks)
    assert mesh.dp_size == sizes["dp"]
    assert mesh.axes == sizes


def test_the_last_pipeline_stage_may_answer() -> None:
    mesh = Mesh.from_sizes("m", {"pp": 2, "dp": 2, "tp": 2}, answering={"pp": -1})
    assert mesh.answering_ranks == (4, 6)


def test_rows_may_be_split_over_several_axes() -> None:
    mesh = Mesh.from_sizes("m", {"dp": 2, "cp": 2, "ep": 2}, split_axes=("dp", "ep"))
    assert mesh.dp_ranks == (0, 1, 0, 1, 2, 3, 2, 3)
    assert mesh.answering_ranks == (0, 1, 4, 5)


def test_sizes_with_unknown_axes_or_no_ranks_are_refused() -> None:
    with pytest.raises(MeshError, match=r"mesh 'm': there is no axis 'dp'\naxes: tp=2"):
        Mesh.from_sizes("m", {"tp": 2})
    with pytest.raises(MeshError, match="at least 1"):
        Mesh.from_sizes("m", {"dp": 0})
    with pytest.raises(MeshError, match="no axis 'pp'"):
        Mesh.from_sizes("m", {"dp": 2}, answering={"pp": -1})


def device_mesh(ranks: list[list[int]], names: tuple[str, ...] | None) -> SimpleNamespace:
    """What a torch DeviceMesh shows of itself; making a real one needs a process group."""
    return SimpleNamespace(mesh=torch.tensor(ranks), mesh_dim_names=names)


def test_a_device_mesh_gives_the_mesh_of_its_ranks() -> None:
    mesh = Mesh.from_device_mesh("m", device_mesh([[0, 2], [1, 3]], ("dp", "tp")))
    assert mesh.dp_ranks == (0, 1, 0, 1)
    assert mesh.answering_ranks == (0, 1)
    assert mesh.axes == {"dp": 2, "tp": 2}


def test_a_device_mesh_without_names_or_with_holes_is_refused() -> None:
    with pytest.raises(MeshError, match="no mesh_dim_names"):
        Mesh.from_device_mesh("m", device_mesh([[0, 1]], None))
    with pytest.raises(MeshError, match=r"covers ranks \[0, 5\], not 0..1"):
        Mesh.from_device_mesh("m", device_mesh([[0, 5]], ("tp", "dp")))


@pytest.mark.parametrize(
    ("dp_ranks", "collects", "problem"),
    [
        ([0, 0, 2, 2], [True, False, True, False], "exactly 0..k-1"),
        ([0, 0, 1, 1], [True, True, True, False], r"dp rank 0 .* exactly one answering rank, got \[0, 1\]"),
        ([0, 0, 1, 1], [True, False, False, False], "dp rank 1 .* exactly one answering rank, got none"),
        ([0, 0, 1, 1], [False] * 4, "dp rank 0 .* got none"),
        ([-1, 0, 0, 1], [True, True, False, True], "exactly 0..k-1"),
        ([0, 1, None, 1], [True, True, None, False], r"ranks \[2\] have not registered"),
        ([0, 1], [True, True], "it is of 2 ranks .* but the group has 4 workers"),
    ],
)
def test_a_table_that_is_no_mesh_is_refused_with_the_whole_table(
    dp_ranks: list[int | None], collects: list[bool | None], problem: str
) -> None:
    with pytest.raises(ValueError, match=f"mesh 'm'.*{problem}") as caught:
        Mesh.from_registration("m", dp_ranks, collects, world_size=4)
    for rank, (dp, flag) in enumerate(zip(dp_ranks, collects, strict=True)):
        assert f"rank {rank} -> dp rank {dp}, collect {flag}" in str(caught.value)


def test_answers_come_in_dp_order_whatever_the_rank_order() -> None:
    assert Mesh("m", (1, 0, 1, 0), (True, False, False, True)).answering_ranks == (3, 0)
