"""What the package exports, what importing it costs, and that its examples run."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest
import verl_protocol

MODULES = sorted(info.name for info in pkgutil.walk_packages(verl_protocol.__path__, "verl_protocol."))


PROGRAM = """
import pickle, sys, torch
before = set(sys.modules)
from verl_protocol import DataProto, pad_dataproto_to_divisor, wire
data = DataProto.from_dict({"a": torch.arange(4)}, {"s": list("abcd")}, {"k": 1})
data = pickle.loads(pickle.dumps(DataProto.concat(data.chunk(2)).repeat(2)))
data, _ = pad_dataproto_to_divisor(data[[0, 1, 2]].union(DataProto.from_dict({"b": torch.zeros(3)})), 4)
assert data.tensor("a").tolist() == [0, 0, 1, 0] and data[0].non_tensor_batch["s"] == "a"
assert list(data.make_iterator(2, 1)) and repr(data) and data.equals(data.select())
rows = [{"ids": torch.arange(length)} for length in (3, 0, 200)]
jagged = DataProto.from_rows(rows * 2, ragged={"ids"})
jagged = jagged.repeat(2)[[0, 3, 5]]
assert jagged.tensor("ids")._get_max_seqlen() == 200
jagged = wire.loads(*wire.dumps({"batch": jagged}))["batch"]
assert jagged.tensor("ids")._maybe_max_seqlen == 200
assert len(DataProto.concat([*jagged.split(2), pickle.loads(pickle.dumps(jagged))])) == 6
loaded = set(sys.modules) - before
# torch 2.8 marks the sizes of every jagged tensor for its compiler, and imports all of that.
compiler = {"torch._dynamo", "torch.distributed.tensor", "sympy"} if "torch._dynamo" in loaded else set()
print(sorted({*HEAVY} & loaded - compiler))
"""

HEAVY = [
    *("tensordict", "ray", "safetensors", "matplotlib", "rich"),
    *("torch._dynamo", "torch.distributed.tensor", "sympy"),
]


def test_working_with_a_batch_loads_nothing_heavy_until_batch_is_read() -> None:
    command = [sys.executable, "-c", f"HEAVY = {HEAVY}{PROGRAM}"]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (told.stdout.strip(), told.stderr) == ("[]", "")


def test_the_examples_of_the_readme_run() -> None:
    readme = Path(__file__).parents[1] / "README.md"
    result = doctest.testfile(str(readme), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 10
    assert result.failed == 0


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    names = {"torch": importlib.import_module("torch"), "np": importlib.import_module("numpy")}
    exported = {name: getattr(verl_protocol, name) for name in dir(verl_protocol)}
    result = doctest.testmod(
        module, extraglobs={**exported, **names}, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert result.failed == 0
