"""Every example in turn, or those named, in one process with one Ray: `python examples/tour mesh futures`."""

import runpy
import sys
from pathlib import Path

LOCAL = ["batch", "local_group", "weights", "futures", "mesh", "custom_mode", "streaming", "remote_columns"]
ON_RAY = ["ray_group", "colocated", "restart"]

for name in sys.argv[1:] or [*LOCAL, *ON_RAY]:
    print(f"\n=== {name}.py", flush=True)
    runpy.run_path(str(Path(__file__).with_name(f"{name}.py")), run_name="__main__")
