"""What is seen of a call where it runs, while somebody asks: its times, and a file to replay it from."""

from __future__ import annotations

import inspect
import json
import logging
import os
import pickle
import random
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial, wraps
from importlib import import_module
from pathlib import Path
from shlex import quote
from typing import Any, Literal, NamedTuple, TypeAlias

from verl_protocol import DataProtoFuture

from verl_dispatch.errors import NotPicklableError
from verl_dispatch.methods.decorator import MAGIC_ATTR, register_options
from verl_dispatch.planning.parts import Resolved, resolve_parts, resolve_parts_async, trim_answer
from verl_dispatch.workers.rank import RankInfo

_log = logging.getLogger(__name__)

RecordWhen: TypeAlias = Literal["error", "all"]
FORMAT = "verl-dispatch call 1"
"""What the first line of a recorded call says that it is."""


class Stamps(NamedTuple):
    """When a call was where at its worker, in seconds since the epoch by the clock of its host.

    Attributes:
        host: name of the machine.
        began: the worker took it up.
        fetched: its arguments were there, what futures stand for among them.
        ended: the method had run.
        queued: whether the time before counts as a wait; not so where ranks take turns.
    """

    host: str
    began: float
    fetched: float
    ended: float
    queued: bool = True


class Observation:
    """One call as its worker sees it; it begins when this is made.

    Args:
        method: the name by which it is called.
        recorder: writes the call down, if any.
        role: whose method is called, where several roles share the process.
    """

    def __init__(self, method: str, recorder: Recorder | None = None, role: str | None = None) -> None:
        self._method, self._recorder, self._role = method, recorder, role
        self._began = self._fetched = self._ended = time.time()

    @property
    def stamps(self) -> Stamps:
        """When it was where, once it has ended."""
        return Stamps(socket.gethostname(), self._began, self._fetched, self._ended)

    def of(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The method, watched; the futures of a registered one are resolved first, unless it does that."""
        is_registered = hasattr(function, MAGIC_ATTR)
        materialize = is_registered and register_options(function).materialize_futures
        recorder = self._recorder if is_registered else None
        if inspect.iscoroutinefunction(inspect.unwrap(function)):

            @wraps(function)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                trim, written = None, (args, kwargs)
                if materialize:
                    args, kwargs, trim = await resolve_parts_async(args, kwargs, materialize)
                    written = args, kwargs
                elif recorder is not None:
                    # What the method makes of a failure is its own affair.
                    with suppress(Exception):
                        written = _there(written, await resolve_parts_async(args, kwargs, True))
                with self._running(recorder, function, *written):
                    answer = await function(*args, **kwargs)
                return trim_answer(answer, trim)

            return run_async

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            trim, written = None, (args, kwargs)
            if materialize:
                args, kwargs, trim = resolve_parts(args, kwargs, materialize)
                written = args, kwargs
            elif recorder is not None:
                with suppress(Exception):
                    written = _there(written, resolve_parts(args, kwargs, True))
            with self._running(recorder, function, *written):
                answer = function(*args, **kwargs)
            return trim_answer(answer, trim)

        return run

    @contextmanager
    def _running(
        self,
        recorder: Recorder | None,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Iterator[None]:
        write = None if recorder is None else recorder.draft(function, self._method, self._role, args, kwargs)
        self._fetched = time.time()
        try:
            yield
        except Exception as error:
            if write is not None:
                error.add_note(write(error))
            raise
        finally:
            self._ended = time.time()


def _there(given: tuple[Any, Any], found: Resolved) -> tuple[Any, Any]:
    """Futures as a method is given them that resolves its own, of batches that are there."""

    def future_of(argument: Any, value: Any) -> Any:
        return DataProtoFuture.concat([value]) if isinstance(argument, DataProtoFuture) else value

    return tuple(map(future_of, given[0], found[0])), {
        name: future_of(given[1][name], value) for name, value in found[1].items()
    }


# --- A call in a file, from which `python -m verl_dispatch replay` runs it again ----------------------------


def dumps(value: Any) -> bytes:
    """The value, pickled; what pickle cannot name by cloudpickle, which comes with tensordict."""
    try:
        by_value: Callable[[Any], bytes] = import_module("cloudpickle").dumps
    except ImportError:
        by_value = pickle.dumps
    try:
        # What a notebook defines has a name, by which no other process finds it.
        return (by_value if _program() is None else pickle.dumps)(value)
    except Exception:
        return by_value(value)


def _program() -> str | None:
    """The file of this program; None in a notebook, or where it came by standard input ("<stdin>")."""
    path = getattr(sys.modules["__main__"], "__file__", None)
    return path if path is not None and os.path.exists(path) else None


def pickled(made_from: Any, cls: type, dumps: Callable[[Any], bytes] = dumps) -> bytes:
    """The bytes of a worker's class and its constructor's arguments.

    Raises:
        NotPicklableError: they cannot be pickled.
    """
    try:
        return dumps(made_from)
    except Exception as error:
        what = f"{cls.__qualname__}, or an argument of its constructor, which record writes down,"
        raise NotPicklableError(what, str(error)) from error


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes the calls of one worker down.

    Args:
        folder: where to, on the worker's own node.
        on: "error" keeps the calls that fail, "all" every call, from before it runs.
        made_from: the worker's class and its constructor's arguments, as `dumps` made them.
        rank_info: who the worker is.
        dumps: pickles what the worker gets.
    """

    folder: str
    on: RecordWhen
    made_from: bytes
    rank_info: RankInfo
    dumps: Callable[[Any], bytes] = dumps

    def draft(
        self, function: Any, method: str, role: str | None, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Callable[[BaseException | None], str]:
        """What writes the call as it is now, for the method may change its arguments, and what it raised; a
        note on where the file lies, or on why it could not be written."""
        # The function may have another name: of one that was wrapped, or that two methods share.
        info, call_name = self.rank_info, f"{type(function.__self__).__qualname__}.{method}"
        name = f"{method}-rank{info.rank}-{os.getpid()}-{time.time_ns()}.call"
        facts: dict[str, Any] = {
            "format": FORMAT,
            "call": call_name,
            "method": method,
            "role": role,
            "rank": info.rank,
            "world_size": info.world_size,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "main": _program(),
            "module": getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", None),
            "path": [os.path.abspath(entry) for entry in sys.path],
        }
        try:
            call = self.dumps((args, dict(kwargs), random_states()))
            data = pickle.dumps((self.made_from, info, call))
        except Exception as error:
            problem = f"this call could not be recorded: an argument cannot be pickled: {error}"
            if self.on == "all":
                _log.warning("%s on rank %s: %s", call_name, info.rank, problem)
            return lambda _: problem
        write = partial(_written, Path(self.folder) / name, facts, data)
        if self.on == "all":
            write(None)
        return write


def _written(path: Path, facts: Mapping[str, Any], data: bytes, error: BaseException | None) -> str:
    told = None if error is None else f"{type(error).__name__}: {error}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        head = json.dumps({**facts, "error": told}).encode()
        half_written = path.with_suffix(".part")
        half_written.write_bytes(head + b"\n" + data)
        half_written.replace(path)
    except OSError as problem:
        return f"this call could not be recorded: {problem}"
    command = f"{quote(sys.executable or 'python')} -m verl_dispatch replay {quote(str(path))}"
    return f"this call was recorded on node {facts['host']}: {command} --unpickle"


def random_states() -> dict[str, Any]:
    """The states of the random generators of the libraries that are loaded."""
    states: dict[str, Any] = {"random": random.getstate()}
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None:
        states["numpy"] = numpy.random.get_state()
    if torch is not None:
        states["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
    return states


def set_random_states(states: Mapping[str, Any]) -> None:
    """Set what `random_states` gave; that of a GPU only where there is one."""
    random.setstate(states["random"])
    if "numpy" in states:
        import numpy as np

        np.random.set_state(states["numpy"])
    if "torch" in states:
        import torch

        torch.set_rng_state(states["torch"])
        if "cuda" in states and torch.cuda.is_available():
            torch.cuda.set_rng_state(states["cuda"])
