"""Settings as options of a command line, and how a command ends.

Imports nothing heavy: what is wrong with an option is said before torch is loaded.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from verl_examples.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_INTERRUPTED, SettingsError
from verl_examples.question_file import QuestionFileError

T = TypeVar("T")


def option(default: T, group: str, meaning: str, *, metavar: str = "", shown: str = "") -> T:
    """A field of settings that the command line may change.

    Args:
        group: heading in the help text.
        metavar: what its value is called there.
        shown: its default there, where that does not speak for itself.
    """
    facts = {"group": group, "meaning": meaning, "metavar": metavar, "shown": shown}
    return field(default=default, metadata=facts)


def parser_of(
    prog: str, description: str | None, settings: type, only: Collection[str] = (), required: str = ""
) -> argparse.ArgumentParser:
    """A parser with the options that a settings class has, or some of them; it tells what was given alone.

    Args:
        required: what the command cannot do without, as its usage shows it, with a blank after it.
    """
    # All of them in front of what is wrong with one would hide it.
    parser = argparse.ArgumentParser(
        prog,
        f"{prog} {required}[options, which --help lists]",
        description,
        argument_default=argparse.SUPPRESS,
    )
    hints = get_type_hints(settings)
    groups: dict[str, Any] = {}
    for each in fields(settings):
        if each.metadata and (not only or each.name in only):
            title, name = each.metadata["group"], each.name.replace("_", "-")
            if title not in groups:
                groups[title] = parser.add_argument_group(title)
            groups[title].add_argument(f"--{name}", **_parsing(each, hints[each.name]))
    return parser


def _parsing(each: Field[Any], hint: Any) -> dict[str, Any]:
    """What argparse is told of a field."""
    meaning, metavar = each.metadata["meaning"], each.metadata["metavar"]
    if hint is bool:
        return {"action": "store_true", "help": meaning}
    if get_origin(hint) is tuple:
        return {"action": "append", "metavar": metavar, "help": meaning}
    shown = each.metadata["shown"] or each.default
    told: dict[str, Any] = {"help": meaning if shown is None else f"{meaning} (default: {shown})"}
    if get_origin(hint) is Literal:
        return told | {"choices": get_args(hint)}
    # `Path | None` is a path where it is given.
    kind = next(iter(get_args(hint)), hint)
    known = {int: "N", float: "X", Path: "FILE"}
    return told | {"type": kind, "metavar": metavar or known.get(kind, "TEXT")}


def command(prog: str, run: Callable[[], Mapping[str, Any]], stopped: str) -> int:
    """Run a command and return its exit status; the last line of stdout is the result as JSON.

    Args:
        stopped: what is said when Ctrl-C ends it.
    """
    # Ray would otherwise build the environment anew for every worker of a program started by `uv run`.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    # Ranks whose answers nobody waits for fail with those that are waited for, which say it.
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    try:
        result = run()
    except KeyboardInterrupt:
        sys.stderr.write(f"{prog}: stopped; {stopped}\n")
        return EXIT_INTERRUPTED
    except (SettingsError, QuestionFileError, ImportError, RuntimeError) as error:
        status = _status_of(error)
        if status is None:
            raise
        sys.stderr.write(f"{prog}: {error}\n")
        return status
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _status_of(error: Exception) -> int | None:
    """How a command ends for want of what it needs, or by what a worker raised; None for its own faults."""
    if not isinstance(error, RuntimeError):
        return EXIT_BAD_INPUT
    # Only now, so that a mistyped option is answered at once.
    from verl_dispatch import WorkerGroupError
    from verl_ray import ResourceUnavailable

    if isinstance(error, ResourceUnavailable):
        return EXIT_BAD_INPUT
    return EXIT_FAILED if isinstance(error, WorkerGroupError) else None
