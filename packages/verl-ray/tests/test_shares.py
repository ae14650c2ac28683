"""Who is on a slot: counted per slot, whatever pool looks at it."""

from __future__ import annotations

import gc

import pytest
from verl_ray.errors import PoolFull, ResourceUnavailable
from verl_ray.pools.shares import Share, ShareLedger, SlotKey, demand_of_options, share_of

SLOTS = [("group", 0), ("group", 1)]


def _take(
    ledger: ShareLedger, owner: str, limit: int, cpus: float = 0.0, slots: list[SlotKey] = SLOTS
) -> Share:
    return ledger.take("pool", owner, {slot: {"CPU": 1.0} for slot in slots}, {"CPU": cpus}, limit)


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
def test_exactly_as_many_groups_as_the_limit_fit(limit: int) -> None:
    ledger = ShareLedger()
    share = share_of(1, limit)
    taken = [_take(ledger, f"g{n}", limit, share) for n in range(limit)]
    with pytest.raises(PoolFull, match=f"'pool' is full: {limit} of {limit} shares are taken by g0"):
        _take(ledger, "late", limit, share)
    taken[0].release()
    _take(ledger, "late", limit, share)


def test_a_refused_group_leaves_nothing_behind() -> None:
    ledger = ShareLedger()
    kept = _take(ledger, "one", 1, slots=SLOTS[1:])
    with pytest.raises(PoolFull):
        _take(ledger, "two", 1)
    assert ledger.owners(SLOTS) == [kept.owner] == ["one"]
    _take(ledger, "three", 1, slots=SLOTS[:1])


def test_what_a_slot_has_left_is_counted_too() -> None:
    ledger = ShareLedger()
    kept = _take(ledger, "one", 10, 0.75)
    with pytest.raises(ResourceUnavailable, match=r"rank 0 asks CPU 0\.5, its slot has 0\.25 of 1 left"):
        _take(ledger, "two", 10, 0.5)
    with _take(ledger, "three", 10, 0.25):
        assert ledger.owners(SLOTS) == [kept.owner, "three"]


def test_a_resource_that_the_slot_does_not_have_is_refused() -> None:
    with pytest.raises(ResourceUnavailable, match="asks GPU 1, its slot has 0 of 0"):
        ShareLedger().take("pool", "one", {SLOTS[0]: {"CPU": 1}}, {"GPU": 1}, 10)


def test_a_share_goes_back_once_by_release_block_or_garbage_collection() -> None:
    ledger = ShareLedger()
    share = _take(ledger, "one", 1)
    share.release()
    share.release()
    assert share.released
    with _take(ledger, "two", 1) as share:
        assert ledger.owners(SLOTS) == ["two"]
    dropped = _take(ledger, "three", 1)
    del dropped
    gc.collect()
    assert ledger.owners(SLOTS) == []


def test_actor_options_as_resources() -> None:
    assert demand_of_options({}) == {}
    assert demand_of_options({"num_cpus": 0, "num_gpus": None, "resources": None}) == {}
    options = {"num_cpus": 2, "num_gpus": 0.5, "resources": {"NPU": 1}}
    assert demand_of_options(options) == {"CPU": 2, "GPU": 0.5, "NPU": 1}
