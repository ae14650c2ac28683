"""Run the suite of each package beside the oldest releases of its siblings that its bounds admit.

A release is a tag such as `verl-protocol-v0.1.0`, and is built from it. Where none lies within the bounds,
the workspace's own version is the only one there is, and all other runs are with that: it is skipped here.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

from affected import ROOT, Package, packages
from packaging.requirements import Requirement
from packaging.version import Version

UV = os.environ.get("UV") or shutil.which("uv") or "uv"


def oldest_release(sibling: Requirement, tags: Iterable[str]) -> str | None:
    """The tag of the oldest release that the requirement admits, or None."""
    prefix = f"{sibling.name}-v"
    versions = {Version(tag.removeprefix(prefix)): tag for tag in tags if tag.startswith(prefix)}
    admitted = list(sibling.specifier.filter(versions))
    return versions[min(admitted)] if admitted else None


def siblings(package: Package) -> list[Requirement]:
    """What the package itself requires of the workspace."""
    project = tomllib.loads((ROOT / package.folder / "pyproject.toml").read_text())["project"]
    requirements = map(Requirement, project["dependencies"])
    return [requirement for requirement in requirements if requirement.name in package.needs]


def wheel(name: str, tag: str | None, into: Path) -> str:
    """Build one package from a tag, or from the workspace, and return the wheel's path."""
    source = ROOT
    if tag is not None:
        source = into / tag
        source.mkdir()
        archive = subprocess.run(["git", "archive", tag], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    out = into / f"wheel-{name}"
    _uv("build", "--quiet", "--wheel", "--package", name, "--out-dir", str(out), str(source))
    return str(next(out.glob("*.whl")))


def run_suite(package: Package, releases: dict[str, str]) -> bool:
    """Whether the package's suite passes with its siblings at those tags."""
    with tempfile.TemporaryDirectory() as folder:
        python = str(Path(folder) / "environment/bin/python")
        wheels = [wheel(name, releases.get(name), Path(folder)) for name in sorted(package.needs)]
        _uv("venv", "--quiet", "--no-project", str(Path(folder) / "environment"))
        group = f"{package.folder}/pyproject.toml:test"
        _uv("pip", "install", "--quiet", "--python", python, "--group", group, *wheels)
        command = [python, "-P", "-m", "pytest", package.folder]
        return subprocess.run(command, cwd=ROOT, check=False).returncode == 0


def _uv(*arguments: str) -> None:
    subprocess.run([UV, *arguments], cwd=ROOT, check=True)


def main() -> int:
    """Run every package that has a release to run beside; return the number of suites that failed."""
    listed = subprocess.run(["git", "tag"], cwd=ROOT, capture_output=True, text=True, check=True)
    tags = listed.stdout.split()
    failures = 0
    for package in packages():
        releases = {}
        for sibling in siblings(package):
            tag = oldest_release(sibling, tags)
            if tag is None:
                found = f"skipped: no tag {sibling.name}-v... lies within {sibling.specifier}"
            else:
                found = releases[sibling.name] = tag
            print(f"{package.name} with the oldest {sibling.name}: {found}", flush=True)
        failures += bool(releases) and not run_suite(package, releases)
    return failures


if __name__ == "__main__":
    sys.exit(main())
