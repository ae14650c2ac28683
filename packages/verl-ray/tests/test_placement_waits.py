"""A reservation that cannot happen ends in time, says why, and leaves nothing behind."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import ray
from ray.util.placement_group import PlacementGroup
from verl_ray.errors import AcceleratorNotOffered, PlacementTimeout, ResourceUnavailable
from verl_ray.pools import cluster, placement
from verl_ray.pools.cluster import PlacementProgress, placement_progress
from verl_ray.pools.feasibility import Need
from verl_ray.pools.placement import placement_options
from verl_ray.pools.pool import RayResourcePool

Resources = Callable[[], dict[str, float]]

pytestmark = pytest.mark.usefixtures("shared_ray")


def test_too_much_for_the_cluster_is_said_with_needed_and_there() -> None:
    started = time.monotonic()
    with pytest.raises(ResourceUnavailable) as caught:
        RayResourcePool([3], use_gpu=False, max_colocate_count=4, timeout_s=1).get_placement_groups()
    assert time.monotonic() - started < 30  # of the 300 that a pool waits by itself
    assert "has CPU 8, needs 12" in str(caught.value)
    assert "STRICT_PACK" in str(caught.value)
    with RayResourcePool([2], use_gpu=False, max_colocate_count=4, timeout_s=5) as fits:
        assert fits.get_placement_groups()


@pytest.mark.parametrize(("use_gpu", "resource"), [(False, "CPU"), (True, "GPU")], ids=["CPUs", "GPUs"])
def test_too_much_for_a_cluster_of_ones_own_is_said_at_once(use_gpu: bool, resource: str) -> None:
    started = time.monotonic()
    with pytest.raises(PlacementTimeout, match=f"the cluster is too small: .*{resource}.*64"):
        RayResourcePool([64], use_gpu=use_gpu).slots()
    assert time.monotonic() - started < 15  # of the 30 that a cluster of others gets


def test_too_much_for_what_is_free_is_said_as_such_and_reserves_no_part(free_resources: Resources) -> None:
    with RayResourcePool([5], use_gpu=False) as busy:
        busy.slots()
        with pytest.raises(PlacementTimeout, match=r"not what is free now: .*do not fit together.*CPU 3"):
            RayResourcePool([2, 2], use_gpu=False, timeout_s=1).slots()
        assert free_resources()["CPU"] == 3.0


def test_an_accelerator_that_no_node_has_is_named_with_those_there_are() -> None:
    with pytest.raises(AcceleratorNotOffered, match=r"no node offers 'TPU' .*CPU, GPU, NPU") as caught:
        RayResourcePool([1], accelerator="TPU", timeout_s=1).get_placement_groups()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, ResourceUnavailable)


def test_labels_that_no_node_has_are_part_of_the_answer() -> None:
    with pytest.raises(PlacementTimeout, match=r"on nodes with \{'zone': 'moon'\}.*no usable node"):
        RayResourcePool([1], use_gpu=False, label_selector={"zone": "moon"}, timeout_s=1).slots()


def test_waiting_is_logged_and_ends_when_room_comes(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "_FIRST_REPORT_S", 0.2)
    busy = RayResourcePool([8], use_gpu=False)
    busy.slots()

    def shut_down_once_told() -> None:
        while "still waiting" not in caplog.text:
            time.sleep(0.05)
        busy.shutdown()

    with (
        caplog.at_level(logging.WARNING, "verl_ray"),
        ThreadPoolExecutor(1) as thread,
        RayResourcePool([2], use_gpu=False, timeout_s=60) as late,
    ):
        freed = thread.submit(shut_down_once_told)
        assert len(late.slots()) == 2
        freed.result()
    assert "still waiting for processes [2] with CPU 1 each" in caplog.text
    assert "has CPU 0, needs 2" in caplog.text


def test_an_interrupted_wait_removes_nothing_that_ray_still_makes(
    monkeypatch: pytest.MonkeyPatch, free_resources: Resources
) -> None:
    removed: list[str] = []

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def remove(group: PlacementGroup) -> None:
        removed.append(placement_progress(group).state)
        ray.util.remove_placement_group(group)

    monkeypatch.setattr(placement, "_wait_until_ready", interrupt)
    monkeypatch.setattr(placement, "remove_placement_group", remove)
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            RayResourcePool([2, 2], use_gpu=False).slots()
        assert free_resources()["CPU"] == 8.0
    assert removed == ["CREATED"] * 6


def test_what_may_stay_taken_is_said(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = RayResourcePool([1], use_gpu=False)
    (group,) = pool.get_placement_groups()
    monkeypatch.setattr(
        cluster, "placement_progress", lambda _: PlacementProgress("PREPARED", "NO_RESOURCES", 1)
    )
    monkeypatch.setattr(placement, "_SETTLE_WITHIN_S", 0.1)
    pool.shutdown()
    assert f"placement group {group.id.hex()} was removed, but Ray may keep" in caplog.text
    assert "[{'CPU': 1.0}]" in caplog.text


IN_ONE_DOMAIN = Need((2,), {"CPU": 1}, "PACK", topology_strategy={"ray.io/gpu-domain": "STRICT_PACK"})


def test_a_ray_without_an_option_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "placement_option_supported", lambda option: option != "topology_strategy")
    with pytest.raises(ValueError, match=f"ray {ray.__version__} .* topology_strategy="):
        placement_options(IN_ONE_DOMAIN, 2, "name", detached=False)


def test_a_topology_takes_the_place_of_the_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "placement_option_supported", lambda option: True)
    options = placement_options(IN_ONE_DOMAIN, 2, "name", detached=False)
    assert options["topology_strategy"] == {"ray.io/node-id": "PACK", "ray.io/gpu-domain": "STRICT_PACK"}
    assert "strategy" not in options
