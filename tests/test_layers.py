"""Who imports whom: statically by the import-linter contracts, and at run time in a fresh interpreter."""

import shutil
import subprocess
import sys
import textwrap
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
        (
            "verl_protocol",
            {"ray", "numpy", "torch", "tensordict", "verl_dispatch", "verl_ray", "pytest", "mypy"},
        ),
        ("verl_dispatch", {"ray", "torch", "tensordict", "verl_ray", "pytest", "mypy"}),
        ("verl_ray", {"torch", "tensordict", "verl_examples", "pytest", "mypy"}),
    ],
)
def test_import_stays_light(package: str, absent: set[str]) -> None:
    loaded = modules_after(f"import {package}")
    assert package in loaded
    assert not loaded & absent


WORKER = textwrap.dedent(
    """
    import pickle
    import verl_ray.worker.actor, verl_ray.worker.host
    from verl_dispatch import Dispatch, Worker, register
    from verl_dispatch.workers.rank import RankInfo
    from verl_dispatch.workers.site import WorkerSite, building
    from verl_ray.wire.message import open_message, prepare_answer
    from verl_ray.wire.sealed import opened_compact

    class Rules(Worker):
        @register(dispatch_mode=Dispatch.ONE_TO_ALL)
        def score(self, text):
            return {"length": len(text)}

    verl_ray.RayClassWithInitArgs(Rules), verl_ray.RayResourcePool, verl_ray.RayWorkerGroup
    verl_ray.worker.actor.derive_actor_class(Rules)
    args, kwargs, answer = open_message(pickle.dumps((("four",), {}, None)), ())
    with building(WorkerSite(RankInfo(rank=0, world_size=1))):
        packed = prepare_answer(Rules().score(*args, **kwargs), answer)
    assert opened_compact(pickle.loads(pickle.dumps(packed, protocol=5))) == {"length": 4}
    """
)


def test_a_driver_and_a_worker_without_tensors_need_no_torch() -> None:
    loaded = modules_after(WORKER)
    assert {"verl_protocol", "verl_dispatch", "verl_ray"} <= loaded
    assert not loaded & {"torch", "tensordict"}


@pytest.mark.parametrize("package", ["verl_protocol", "verl_dispatch", "verl_ray"])
def test_every_public_name_is_found_whatever_was_imported_before(package: str) -> None:
    """A module of the name of a function would stand in its place, were it imported first."""
    script = f"""
        import importlib, pkgutil, types
        import {package} as package
        for module in pkgutil.walk_packages(package.__path__, "{package}."):
            if "._" not in module.name and module.name != "verl_dispatch.conformance":
                importlib.import_module(module.name)
        names = {{name: getattr(package, name) for name in package.__all__}}
        assert list(names) == sorted(names) == dir(package)
        assert not hasattr(package, "nothing")
        assert not [name for name, value in names.items() if isinstance(value, types.ModuleType)], names
    """
    assert package in modules_after(textwrap.dedent(script))
