"""`python -m verl_dispatch replay`: one rank's recorded call, run again in this process under pdb."""

from __future__ import annotations

import argparse
import bdb
import inspect
import io
import json
import os
import pdb
import pickle
import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, cached_property, partial, reduce
from pathlib import Path
from types import ModuleType
from typing import Any

from verl_protocol.errors import InvalidValueError

from verl_dispatch.groups.group import WorkerGroup
from verl_dispatch.local.call import users_frames
from verl_dispatch.local.collectives import Seat
from verl_dispatch.local.engines import LocalRank
from verl_dispatch.planning.plan import RankCall
from verl_dispatch.workers.observed import FORMAT, set_random_states
from verl_dispatch.workers.rank import RankInfo

_REASON = "a replay runs one rank alone; what the other ranks would give was not recorded"


@dataclass(frozen=True)
class RecordedCall:
    """What a file that `group.record` had written says; nothing of it is unpickled before `rank`.

    Attributes:
        facts: what can be read without unpickling.
        data: the rest.
    """

    facts: Mapping[str, Any]
    data: bytes

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> RecordedCall:
        """The call in a file.

        Raises:
            InvalidValueError: it is no such file.
            OSError: it cannot be read.
        """
        head, _, data = Path(path).read_bytes().partition(b"\n")
        try:
            facts = json.loads(head)
            if facts["format"] == FORMAT:
                return cls(facts, data)
        except (ValueError, TypeError, KeyError):
            pass
        raise InvalidValueError(f"{path} is no recorded call, expected a file written by group.record")

    def __str__(self) -> str:
        facts = self.facts
        ended = f", which failed with {facts['error']}" if facts["error"] else ""
        where = f"recorded on node {facts['host']}, pid {facts['pid']}"
        return f"{facts['call']} on rank {facts['rank']} of {facts['world_size']}, {where}{ended}"

    @cached_property
    def opened(self) -> tuple[Any, RankInfo, Any]:
        """What the worker is made from, who it is, and what its method gets; all unpickled.

        Folders that the worker imported from are put at the end of `sys.path`.
        """
        sys.path += [entry for entry in self.facts.get("path", ()) if entry not in sys.path]
        made_from, info, call = self._loads(self.data)
        return self._loads(made_from), info, self._loads(call)

    def _loads(self, data: bytes) -> Any:
        return _Unpickler(data, self.facts["main"], self.facts.get("module")).load()

    @cached_property
    def rank(self) -> LocalRank:
        """The rank with a worker that was made anew; what earlier calls left in the worker is not there."""
        (cls, args, kwargs), info, _ = self.opened
        os.environ.update(info.environment())
        rank = LocalRank(info, Seat(_REASON), sets_environment=True)
        rank.build(cls, args, kwargs)
        return rank

    def run(self) -> Any:
        """Runs the call, with the random generators as they were, and gives its answer."""
        rank, (args, kwargs, states) = self.rank, self.opened[2]
        set_random_states(states)
        call = RankCall(rank.info.rank, args, kwargs)
        return rank.run(call, self.facts["method"], self.facts["role"])

    def close(self) -> None:
        """Drop the worker."""
        if "rank" in vars(self):
            self.rank.close()

    def first_line(self) -> tuple[str, int]:
        """File and line of the first statement of the user's method."""
        function: Any = inspect.unwrap(self.rank._method(self.facts["method"], self.facts["role"]))
        code = function.__code__
        lines = [line for *_, line in code.co_lines() if line is not None and line > code.co_firstlineno]
        return code.co_filename, min(lines, default=code.co_firstlineno)


class _Unpickler(pickle.Unpickler):
    """Finds what the recording program itself defined, by running it as `multiprocessing` does.

    Args:
        main: the file of the program.
        module: its name, where it was started by `python -m`.
    """

    def __init__(self, data: bytes, main: str | None, module: str | None) -> None:
        super().__init__(io.BytesIO(data))
        self._main, self._module = main, module

    def find_class(self, module: str, name: str, /) -> Any:
        here = getattr(sys.modules["__main__"], "__file__", None)
        if module != "__main__" or self._main in (None, here):
            return super().find_class(module, name)
        return reduce(getattr, name.split("."), _program(self._main, self._module))


@cache
def _program(path: str, module: str | None) -> Any:
    """The module of a program, whose part under `if __name__ == "__main__"` does not run."""
    made = ModuleType("__recorded__")
    WorkerGroup._refusal = (
        f"{path} runs for the classes that it defines, and starts a worker group: "
        'put what it does under if __name__ == "__main__": and replay again'
    )
    try:
        run = partial(runpy.run_path, path) if module is None else partial(runpy.run_module, module)
        made.__dict__.update(run(run_name=made.__name__))
    finally:
        WorkerGroup._refusal = ""
    sys.modules[made.__name__] = made
    return made


# --- the command line -------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns 1 where the call failed or was left, 2 where it was not run."""
    options = _parser().parse_args(arguments)
    try:
        call = RecordedCall.read(options.file)
    except (OSError, ValueError) as error:
        _say(str(error))
        return 2
    _say(str(call))
    if not options.unpickle:
        _say("Running it unpickles the file, which can run any code: pass --unpickle if you trust it.")
        return 2
    try:
        _ = call.opened
    except Exception as error:
        way = "; name its folder in PYTHONPATH" if isinstance(error, ModuleNotFoundError) else ""
        _say(f"It cannot be unpickled here: {type(error).__name__}: {error}{way}")
        return 2
    run = partial(_stepped, call) if options.trace else call.run
    with closing(call):
        return _post_mortem(run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m verl_dispatch", description="Calls on worker groups.")
    commands = parser.add_subparsers(dest="command", required=True)
    replay = commands.add_parser("replay", help="run a recorded call again in this process")
    replay.add_argument("file", help="a file that group.record has written")
    replay.add_argument("--unpickle", action="store_true", help="unpickle the file, which can run any code")
    how = replay.add_mutually_exclusive_group()
    how.add_argument("--pdb", action="store_true", help="pdb where the call fails; the default")
    how.add_argument("--trace", action="store_true", help="pdb from the first line of the method on")
    return parser


def _post_mortem(run: Callable[[], Any]) -> int:
    try:
        answer = run()
    except bdb.BdbQuit:
        _say("the call was not run to its end")
        return 1
    except Exception as error:
        _say(f"{type(error).__name__}: {error}")
        pdb.post_mortem(users_frames(error.__traceback__))
        return 1
    _say(f"the call returned {answer!r}")
    return 0


def _stepped(call: RecordedCall) -> Any:
    debugger = pdb.Pdb()
    # There is no line to stop at where the source is not at hand: then pdb starts before the call.
    if debugger.set_break(*call.first_line(), temporary=True) is None:
        debugger.rcLines.append("continue")
    answers: list[Any] = []
    debugger.runcall(lambda: answers.append(call.run()))
    if not answers:
        raise bdb.BdbQuit
    return answers[0]


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
