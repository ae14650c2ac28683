"""The way of one warm in-process call: how many Python functions it runs, in how many files.

    python packages/verl-dispatch/benchmarks/way_of_a_call.py [--list]

One batch of one column goes to one rank and comes back. A newcomer who follows a call in a debugger sees
these functions; the fewer files they lie in, and the fewer times the call goes from one file to another,
the easier it is to follow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from verl_dispatch import Dispatch, LocalWorkerGroup, Worker, register
from verl_protocol import DataProto

# Not functions of their own from Python 3.12 on.
INLINED = ("<listcomp>", "<dictcomp>", "<setcomp>")


class Echo(Worker):
    """Gives back what it gets."""

    @register(dispatch_mode=Dispatch.DP_COMPUTE_PROTO)
    def rows(self, data: DataProto) -> DataProto:
        """The rows."""
        return data


def way_of(call: Callable[[], Any]) -> list[tuple[str, str]]:
    """File and name of every Python function that a call enters, in order; generators at each step."""
    entered: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name not in INLINED:
            entered.append((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered[1:]


def short(path: str) -> str:
    """A path without the folders above its package."""
    parts = Path(path).parts
    tops = [at for at, part in enumerate(parts) if part in ("src", "site-packages", "lib")]
    return "/".join(parts[tops[-1] + 1 :]) if tops else path


def main(arguments: Sequence[str] | None = None) -> int:
    """Follow one call and show what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true", help="show every function, in order")
    options = parser.parse_args(arguments)
    data = DataProto.from_dict(tensors={"ids": torch.arange(4)})
    with LocalWorkerGroup(Echo, 1) as group:
        bound: Any = group
        for _ in range(3):
            bound.rows(data)
        way = way_of(lambda: bound.rows(data))
    files = [short(path) for path, _ in way]
    if options.list:
        for file, (_, name) in zip(files, way, strict=True):
            sys.stdout.write(f"{file}: {name}\n")
    changes = sum(one != other for one, other in pairwise(files))
    sys.stdout.write(f"{len(way)} functions, {len(set(files))} files, {changes} changes of file\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
