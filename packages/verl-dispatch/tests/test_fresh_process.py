"""What only a process of its own can show: what an import brings along, and modes where nobody made them.

All in one program: starting one, and importing torch, takes seconds.
"""

import json
import pickle
import subprocess
import sys
from typing import Any

import pytest
from verl_dispatch import Dispatch

PROGRAM = """
import json, pickle, sys, time, torch
before, start = set(sys.modules), time.process_time()
import verl_dispatch, verl_dispatch.methods.static
from verl_dispatch import *
seconds, new = time.process_time() - start, set(sys.modules) - before
Dispatch = verl_dispatch.Dispatch
first, second = pickle.loads(bytes.fromhex(sys.argv[1]))
facts = {
    "new": sorted(new),
    "seconds": seconds,
    "same": first is second,
    "name": first.name,
    "listed": first in Dispatch,
    "becomes itself": Dispatch.register("only_in_the_driver") is first and first in Dispatch,
}
sys.modules["pytest"] = None
try:
    import verl_dispatch.conformance
except ModuleNotFoundError as missing:
    facts["without pytest"] = str(missing)
print(json.dumps(facts))
"""
HEAVY = {"tensordict", "ray", "torch._dynamo", "torch.optim", "pytest", "mypy", "rich", "matplotlib"}


@pytest.fixture(scope="module")
def facts() -> Any:
    mode = Dispatch.register("only_in_the_driver")
    try:
        payload = pickle.dumps([mode, mode]).hex()
    finally:
        Dispatch.remove("only_in_the_driver")
    command = [sys.executable, "-c", PROGRAM, payload]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


def test_importing_the_package_leaves_heavy_modules_out(facts: Any) -> None:
    assert "verl_dispatch.local.group" in facts["new"]
    assert not HEAVY & set(facts["new"])


def test_importing_the_package_takes_little_time_beyond_torch(facts: Any) -> None:
    """A tenth of a second with bytecode at hand; the bound leaves room for a slow machine without."""
    assert facts["seconds"] < 1


def test_a_member_loads_where_it_was_never_registered(facts: Any) -> None:
    assert (facts["same"], facts["name"], facts["listed"]) == (True, "ONLY_IN_THE_DRIVER", False)
    assert facts["becomes itself"]


def test_the_conformance_suite_names_its_extra_where_pytest_is_missing(facts: Any) -> None:
    assert "pip install verl-dispatch[conformance]" in facts["without pytest"]
