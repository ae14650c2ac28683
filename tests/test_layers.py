"""Who imports whom: statically by the import-linter contracts, and at run time in a fresh interpreter."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def modules_after(statement: str) -> set[str]:
    """The top-level modules that a fresh interpreter holds after `statement`."""
    script = f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_contracts_are_kept() -> None:
    lint_imports = shutil.which("lint-imports", path=str(Path(sys.executable).parent))
    if lint_imports is None:
        pytest.fail("lint-imports is a development dependency; run `uv sync`")
    done = subprocess.run([lint_imports], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("package", "absent"),
    [
        ("verl_protocol", {"ray", "tensordict", "verl_dispatch", "verl_ray", "pytest", "mypy"}),
        ("verl_dispatch", {"ray", "tensordict", "verl_ray", "pytest", "mypy"}),
        ("verl_ray", {"tensordict", "verl_examples", "pytest", "mypy"}),
    ],
)
def test_import_stays_light(package: str, absent: set[str]) -> None:
    loaded = modules_after(f"import {package}")
    assert package in loaded
    assert not loaded & absent
