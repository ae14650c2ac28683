"""Command line of verl-ray."""

import os
import sys


def run() -> int:
    """The doctor, told the environment as it was found, but kept from Ray's `uv run` hook itself."""
    found = dict(os.environ)
    # Ray reads this when it is imported; with the hook, joining a cluster would upload the working directory.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    from verl_ray.doctor.cli import main

    return main(environ=found)


if __name__ == "__main__":
    sys.exit(run())
