"""Run mypy strict over each package by itself, so that test modules of different packages may share names."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def targets() -> list[str]:
    """The folders that are checked, one mypy run each."""
    packages = (str(path.relative_to(ROOT)) for path in sorted(ROOT.glob("packages/*")))
    return [*packages, "examples", "tests", "conftest.py"]


def main() -> int:
    """Check every target and return the number of those that failed."""
    failures = 0
    for target in targets():
        sys.stdout.write(f"mypy {target}: ")
        sys.stdout.flush()
        failures += (
            subprocess.run([sys.executable, "-m", "mypy", target], cwd=ROOT, check=False).returncode != 0
        )
    return failures


if __name__ == "__main__":
    sys.exit(main())
