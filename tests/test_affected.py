"""CI's path filter follows the layers."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent / "tools" / "affected.py"
_spec = importlib.util.spec_from_file_location("affected_script", SCRIPT)
if _spec is None or _spec.loader is None:
    raise ImportError(SCRIPT)
_script = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_script)

ALL = ["verl-protocol", "verl-dispatch", "verl-ray"]


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["packages/verl-protocol/src/verl_protocol/batch.py"], ALL),
        (["packages/verl-dispatch/README.md"], ["verl-dispatch", "verl-ray"]),
        (["packages/verl-ray/tests/test_x.py", "docs/index.md"], ["verl-ray"]),
        (["packages/verl-ray/a.py", "packages/verl-dispatch/a.py"], ["verl-dispatch", "verl-ray"]),
        (["uv.lock"], ALL),
        (["conftest.py"], ALL),
        ([".github/workflows/ci.yml"], ALL),
        (["examples/src/verl_examples/cli.py", "README.md"], []),
        ([], []),
    ],
)
def test_change_reaches_the_layers_above(paths: list[str], expected: list[str]) -> None:
    assert _script.affected(paths) == expected


def test_matrix_has_every_python_and_the_oldest_dependencies() -> None:
    rows = _script.matrix(["verl-dispatch"])
    assert {row["python"] for row in rows if row["resolution"] == "highest"} == {"3.11", "3.12", "3.13"}
    assert [row["python"] for row in rows if row["resolution"] == "lowest-direct"] == ["3.11"]
    assert {row["package"] for row in rows} == {"verl-dispatch"}
