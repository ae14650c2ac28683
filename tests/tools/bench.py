"""Run the benchmarks that lie beside the packages, in turn."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAYERS = ("protocol", "dispatch", "ray")


def run_layer(layer: str, json_file: Path, rest: list[str]) -> int:
    """Run one layer's benchmark in a process of its own; tables to stdout, numbers to a file."""
    script = ROOT / f"packages/verl-{layer}/benchmarks/bench_{layer}.py"
    return subprocess.run(
        [sys.executable, str(script), "--json", str(json_file), *rest], check=False
    ).returncode


def main() -> int:
    """Run the chosen layers in turn; with `--json FILE` write all their numbers to one file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("layer", nargs="?", default="all", choices=("all", *LAYERS))
    parser.add_argument("--json", type=Path, help="write the numbers of all layers that ran to this file")
    options, rest = parser.parse_known_args()
    chosen = LAYERS if options.layer == "all" else (options.layer,)
    numbers: dict[str, object] = {}
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for layer in chosen:
            json_file = Path(folder) / f"{layer}.json"
            failures += run_layer(layer, json_file, rest) != 0
            if json_file.exists():
                numbers[layer] = json.loads(json_file.read_text())
    if options.json is not None:
        options.json.write_text(json.dumps(numbers, indent=2) + "\n")
    return failures


if __name__ == "__main__":
    sys.exit(main())
