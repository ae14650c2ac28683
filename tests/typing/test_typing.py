"""Group calls are typed: what is right is accepted with the right type, and what is wrong is an error.

The files beside this one hold `assert_type` lines (`ok_*`) and lines that must be errors (`bad_*`: an ignore
that is not needed is itself an error).
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCES = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
PLAIN = sorted(HERE.glob("*_plain.py"))
WITH_PLUGIN = sorted(HERE.glob("*_plugin.py"))
PLUGIN = "plugins = verl_dispatch.mypy_plugin"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def mypy(files: list[Path], folder: Path, *, plugin: bool, untyped: str = "") -> list[str]:
    """The errors of one run, also one that sees no types of the package `untyped`.

    Runs with the plugin and without have caches of their own, which are kept.
    """
    kind = "plugin" if plugin else "plain"
    config = folder / f"{kind}.ini"
    lines = ["[mypy]", "strict = True", "python_version = 3.11", "explicit_package_bases = True"]
    lines += ["warn_unreachable = True", f"mypy_path = {':'.join([*SOURCES, str(ROOT), str(folder)])}"]
    lines += [PLUGIN if plugin else ""]
    lines += [f"[mypy-{untyped}.*]", "follow_imports = skip"] if untyped else []
    config.write_text("\n".join(lines))
    cache = ROOT / ".mypy_cache" / f"typing-{kind}"
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), "--cache-dir", str(cache)]
    done = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if ": error:" in line]


def pyright(files: list[Path], folder: Path) -> list[str]:
    """The errors of one run in strict mode."""
    settings = {
        "include": [os.path.relpath(file, folder) for file in files],
        "extraPaths": [*SOURCES, str(ROOT)],
        "pythonVersion": "3.11",
        "typeCheckingMode": "strict",
        "enableTypeIgnoreComments": True,
        "reportUnnecessaryTypeIgnoreComment": "error",
    }
    config = folder / "pyrightconfig.json"
    config.write_text(json.dumps(settings))
    program = str(Path(sys.executable).with_name("pyright"))
    command = [program, "--outputjson", "--pythonpath", sys.executable, "--project", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] == len(files), done.stderr
    return [
        f"{Path(entry['file']).name}:{entry['range']['start']['line'] + 1}: {entry['message']}"
        for entry in report["generalDiagnostics"]
        if entry["severity"] == "error"
    ]


def assert_none(errors: list[str]) -> None:
    assert not errors, "\n".join(errors)


def test_mypy_with_the_plugin(tmp_path: Path) -> None:
    assert_none(mypy([*WITH_PLUGIN, *PLAIN], tmp_path, plugin=True))


def test_mypy_without_the_plugin(tmp_path: Path) -> None:
    assert_none(mypy(PLAIN, tmp_path, plugin=False))


@pytest.mark.parametrize("plugin", [True, False])
def test_mistakes_are_found_where_tensordict_has_no_types(tmp_path: Path, plugin: bool) -> None:
    """As its releases before 0.15: then a TensorDict is anything, and lines about nothing else stay wrong."""
    files = [*(WITH_PLUGIN if plugin else []), *PLAIN]
    bad = [file for file in files if file.name.startswith("bad")]
    errors = mypy(bad, tmp_path, plugin=plugin, untyped="tensordict")
    assert_none([error for error in errors if not is_about_tensordicts(error)])


def is_about_tensordicts(error: str) -> bool:
    file, line, _ = error.split(":", 2)
    found = (ROOT / file).read_text().splitlines()[int(line) - 1]
    return "TensorDict" in found or "values_of" in found


def test_pyright(tmp_path: Path) -> None:
    assert_none(pyright(PLAIN, tmp_path))


WORKER = """
from verl_dispatch import Dispatch, Worker, register

class Saver(Worker):
    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def save(self, path: str) -> int:
        return 0
"""
MAKER = """
from saver_worker import Saver
from verl_dispatch import LocalWorkerGroup

def make() -> LocalWorkerGroup[Saver]:
    return LocalWorkerGroup(Saver, 2)
"""
USE = """
from saver_maker import make

def save() -> list[int]:
    return make().save("path")
"""


def test_what_is_cached_stays_right_when_files_change(tmp_path: Path) -> None:
    """The file with the call never imports the file with the worker class."""
    worker, use = tmp_path / "saver_worker.py", tmp_path / "saver_use.py"
    worker.write_text(WORKER)
    (tmp_path / "saver_maker.py").write_text(MAKER)
    use.write_text(USE)
    assert_none(mypy([use], tmp_path, plugin=True))

    use.write_text(USE.replace('"path"', "3"))
    (error,) = mypy([use], tmp_path, plugin=True)
    assert 'Argument 1 to "save" of "LocalWorkerGroup" has incompatible type "int"' in error

    worker.write_text(WORKER.replace("path: str", "path: int"))
    assert_none(mypy([use], tmp_path, plugin=True))

    worker.write_text(WORKER.replace("path: str", "path: int").replace("ONE_TO_ALL", "RANK_ZERO"))
    (error,) = mypy([use], tmp_path, plugin=True)
    assert 'got "int", expected "list[int]"' in error
