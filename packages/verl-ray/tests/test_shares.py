"""Who is on a slot: counted per slot, whatever pool looks at it."""

from __future__ import annotations

import gc

import pytest
from verl_ray.errors import PoolFull, ResourceUnavailable
from verl_ray.pools.shares import Claim, Share, ShareLedger, demand_of_options, share_of

SLOTS = [("group", 0), ("group", 1)]


def _claims(slots: list[tuple[str, int]], cpus: float = 0.0, total: float = 1.0) -> list[Claim]:
    return [Claim(rank, slot, {"CPU": total}, {"CPU": cpus}) for rank, slot in enumerate(slots)]


@pytest.mark.parametrize("limit", [1, 2, 3, 6, 7])
def test_exactly_as_many_groups_as_the_limit_fit(limit: int) -> None:
    ledger = ShareLedger()
    share = share_of(1, limit)
    tickets = [ledger.take("pool", f"g{n}", _claims(SLOTS, share), limit) for n in range(limit)]
    with pytest.raises(PoolFull, match=f"'pool' is full: {limit} of {limit} shares are taken by g0"):
        ledger.take("pool", "late", _claims(SLOTS, share), limit)
    ledger.give_back(tickets[0])
    ledger.take("pool", "late", _claims(SLOTS, share), limit)


def test_a_refused_group_leaves_nothing_behind() -> None:
    ledger = ShareLedger()
    ledger.take("pool", "one", _claims(SLOTS[1:]), 1)
    with pytest.raises(PoolFull):
        ledger.take("pool", "two", _claims(SLOTS), 1)
    assert ledger.owners(SLOTS) == ["one"]
    ledger.take("pool", "three", _claims(SLOTS[:1]), 1)


def test_what_a_slot_has_left_is_counted_too() -> None:
    ledger = ShareLedger()
    ledger.take("pool", "one", _claims(SLOTS, 0.75), 10)
    with pytest.raises(ResourceUnavailable, match=r"rank 0 asks CPU 0\.5, its slot has 0\.25 of 1 left"):
        ledger.take("pool", "two", _claims(SLOTS, 0.5), 10)
    ledger.take("pool", "three", _claims(SLOTS, 0.25), 10)


def test_a_resource_that_the_slot_does_not_have_is_refused() -> None:
    claim = Claim(0, SLOTS[0], {"CPU": 1}, {"GPU": 1})
    with pytest.raises(ResourceUnavailable, match="asks GPU 1, its slot has 0 of 0"):
        ShareLedger().take("pool", "one", [claim], 10)


def test_a_share_goes_back_once_by_release_block_or_garbage_collection() -> None:
    ledger = ShareLedger()
    share = Share(ledger, ledger.take("pool", "one", _claims(SLOTS), 1), "one")
    share.release()
    share.release()
    assert share.released
    with Share(ledger, ledger.take("pool", "two", _claims(SLOTS), 1), "two") as share:
        assert ledger.owners(SLOTS) == ["two"]
    dropped = Share(ledger, ledger.take("pool", "three", _claims(SLOTS), 1), "three")
    del dropped
    gc.collect()
    assert ledger.owners(SLOTS) == []


def test_actor_options_as_resources() -> None:
    assert demand_of_options({}) == {}
    assert demand_of_options({"num_cpus": 0, "num_gpus": None, "resources": None}) == {}
    options = {"num_cpus": 2, "num_gpus": 0.5, "resources": {"NPU": 1}}
    assert demand_of_options(options) == {"CPU": 2, "GPU": 0.5, "NPU": 1}
